import subprocess
import sys

import pytest
import yaml

from feddual.errors import UserError
from feddual.experiment import config
from tests.helpers import TINY, tiny


@pytest.mark.parametrize("name", config.preset_names())
def test_every_shipped_experiment_resolves_and_survives_its_own_yaml(name):
    experiment = config.resolve(name)
    assert config.resolve(yaml.safe_load(experiment.to_yaml())) == experiment


@pytest.mark.parametrize("name", [name for name in config.preset_names() if name != "quickstart"])
def test_shipped_experiments_leave_the_optimizer_to_the_protocol(name):
    written = config.load(name)
    assert not {"optimizer", "learning_rate", "weighting"} & set(written["training"])
    assert set(written["algorithm"]) <= {"name", "preset"}


def test_precedence_set_over_file_over_protocol_over_default():
    assert tiny().training.optimizer == "adam"
    assert tiny(protocol="faithful").training.model_dump(include={"optimizer", "learning_rate", "weighting"}) == {
        "optimizer": "sgd", "learning_rate": 0.01, "weighting": "num_examples",
    }  # fmt: skip
    file = config.merge(TINY, {"protocol": "faithful", "training": {"learning_rate": 0.5}})
    assert config.resolve(file).training.learning_rate == 0.5
    assert config.resolve(file, {"training.learning_rate": 0.25}).training.learning_rate == 0.25


def test_another_variant_drops_the_keys_it_lacks():
    experiment = config.resolve("paper-fmnist", {"partition.name": "iid"})
    assert experiment.partition.model_dump() == {"name": "iid", "num_clients": 100, "seed": 42}
    assert config.resolve("paper-fmnist", {"model.name": "mlp", "model.hidden": [3]}).model.hidden == [3]
    assert config.resolve("paper-fmnist", {"dataset.path": "mine.npz"}).dataset.path == "mine.npz"
    with pytest.raises(UserError, match=r"partition\.alpha: unknown key; .*allowed: name, num_clients, seed"):
        config.resolve("paper-fmnist", {"partition.name": "iid", "partition.alpha": 0.5})


