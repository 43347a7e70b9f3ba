# Each target does the set-up it needs; a second run starts at once.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

.PHONY: help setup demo test check bench soak clean

help:  ## what there is
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-7s %s\n", $$1, $$2}'

setup: $(VENV)/.installed  ## virtual environment, packages, RabbitMQ, Java
	@./scripts/system-packages rabbitmq-server java

$(VENV)/.installed: pyproject.toml constraints.txt
	@./scripts/virtualenv $(VENV)
	@touch $@

demo: setup  ## see it work, on a broker of its own
	@$(BIN)/leash demo

test: setup  ## every test, on a real broker and real Spark
	$(BIN)/pytest -m "not soak"

check: $(VENV)/.installed  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup  ## side by side with other clients; writes docs/results.md
	@./scripts/system-packages rabbitmq-c || true
	$(BIN)/python -m bench

soak: setup  ## long runs with random faults
	$(BIN)/pytest -m soak

clean:  ## remove what the other targets made
	rm -rf $(VENV) .leash .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist bench/.build spark-warehouse
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
