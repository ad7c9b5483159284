"""One sheet of questions for every probe of the package, with every algorithm: one more file is asked unasked."""

import json

import pytest

from feddual import algorithms, api, probes
from feddual.experiment import plugins
from tests.helpers import tiny

PROBES = plugins.names("probes")
# In place of defaults that take long.
SMALL = {"loss-surface": {"grid": 5, "images": 60}, "gradient-norms": {"samples": 32, "definitions": ["A", "C", "cka"]}}
every_probe = pytest.mark.parametrize("name", PROBES)


def configured(name, **more):
    return {"name": name, **SMALL.get(name, {}), **more}


def recorded(run):
    """What probes wrote, by path; a surface's manifest without the facts, which say how long it took."""
    places = [path for folder in ("probes", "surfaces") for path in sorted((run.path / folder).rglob("*"))]
    files = {path.relative_to(run.path).as_posix(): path.read_bytes() for path in places if path.is_file()}
    manifests = {name: json.loads(data)["identity"] for name, data in files.items() if name.endswith("manifest.json")}
    return files | manifests


@pytest.mark.parametrize("algorithm", algorithms.names())
def test_training_is_the_same_in_bits_with_all_probes_on(algorithm, tmp_path):
    experiment = tiny(algorithm__name=algorithm, training__rounds=2)
    plain = api.run(experiment, out=tmp_path / "plain", progress=False)
    asked = [probes.create(configured(name, every=2)) for name in PROBES]
    probed = api.run(experiment, out=tmp_path / "probed", probes=asked, progress=False)
    for file in ("metrics.jsonl", "clients.jsonl", "checkpoints/round-00002.npz"):
        assert (plain.path / file).read_bytes() == (probed.path / file).read_bytes(), file
    assert recorded(probed)
    assert not recorded(plain)


@every_probe
def test_a_run_that_was_killed_and_resumed_has_the_same_files(name, tmp_path):
    experiment = tiny(training__rounds=4, checkpoint__every=2, probes=[configured(name, every=1)])
    whole = api.run(experiment, out=tmp_path / "whole", progress=False)
    rounds = api.rounds(experiment, out=tmp_path / "cut")
    for _ in range(3):  # measured and recorded once more than the last checkpoint knows
        next(rounds)
    rounds.close()
    for late in (tmp_path / "cut/checkpoints").glob("round-0000[34].npz"):
        late.unlink()
    cut = api.run(experiment, out=tmp_path / "cut", resume=True, progress=False)
    files = recorded(whole)
    assert files
    assert recorded(cut) == files


@every_probe
def test_it_measures_the_rounds_that_its_config_says(name, tmp_path):
    """Of a longer run the same rounds: nothing but the config decides, also with other seeds."""
    ways = {"every": {"every": 2}, "rounds": {"rounds": [2, 3]}}
    for way, settings in ways.items():
        probe = probes.create(configured(name, **settings))
        due = [index for index in range(1, 7) if getattr(probe, "scheduled", probe.schedule).due(index, 6)]
        assert due == {"every": [2, 4, 6], "rounds": [2, 3]}[way]


@every_probe
def test_worker_processes_record_the_same(name, tmp_path):
    asked = {"training__rounds": 2, "probes": [configured(name, every=1)]}
    inline = api.run(tiny(**asked), out=tmp_path / "inline", progress=False)
    runtime = {"runtime__executor": "processes", "runtime__workers": 2}
    processes = api.run(tiny(**asked, **runtime), out=tmp_path / "processes", progress=False)
    assert recorded(processes) == recorded(inline)


@every_probe
def test_an_instance_holds_settings_only(name, tmp_path):
    """It travels to workers: a run leaves nothing in it."""
    used, fresh = (probes.create(configured(name, every=1)) for _ in range(2))
    api.run(tiny(training__rounds=1), out=tmp_path / "run", probes=[used], progress=False)
    assert vars(used) == vars(fresh)


@every_probe
def test_what_it_does_not_take_is_refused(name):
    with pytest.raises(Exception, match="does not take"):
        probes.create({"name": name, "colour": 1})
