# The only commands a newcomer needs. Everything is installed into .venv; nothing has to be there but Python >= 3.10.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

DISTS  := $(wildcard core/pyproject.toml conformance/pyproject.toml plugins/*/pyproject.toml)

.PHONY: demo test lint format bench clean long-tests

## demo: install what is needed, then ask the real model a question on the best backend present
demo: $(VENV)/.demo
	@$(BIN)/baseboard generate --chat --temperature 0 --max-tokens 64 "What is the capital of France?"

## test: everything
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 BASEBOARD_TEST_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
	  tests/end_to_end tests/plugins tests/conformance tests/core tests/architecture

## long-tests: the property tests and mutation checks at full length
long-tests: $(VENV)/.dev
	BASEBOARD_LONG_TESTS=1 $(BIN)/python -m pytest tests/core

## lint: format, lint, types, direction of imports
lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

## bench: the figures of docs/benchmarks.md
bench: $(VENV)/.demo
	$(BIN)/python benchmarks/end_to_end.py

clean:
	rm -rf $(VENV) .venv-* build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and by exact version, or a looser requirement of another package drags in another build.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@touch $@

$(VENV)/.demo: $(VENV)/.torch $(DISTS)
	$(PIP) --editable "core[demo]"
	@touch $@

$(VENV)/.dev: $(VENV)/.demo requirements-dev.txt
	$(PIP) --requirement requirements-dev.txt
	@touch $@
