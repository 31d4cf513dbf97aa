# Everything runs in .venv, which the first target that needs it makes: `make PYTHON=...`
# chooses the interpreter.

# Asked whether it runs, not only whether it is there: a version manager may have a stub.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WHEEL := build/wheel

# How many workers run the tests, and what else pytest is to be told.
WORKERS ?= auto
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint types bench chaos check wheel-test clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: $(STAMP) ## run an order workflow and watch it
	$(BIN)/redis-world demo

test: $(STAMP) ## run all tests, with coverage of Python and Lua
	$(BIN)/python -m pytest -n $(WORKERS) \
		--cov --cov-report=term --cov-fail-under=95 \
		--lua-cov --lua-cov-fail-under=100 \
		--durations=25 tests $(PYTEST_ARGS)

lint: $(STAMP) ## check style, import directions and the Lua scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/luacheck.py
	$(BIN)/python tools/contract_table.py --check

types: $(STAMP) ## check types
	$(BIN)/mypy
	@# Apart: there is a conftest in both, and the programs run in environments of their own.
	MYPYPATH=benchmarks $(BIN)/mypy --exclude peers/programs benchmarks
	MYPYPATH=benchmarks/peers/programs $(BIN)/mypy benchmarks/peers/programs

bench: $(STAMP) ## measure everything, beside what others use
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	mkdir -p build/bench
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)
	$(BIN)/python -m pytest benchmarks --benchmark-json=build/bench/groups.json $(PYTEST_ARGS)

chaos: $(STAMP) ## run the failure tests for a long time
	REDIS_WORLD_CHAOS=long $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --timeout=0 tests/chaos $(PYTEST_ARGS)

check: lint types test ## what has to pass before a commit

wheel-test: $(STAMP) ## build the wheel, install it alone, and use it outside the checkout
	rm -rf $(WHEEL)
	$(BIN)/python -m build --wheel --outdir $(WHEEL)/dist .
	$(PYTHON) -m venv $(WHEEL)/venv
	$(WHEEL)/venv/bin/python -m pip install --quiet --disable-pip-version-check $(WHEEL)/dist/*.whl
	cd / && "$(CURDIR)/$(WHEEL)/venv/bin/python" -I "$(CURDIR)/tools/smoke.py"

clean: ## remove everything that was built or installed here
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .benchmarks .hypothesis .venv-peers benchmarks/peers/npm/node_modules
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
