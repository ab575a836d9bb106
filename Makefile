# `make demo` and `make test` each work as the first command on a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
PYRIGHT := $(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: demo test test-slow lint clean

# The environment is made once, and again when the dependencies change; Ray, which is large, for slow tests alone.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[dev]'
	touch $@

.venv/ray: .venv/ready
	$(INSTALL) '.[dev,cluster]'
	touch $@

demo: .venv/ready
	$(BIN)/mfabric compare --out demo/rows.csv --figures demo

# Types are checked beside the tests; what is wrong with them is printed last.
test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(PYRIGHT) > .venv/types.log 2>&1 & types=$$!; \
	echo '$(PYTEST) -m "not slow"'; $(PYTEST) -m "not slow"; tests=$$?; \
	wait $$types; types=$$?; echo '$(PYRIGHT)'; cat .venv/types.log; exit $$((tests + types))

test-slow: .venv/ray
	$(PYTEST) -m slow

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYRIGHT)

clean:
	rm -rf .venv demo