def test_another_server_optimizer_takes_no_keys_of_the_one_before():
    first = config.resolve(TINY, {"training.server": {"name": "momentum", "momentum": 0.5}})
    assert first.training.server.model_dump() == {"name": "momentum", "learning_rate": 0.1, "momentum": 0.5}
    assert config.resolve(first, {"training.server.learning_rate": 0.5}).training.server.momentum == 0.5
    for name, keys in {"none": set(), "ema": {"decay"}, "fedadam": {"learning_rate", "beta1", "beta2", "tau"}}.items():
        assert set(config.resolve(first, {"training.server.name": name}).training.server.model_dump()) == {
            "name",
            *keys,
        }


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("partition.alpha", 0, r"partition\.alpha: 0 is not allowed; it should be greater than 0"),
        ("partition.alpha", float("nan"), r"partition\.alpha: nan is not allowed; it should be a finite number"),
        ("partition.alpha", "much", r"partition\.alpha: 'much' is not allowed; it should be a valid number"),
        ("partition.name", "dirichlet", r"partition\.name: 'dirichlet' is unknown; did you mean 'dirichlet_cl"),
        ("training.rounds", -1, r"training\.rounds: -1 is not allowed; it should be greater than or equal to 1"),
        ("training.rounds", 2.5, r"training\.rounds: 2\.5 is not allowed; it should be a valid integer"),
        ("training.rounds", True, r"training\.rounds: True is not allowed"),
        ("training.round", 5, r"training\.round: unknown key; did you mean 'rounds'\? allowed: batch_size,"),
        ("training.clients_per_round", 7, r"training\.clients_per_round: 7 is more than partition\.num_clients = 6"),
        ("training.momentum", 0.9, r"training\.momentum: 0\.9 has no meaning with training\.optimizer 'adam'"),
        ("training.server.name", "emma", r"training\.server\.name: 'emma' is unknown; did you mean 'ema'\? allowed: n"),
        ("training.server.decay", 0.5, r"training\.server\.name: is required; allowed: none, momentum, ema, fedadam"),
        ("training.server", {"name": "ema", "decay": 1}, r"training\.server\.decay: 1 is not allowed; .* less than 1"),
        ("training.server", {"name": "ema", "tau": 1}, r"training\.server\.tau: unknown key; allowed: decay, name"),
        ("training.server", {"name": "fedyogi", "tau": 0}, r"training\.server\.tau: 0 is not allowed; .* greater than"),
        ("training.optimizer", "lamb", r"training\.optimizer: 'lamb' is not allowed; it should be 'adam' or 'sgd'"),
        ("dataset.name", "imagenet", r"dataset\.name: 'imagenet' is unknown; allowed: cifar10, cifar100, fmnist,"),
        ("model.name", "resnet", r"model\.name: 'resnet' is unknown; .*allowed: lenet5,"),
        ("model.hidden", ["wide"], r"model\.hidden\.0: 'wide' is not allowed"),
        ("algorithm.name", "fedsgd", r"algorithm\.name: 'fedsgd' is unknown; did you .* allowed: fedavg,"),
        ("algorithm.preset", "best", r"algorithm\.preset: 'best' is unknown to fedavg"),
        ("checkpoint.keep", 0, r"checkpoint\.keep: 0 is not allowed"),
        ("runtime.device", "tpu", r"runtime\.device: 'tpu' is not allowed"),
        ("sinks", ["disk"], r"sinks\.0: 'disk' is unknown; allowed: tensorboard, mlflow, wandb, or module:name"),
        ("runtime.executor", "prozesses", r"runtime\.executor: 'prozesses' is unknown; did you mean 'processes'\?"),
        ("colour", 1, r"colour: unknown key; allowed: algorithm,"),
        ("dataset", "fmnist", r"dataset: 'fmnist' is not a mapping; for example \{name: fmnist\}"),
        ("name", "a/b", r"name: 'a/b' is not allowed"),
    ],
)  # fmt: skip
def test_bad_values_name_the_path_the_value_and_what_is_allowed(key, value, message):
    with pytest.raises(UserError, match=message) as caught:
        config.resolve(TINY, {key: value})
    assert len(str(caught.value).splitlines()) <= 3


def test_all_problems_are_told_at_once():
    with pytest.raises(UserError) as caught:
        config.resolve(TINY, {"training.rounds": 0, "partition.alpha": -1, "seed": "x"})
    assert len(str(caught.value).splitlines()) == 3


def test_numbers_as_people_write_them():
    assert config.parse_overrides(["training.learning_rate=1e-3", "a.b=[1, 2]", "c=true"]) == {
        "training.learning_rate": 0.001, "a.b": [1, 2], "c": True,
    }  # fmt: skip
    with pytest.raises(UserError, match="expected key=value"):
        config.parse_overrides(["training.rounds"])


def test_files(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(TINY))
    assert config.resolve(tmp_path / "mine.yaml") == tiny()
    (tmp_path / "broken.yaml").write_text("a: [")
    with pytest.raises(UserError, match=r"broken\.yaml is not valid YAML"):
        config.resolve(tmp_path / "broken.yaml")
    with pytest.raises(UserError, match=r"nowhere\.yaml: No such file"):
        config.resolve("nowhere.yaml")
    with pytest.raises(UserError, match="did you mean 'paper-fmnist'"):
        config.resolve("paper-fmnis")


def test_configs_need_no_tensorflow():
    code = "import sys, feddual; feddual.resolve('quickstart'); assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_commented_yaml_is_the_experiment():
    from feddual.experiment.describe import commented_yaml

    for name in config.preset_names():
        experiment = config.resolve(name)
        text = commented_yaml(experiment)
        assert config.resolve(yaml.load(text, config._Loader)) == experiment
        assert "# communication rounds; ≥ 1" in text
    smoothed = config.resolve("quickstart", {"training.server.name": "ema"})
    assert config.resolve(yaml.load(commented_yaml(smoothed), config._Loader)) == smoothed
    assert "# share of the average that stays each round" in commented_yaml(smoothed)
