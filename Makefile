# make serve   the gateway on 127.0.0.1:18790, from a bare checkout; ./coterie is everything else
# make test    everything the tests need, then all of them
# make fetch   what the tests need from registries; they reach nothing beyond loopback themselves
# make bench   the speed and size figures
# make chaos   kill -9 under traffic, KILLS=20 times, and with children at work; count what was lost
# make fuzz    what nobody should send, to every door: MINUTES=10 for each of them, SEED=…
# make evals   how well memories are found: DATA=FILE is a file of LoCoMo conversations
# make docs    writes the generated reference pages again

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
UV := $(or $(shell command -v uv 2>/dev/null),.tools/bin/uv)
BIN := .venv/bin
ARGS ?=

.PHONY: help serve test fetch check docs bench evals chaos fuzz lock clean

help:
	@sed -n 's/^# //p' Makefile

.tools/bin/uv:
	$(PYTHON) -m venv .tools
	.tools/bin/pip install --quiet uv

.venv/bin/python: | $(UV)
	$(UV) venv --quiet --python '>=3.11' .venv

# The program alone: what a person needs to run it.
.venv/.program: pyproject.toml constraints.txt | .venv/bin/python
	$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode -c constraints.txt -e .
	@touch $@

# With everything the tests use.
.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(UV) pip install --quiet --python $(BIN)/python --compile-bytecode -c constraints.txt -e '.[dev]'
	@touch $@ .venv/.program

serve: .venv/.program
	@$(BIN)/coterie serve $(ARGS)

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m docs.generate --check

fetch: .venv/.dev
	$(BIN)/python -m tests.support.fetch

test: check fetch
	$(BIN)/pytest -n 2 --dist worksteal $(ARGS)

docs: .venv/.dev
	$(BIN)/python -m docs.generate

bench: .venv/.dev
	$(BIN)/python -m bench $(ARGS)

evals: .venv/.dev
	$(BIN)/python -m evals $(DATA) $(ARGS)

chaos: .venv/.dev
	$(BIN)/python -m tests.chaos.run --kills $(or $(KILLS),20) $(ARGS)

fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz all --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(ARGS)

# Versions that the tests ran with; names and versions only.
lock: .venv/.dev
	$(UV) pip compile --quiet --universal --no-header --no-annotate --upgrade --extra dev -o constraints.txt pyproject.toml
	sed -i.bak '/^-e/d;/^coterie/d' constraints.txt && rm constraints.txt.bak

clean:
	rm -rf .venv .tools .build dist
