# Everything a developer does, one word each. `make help` lists the words.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# With the libraries whose models dmvi takes, so that their tests run here; without them they are skipped.
EXTRAS ?= dev,pymc,tfp,arrow,dask
# Rewritten only when what is installed could have changed, so repeating `make install` is instant.
STAMP := $(VENV)/.installed

# A file's tests share fixtures and compiled programs, so files stay together.
PARALLEL := --numprocesses 2 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint format bench clean

help:  ## list these commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18
	@echo
	@echo "  PYTHON=python3.12 chooses the interpreter, VENV=path the environment's folder,"
	@echo "  EXTRAS=dev leaves PyMC, TFP, PyArrow and Dask out."

install: $(STAMP)  ## create .venv and install the package with its pins

$(STAMP): pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]' --constraint constraints.txt
	@touch $@

demo: install  ## fit the eight schools, compare with other methods, draw figures into demo/
	$(BIN)/dmvi demo --force

test: install  ## run the tests
	$(BIN)/python -m pytest $(PARALLEL)

test-all: install  ## run the slow tests too
	$(BIN)/python -m pytest $(PARALLEL) -m "slow or not slow"

lint: install  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: install  ## rewrite the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## measure the ten lab targets beside NumPyro's flow, into benchmarks/results/
	$(BIN)/python -m benchmarks.lab

clean:  ## remove what these commands made
	rm -rf $(VENV) demo .pytest_cache .ruff_cache benchmarks/results
