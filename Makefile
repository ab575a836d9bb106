# `make demo`, `make docs` and `make test` each work as the first command on a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
PYRIGHT := $(BIN)/pyright --pythonpath $(BIN)/python

.PHONY: demo docs test test-slow gpu-check speed lint clean

# The environment is made once, and again when the dependencies change; Ray, which is large, for slow tests alone.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable
# What every command loads is compiled here once: where Python keeps no bytecode, each of them would compile it again.
LOADED := jax.numpy, equinox, optax, numba, scipy.linalg, matplotlib.figure, msgspec

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[dev]'
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import $(LOADED)'
	touch $@

.venv/ray: .venv/ready
	$(INSTALL) '.[dev,cluster]'
	touch $@

demo: .venv/ready
	$(BIN)/mfabric compare --preset usual --out demo/rows.csv --figures demo

# The site, in site/: a link or an anchor that leads nowhere ends it.
.venv/docs: .venv/ready
	$(INSTALL) '.[dev,docs]'
	touch $@

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'site/index.html is the site'

# Types are checked beside the tests; what is wrong with them is printed last.
test: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(PYRIGHT) > .venv/types.log 2>&1 & types=$$!; \
	echo '$(PYTEST) -m "not slow"'; $(PYTEST) -m "not slow"; tests=$$?; \
	wait $$types; types=$$?; echo '$(PYRIGHT)'; cat .venv/types.log; exit $$((tests + types))

test-slow: .venv/ray .venv/docs
	$(PYTEST) -m slow

# Hot paths compiled for GPUs that are not there; 3 where something could not be: that is no pass. Some 6 GB of wheels, of the
# version that the ceilings are of.
.venv-gpu/ready: pyproject.toml
	$(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check --editable . 'jax[cuda12]==0.10.2' nvidia-cuda-nvdisasm
	touch $@

gpu-check:
	@$(MAKE) .venv-gpu/ready || { echo '0 paths compiled, 0 over their ceilings, all skipped: no CUDA wheels'; exit 3; }
	.venv-gpu/bin/python benchmarks/gpu_check/check.py

# CPU seconds cold and warm, memory, programs, compile requests and traces of plain questions, beside committed figures.
speed: .venv/ready
	$(BIN)/python benchmarks/speed.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYRIGHT)

clean:
	rm -rf .venv demo site
