# Two commands do all set-up: `make run` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
MODEL ?= demo
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PIP_NO_INPUT = 1

.DEFAULT_GOAL := help
.PHONY: help run test check format smoke soak image-check bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A stamp for each set of packages: nothing is installed twice.
$(VENV)/.run: pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %d.%d" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -r requirements.lock
	$(PIP) install -q --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.test: $(VENV)/.run requirements-test.lock clients/python/pyproject.toml
	$(PIP) install -q -r requirements-test.lock
	$(PIP) install -q --no-deps --no-build-isolation -e clients/python
	@touch $@

run: $(VENV)/.run  ## set up, then serve MODEL (default: the embedded demo) on loopback PORT
	$(BIN)/fluoroscope serve --model $(MODEL) --port $(PORT)

test: $(VENV)/.test  ## set up, then the whole test suite
	$(BIN)/python -m pytest -q $(TESTS)

check: $(VENV)/.test  ## lint, format, types, the Dockerfile, unsafe calls, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy clients/python/fluoroscope_client
	$(BIN)/hadolint Dockerfile
	$(BIN)/bandit -q -c pyproject.toml -r model service clients/python/fluoroscope_client
	$(BIN)/python -m tests.audit

format: $(VENV)/.test  ## put the code into its form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

smoke: $(VENV)/.run  ## start a server on a free port and run clients/curl/smoke.sh against it
	$(BIN)/python -m tests.smoke

soak: $(VENV)/.test  ## minutes of load, floods and leaks; `make test` runs a short form of each
	$(BIN)/python -m pytest -q -m soak $(TESTS)

image-check: $(VENV)/.test  ## build the container image with buildah, start it, ask it, stop it
	$(BIN)/python -m tests.image_check $(BASE)

# The peers would not fit beside the server's own packages: an environment of their own.
.venv-bench/.bench: requirements.lock requirements-test.lock benchmarks/requirements.txt
	test -x .venv-bench/bin/python || $(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip --disable-pip-version-check install -q $(patsubst %,-r %,$^)
	@touch $@

bench: .venv-bench/.bench  ## all benchmarks, or ROWS=encoder,load,…; writes benchmarks/README.md
	.venv-bench/bin/python -m benchmarks --rows "$(ROWS)"

clean:  ## remove the environment, caches and builds
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info clients/python/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
