# Each target does the set-up it needs; a second run starts at once.
SHELL := /bin/bash
.DEFAULT_GOAL := help
# PYTHON=3.12 (or the path of a Python) makes and uses an environment with that one.
VENV := .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
export PYTHON
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

# Each worker has a broker of its own, and waits for it most of the time. WORKERS=0 runs all tests in one process, one
# after the other.
WORKERS ?= 4
# A test that hangs fails, with the stacks of all threads; the slowest one takes a tenth of that.
TIMEOUT := --timeout 600
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TIMEOUT)

# BROKER=3.10, 4.0 or 4.3 fetches and uses that RabbitMQ; without it, the system's own.
ifdef BROKER
export RABBITMQ_SCRIPTS := $(shell scripts/rabbitmq $(BROKER))
ifeq ($(RABBITMQ_SCRIPTS),)
$(error RabbitMQ $(BROKER) is not to be had; see above)
endif
endif

.PHONY: help setup demo test test-broker quick check reference dist bench soak clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.installed  ## virtual environment, packages, RabbitMQ, Java
	@./scripts/system-packages rabbitmq-server java

$(VENV)/.installed: pyproject.toml constraints.txt
	@./scripts/virtualenv $(VENV)
	@touch $@

demo: setup  ## see it work, on a broker of its own
	@$(BIN)/leash demo

test: setup  ## every test, on a real broker, real Spark and in a real browser
	@./scripts/system-packages chromium || echo "The tests in a browser are skipped."
	more=$$(./scripts/prometheus); PATH=$$PATH$${more:+:$$more} $(PYTEST) -m "not soak"

test-broker: setup  ## of these, those that need RabbitMQ: make test-broker BROKER=4.0
	$(PYTEST) -m "broker and not soak"

quick: $(VENV)/.installed  ## of these, those that need no other program: make quick PYTHON=3.12
	$(PYTEST) -m "not broker and not spark and not program and not install and not soak"

check: $(VENV)/.installed  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

reference: $(VENV)/.installed  ## write docs/reference.md from the code
	$(BIN)/python scripts/reference.py

dist: $(VENV)/.installed  ## wheel and sdist, in dist/: the same bytes whenever a commit is built
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m hatchling build -d dist

bench: setup  ## side by side with other clients; writes docs/results.md
	@./scripts/system-packages rabbitmq-c || true
	$(BIN)/python -m bench

soak: setup  ## long runs with random faults
	$(BIN)/pytest -m soak

clean:  ## remove what the other targets made
	rm -rf .venv .venv-* .leash .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist bench/.build spark-warehouse
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
