# Everything runs in .venv, made on first use; only Python 3.11+, make and a package index are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help

help:  ## say what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

install: $(INSTALLED)  ## create .venv and install the package with its tools

quickstart: $(INSTALLED)  ## the whole story on the built-in data, in minutes
	$(BIN)/feddual quickstart

test-fast: $(INSTALLED)  ## the inner loop: what takes a minute
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not heavy"

test: $(INSTALLED)  ## the tests, in minutes
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-all: $(INSTALLED)  ## the slow tests, and lint
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,mlflow,wandb]'
	$(BIN)/python -m pytest -q -rs -m slow -n 2 --dist loadfile
	$(MAKE) lint

lint: $(INSTALLED)  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(INSTALLED)  ## measure the speed claims (nothing else may run meanwhile)
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

lab: $(INSTALLED)  ## JupyterLab with the notebooks, the kernel ready
	$(BIN)/jupyter lab --notebook-dir=. notebooks/01_quickstart.ipynb

notebooks: $(INSTALLED)  ## run all notebooks and keep their outputs
	$(BIN)/python notebooks/refresh.py

.PHONY: help install quickstart test-fast test test-all lint bench lab notebooks
