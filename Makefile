# make run: the default run. make test: all tests. Each sets up .venv first, once.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: setup run test lint benchmark

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

run: setup
	$(VENV)/bin/python corl_jax/cql.py

test: setup
	$(VENV)/bin/python -m pytest tests parity_tests

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

benchmark: setup
	$(VENV)/bin/python -m pytest --benchmark-only
