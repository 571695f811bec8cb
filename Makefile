# Two commands do everything from a bare clone: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
# Two OpenMP threads that spin beside another job are far slower than threads that sleep.
export OMP_WAIT_POLICY ?= PASSIVE
export TOKENIZERS_PARALLELISM ?= false

FIRST := tests/training tests/explaining tests/evaluation tests/exporting tests/test_docs.py

.PHONY: demo test test-long lint docs dist clean

demo: .venv/core
	$(BIN)/python -m vitshap demo

# Two processes at once, one thread each, take half the time on two cores; the output of the first is printed at the end.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --hypothesis-profile=repeatable
test: .venv/dev lint
test-long: .venv/dev .venv/long
test-long: WHICH := -m "long or not long"
test test-long:
	@mkdir -p build
	@$(PYTEST) $(WHICH) $(FIRST) > build/test.log 2>&1 & first=$$!; \
	$(PYTEST) $(WHICH) $(FIRST:%=--ignore=%); second=$$?; \
	wait $$first; first=$$?; cat build/test.log; exit $$((first || second))

lint: .venv/dev
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

# The site goes to build/docs.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/docs

# The wheel goes to dist; another one, built the same way, is installed elsewhere and explains a photo offline.
dist: .venv/dev
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m pytest tests/test_release.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/core: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/dev: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ .venv/core

# Compared with in the long tests; its dependencies would replace ours.
.venv/long: .venv/dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps lxt==2.1
	touch $@

.venv/docs: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	touch $@

clean:
	rm -rf .venv demo-output
