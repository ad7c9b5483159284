"""`help()` teaches: every name a user imports says what it is, what it takes and what it gives; examples run."""

import doctest
import importlib
import inspect

import pytest

PACKAGES = ("feddual", "diagnostics", "figures", "figures.charts")
SHOWN = {  # the main names show an example
    "feddual": ["run", "rounds", "open", "compare", "resolve", "run_study", "Algorithm", "Probe"],
    "diagnostics": [
        "Landscape",
        "Curvature",
        "loss_surface",
        "loss_lines",
        "compare_models",
        "compare_sharpness",
        "rescaling_audit",
        "flatness_discrepancy",
        "Space",
        "GradientNormProbe",
        "ForgettingProbe",
        "calibration",
        "neural_collapse",
        "client_models",
        "barriers",
    ],
    "figures": ["draw"],
    "figures.charts": ["Chart"],
}


def exports(package):
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}


def ours(value):
    return value.__module__.split(".")[0] in ("feddual", "diagnostics", "figures")


def documented():
    """(full name, object) of every export, and of the public methods that our classes define."""
    for package in PACKAGES:
        for name, value in exports(package).items():
            if not (inspect.isclass(value) or inspect.isroutine(value)):
                continue
            yield f"{package}.{name}", value
            bases = [base for base in inspect.getmro(value) if ours(base)] if inspect.isclass(value) else []
            for method in sorted({method for base in bases for method in vars(base)}):
                item = getattr(value, method, None)
                if not method.startswith("_") and (inspect.isfunction(item) or inspect.ismethod(item)):
                    yield f"{package}.{name}.{method}", item


CASES = dict(documented())


@pytest.mark.parametrize("name", CASES)
def test_every_name_says_what_it_is_takes_and_gives(name):
    value = CASES[name]
    text = inspect.getdoc(value) or ""
    assert text, "no docstring"
    if inspect.isclass(value):
        start = vars(value).get("__init__")
        made_by_python = "__dataclass_fields__" in vars(value) or getattr(value, "_is_protocol", False)
        if start is None or not inspect.isfunction(start) or made_by_python:
            return
        text += inspect.getdoc(start) or ""
        value = start
    parameters = [p for p in inspect.signature(value).parameters if p not in ("self", "cls")]
    if parameters:
        assert "Args:" in text, f"takes {parameters}"
        missing = [p for p in parameters if f"{p}:" not in text.partition("Args:")[2]]
        assert not missing, f"says nothing of {missing}"
    annotation = inspect.signature(value).return_annotation
    if parameters and inspect.isfunction(value) and value.__name__ != "__init__" and annotation not in (None, "None"):
        assert "Returns:" in text or "Yields:" in text, f"gives {annotation}"


@pytest.mark.parametrize(("package", "name"), [(package, name) for package, names in SHOWN.items() for name in names])
def test_the_main_names_show_an_example_that_runs(package, name, tmp_path):
    value = exports(package)[name]
    found = doctest.DocTestFinder(recurse=False).find(value, f"{package}.{name}", globs={})
    examples = [test for test in found if test.examples]
    assert examples, "no example"
    for test in examples:
        outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test)
        assert not outcome.failed
