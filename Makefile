# Everything runs in .venv, which the first target that needs it makes: `make PYTHON=...`
# chooses the interpreter. What a target needs and is not there yet, it installs: the demo and the
# tests need not wait for what checks types or draws pictures.

# Asked whether it runs, not only whether it is there: a version manager may have a stub.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)

VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.with-vercel
TEST := $(VENV)/.with-test
DEV := $(VENV)/.with-dev
INSTALL = -m pip install --quiet --disable-pip-version-check
WHEEL := build/wheel
NPM := typescript/node_modules/.installed
# An environment for each Python, and one with the lowest versions of the dependencies.
PYTHONS := build/python

# How many workers run the tests, and what else pytest is to be told.
WORKERS ?= auto
PYTEST_ARGS ?=

# A test that hangs fails by its own time limit; after some of them the rest would be the same.
QUICK = -m pytest -p no:benchmark -p no:hypothesispytest -n $(WORKERS) --dist worksteal --quick --timeout=60 --maxfail=8 tests $(PYTEST_ARGS)

COVERED = $(BIN)/python -m pytest -n $(WORKERS) --durations=25 \
	--cov --cov-report=term --cov-fail-under=95 --lua-cov --lua-cov-fail-under=100

# Each test that starts a process would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# The parts of test-all share the machine's cores already.
.NOTPARALLEL:

.DEFAULT_GOAL := help
# Made by a pattern, and kept all the same.
.PRECIOUS: $(VENV)/.with-% $(PYTHONS)/3.%/.installed
.PHONY: help demo demo-typescript test test-all test-typescript conformance test-rest test-everything test-pythons test-lowest pythons missing-pythons lint types bench capacity chaos check wheel-test clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

$(VENV)/.made:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed: make PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# By the name of an extra of the package.
$(VENV)/.with-%: pyproject.toml | $(VENV)/.made
	$(BIN)/python $(INSTALL) -e '.[$*]'
	@touch $@

demo: $(DEMO) ## run an order workflow and watch it
	$(BIN)/redis-world demo

$(NPM): typescript/package.json typescript/package-lock.json
	cd typescript && npm ci --no-audit --no-fund --silent
	@touch $@

demo-typescript: $(TEST) $(NPM) ## run the same workflow with the TypeScript SDK, which needs Node.js 20
	cd typescript && npm run --silent build
	$(BIN)/python tools/typescript.py demo

test-typescript: $(TEST) $(NPM) ## check and test the npm package, which needs Node.js 20
	cd typescript && npm run --silent lint && npm run --silent types && npm run --silent build
	cd typescript && npm test --silent && npm run --silent test:integration

conformance: $(TEST) $(NPM) ## run the TypeScript SDK's own suites for Worlds
	$(BIN)/python tools/typescript.py conformance

test: $(TEST) ## run the quick part of the tests, which needs Python, make and git alone
	$(BIN)/python $(QUICK)

test-all: test-rest test-typescript conformance test-lowest test-pythons ## run what test leaves out, then other versions and Pythons

test-rest: $(DEV) ## run all tests, the servers taking turns, with coverage of Python and Lua
	$(COVERED) --in-turn tests $(PYTEST_ARGS)

test-everything: $(DEV) ## run all tests on all servers, with coverage of Python and Lua
	$(COVERED) tests $(PYTEST_ARGS)

pythons: ## list the Pythons that are here of those that test-pythons needs
	@$(PYTHON) tools/pythons.py

missing-pythons:
	@$(PYTHON) tools/pythons.py --missing

test-pythons: $(TEST) ## run the quick part of the tests on the other Pythons that pyproject.toml names
	@own="$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" && \
	versions="$$($(PYTHON) tools/pythons.py)" && \
	for version in $$versions; do \
		test $$version = $$own || $(MAKE) --no-print-directory test-$$version || exit 2; \
	done

test-3.%: $(PYTHONS)/3.%/.installed
	$(PYTHONS)/3.$*/bin/python $(QUICK)

$(PYTHONS)/3.%/.installed: pyproject.toml
	python="$$($(PYTHON) tools/pythons.py 3.$*)" && "$$python" -m venv --clear $(@D)
	$(@D)/bin/python $(INSTALL) -e '.[test]'
	@touch $@

test-lowest: $(PYTHONS)/lowest/.installed ## run the quick part on the lowest versions of the dependencies
	$(PYTHONS)/lowest/bin/python $(QUICK)

$(PYTHONS)/lowest/.installed: pyproject.toml tools/pythons.py
	$(PYTHON) -m venv --clear $(@D)
	$(PYTHON) tools/pythons.py --lowest >$(@D)/constraints.txt
	$(@D)/bin/python $(INSTALL) -c $(@D)/constraints.txt -e '.[test]'
	@touch $@

lint: $(DEV) ## check style, import directions and the Lua scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python tools/luacheck.py
	$(BIN)/python tools/contract_table.py --check
	$(BIN)/python tools/event_scripts.py --check

types: $(DEV) ## check types
	$(BIN)/mypy
	@# Apart: there is a conftest in both, and the programs run in environments of their own.
	MYPYPATH=benchmarks $(BIN)/mypy --exclude peers/programs benchmarks
	MYPYPATH=benchmarks/peers/programs $(BIN)/mypy benchmarks/peers/programs

bench: $(DEV) ## measure everything, beside what others use
	$(BIN)/python $(INSTALL) -e '.[bench]'
	mkdir -p build/bench
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)
	$(BIN)/python -m pytest benchmarks --benchmark-json=build/bench/groups.json $(PYTEST_ARGS)

capacity: $(DEV) ## measure what runs take of a server, for doctor --plan and docs/operations.md
	$(BIN)/python benchmarks/capacity.py --write

chaos: $(DEV) ## run the failure tests for a long time
	REDIS_WORLD_CHAOS=long $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --timeout=0 tests/chaos $(PYTEST_ARGS)

check: lint types test ## what has to pass before a commit

wheel-test: $(DEV) ## build the wheel, install it alone, and use it outside the checkout
	rm -rf $(WHEEL)
	$(BIN)/python -m build --wheel --outdir $(WHEEL)/dist .
	$(PYTHON) -m venv $(WHEEL)/venv
	$(WHEEL)/venv/bin/python $(INSTALL) $(WHEEL)/dist/*.whl
	cd / && "$(CURDIR)/$(WHEEL)/venv/bin/python" -I "$(CURDIR)/tools/smoke.py"

clean: ## remove everything that was built or installed here
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .benchmarks .hypothesis .venv-peers benchmarks/peers/npm/node_modules
	rm -rf typescript/node_modules typescript/dist typescript/examples/orders/node_modules
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
