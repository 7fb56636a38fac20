# make demo: from nothing to a trained policy and its report. make test: what CI runs. VENV=… and PYTHON=… choose others.
VENV ?= .venv
export VENV PYTHON
BIN := $(VENV)/bin
PYTEST_ARGS ?=
# Two tests at a time: much of a test is waiting for boxes. Those of a file stay together, they share what is costly to make.
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-peers lint types fmt lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s'|' 2>/dev/null || grep '##' Makefile

setup: ## make .venv with everything in it (quick when nothing changed)
	@bash scripts/setup.sh

demo: setup ## run the whole loop with the pocket model; ends with runs/…/report.html
	$(BIN)/frognano loop recipes/pocket.toml

test: setup ## all tests but those that install other projects
	$(BIN)/python -m pytest -m "not peers" -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

test-peers: setup ## the tests that install other projects
	$(BIN)/python -m pytest -m peers $(PYTEST_ARGS)

lint: setup ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## mypy, strict
	$(BIN)/mypy

fmt: setup ## put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: setup ## write constraints.txt anew
	bash scripts/lock.sh --upgrade

clean: ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
