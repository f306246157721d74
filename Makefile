# make run: the default run. make test: what convinces on the spot. make test-all: every test. make docs: the site.
# make derived: what is made from code and results anew. make pins: constraints.txt anew.
# make mutants: small changes of the twins, which tests must notice.
# Each sets up .venv first, once.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
PINNED := --constraint constraints.txt --editable '.[dev]'

SITE := docs/_build/html

.PHONY: setup run test test-all test-thorough cost test-d4rl test-d3rlpy mutants lint pins derived benchmark docs docs-serve

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV): PyTorch, JAX, MuJoCo, Ray and the tools of development, some minutes and 4 GB,"
	@echo "more with PyTorch for a GPU; uv is used if it is installed, because it is faster than pip"
	@# A uv in the environment itself, if that is activated, would be deleted before it is done.
	@case "$$(command -v uv)" in \
	""|*/$(VENV)/*) \
		$(PYTHON) -m venv $(VENV) && $(VENV)/bin/python -m pip install --disable-pip-version-check $(PINNED);; \
	*) \
		uv venv --quiet --clear --seed --python $(PYTHON) $(VENV) && uv pip install --python $(VENV) $(PINNED);; \
	esac
	touch $@

run: setup
	$(VENV)/bin/python corl_jax/iql.py

# Files are shared out among a few processes with a thread each: more threads than cores slow both frameworks manifold.
PYTEST := OMP_NUM_THREADS=1 XLA_FLAGS=--xla_cpu_multi_thread_eigen=false \
	$(VENV)/bin/python -m pytest -n auto --maxprocesses 4 tests parity_tests

test: setup
	$(PYTEST) --junitxml=.tests/quick.xml

# All but the examination of the checker, a measurement whose figures docs/port/check.md has.
test-all: test test-thorough test-d3rlpy

# UNTIL, in seconds since 1970, is when no further test begins.
test-thorough: setup
	$(PYTEST) --junitxml=.tests/thorough.xml -m thorough $(if $(UNTIL),--until $(UNTIL))

# What the tests cost when they last ran: seconds by room, file, pair and rung.
cost: setup
	$(VENV)/bin/python -m tests.cost .tests/*.xml

# Where the package cannot be imported the tests would be skipped; the import fails then. It makes the folder it is given.
test-d4rl: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/d4rl.txt
	D4RL_SUPPRESS_IMPORT_ERROR=1 D4RL_DATASET_DIR=$(VENV)/d4rl $(VENV)/bin/python -c 'import d4rl'
	$(VENV)/bin/python -m pytest -m d4rl tests/data/conformance

# In a folder of its own, which only these tests look into: it brings an older Gym.
test-d3rlpy: setup
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
		--target $(VENV)/d3rlpy -r requirements/d3rlpy.txt
	PYTHONPATH=$(VENV)/d3rlpy $(VENV)/bin/python -c 'import d3rlpy'
	PYTHONPATH=$(VENV)/d3rlpy $(VENV)/bin/python -m pytest -m d3rlpy parity_tests/reference tests/data/conformance

# Every mutant of every twin, which takes many hours, or a sample of them: make mutants SAMPLE=20.
mutants: setup
	OMP_NUM_THREADS=1 XLA_FLAGS=--xla_cpu_multi_thread_eigen=false \
		$(VENV)/bin/python -m parity_tests.mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy
	$(VENV)/bin/python -m tests.contract
	$(VENV)/bin/python docs/_ext/prose.py

# For every Python and platform that pyproject.toml admits, of wheels only: nothing is built. A version that can stay, stays.
pins: setup
	UV_CUSTOM_COMPILE_COMMAND='make pins' $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11.0 \
		--no-python-downloads --no-build --no-annotate --no-emit-index-url --extra dev --output-file constraints.txt pyproject.toml

# Tables, charts, drawings, excerpts and notebooks, where they are not what they should be. Commit what it writes.
derived: setup
	$(VENV)/bin/python docs/_ext/derived.py

benchmark: setup
	$(VENV)/bin/python -m pytest --benchmark-only

# Everything anew, and warnings are errors; then every link within the site must lead somewhere. Nothing is fetched from a network.
docs: setup
	rm -rf $(SITE)
	$(VENV)/bin/python -m sphinx -E -W --keep-going -q -b html -d docs/_build/doctrees docs $(SITE)
	$(VENV)/bin/python docs/_ext/links.py $(SITE)

docs-serve: docs
	$(VENV)/bin/python -m http.server --bind 127.0.0.1 --directory $(SITE) 8000
