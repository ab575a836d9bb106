# `make demo` and `make test` each work as the first command on a fresh clone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

# The environment is made once, and again when the dependencies change.
.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: .venv/ready
	$(BIN)/mfabric compare --out demo/rows.csv --figures demo

test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf .venv demo
