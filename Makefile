# Every command does its whole set-up: a virtual environment in .venv and what it needs in it. Another Python: make PYTHON=python3.12 …
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
  $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test lint format bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    the main job: checkpoints survive crashes and lost drives; training resumes bit for bit"
	@echo "make test    lint, types, and all tests, the real S3 clients included"
	@echo "make lint    lint and types only        make format   format imports and mend what ruff can mend"
	@echo "make bench   measure a store of four drives in this folder; the report goes to bench-out/"
	@echo "make clean   remove the virtual environment and what was built"

demo: $(VENV)/.demo
	@$(BIN)/python scripts/demo.py

test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile

lint: $(VENV)/.test
	$(BIN)/ruff check src tests scripts examples
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format src tests scripts examples
	$(BIN)/ruff check --fix src tests scripts examples

bench: $(VENV)/.demo
	@mkdir -p bench-out
	$(BIN)/forebay bench s3 --drives 4 --dir bench-out --json bench-out/s3.json --html bench-out/s3.html

clean:
	rm -rf $(VENV) bench-out build dist src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(VENV)/.demo: pyproject.toml | $(BIN)/pip
	@echo "Installing Forebay and aws-cli into $(VENV): about a minute the first time"
	@$(BIN)/pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/pip
	@echo "Installing the tests' programs and frameworks into $(VENV): minutes the first time, and about 8 GB of disk"
	$(BIN)/pip install --quiet --editable '.[dev,clients,frameworks,bench]'
	@touch $@ $(VENV)/.demo

# Debian and Ubuntu keep the venv module in a package of its own; it is installed only where it is missing.
$(BIN)/pip:
	@test -n "$(PYTHON)" \
	  || { echo "No Python 3.11 or newer was found; name one: make PYTHON=/path/to/python3 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
	  || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; } \
	  || { echo "Python's venv module is missing; on Debian and Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
