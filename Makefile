# Two commands matter: `make demo` runs the product, `make test` proves it.
PYTHON ?= python3
BIN := .venv/bin
# As pip does, uv trusts the certificates that the system trusts: behind a proxy of one's own there are no others.
export UV_SYSTEM_CERTS ?= true
# Tests run side by side; two at least, so that isolation is always put to the test. Who is done takes over from others.
# More of them than cores, as tests often wait; the slow ones, each of which may run a JVM, half as many more.
JOBS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 2 ] && echo $$n || echo 2)

.PHONY: help setup demo test test-fast check bench docs plots format lock clean

help:
	@echo "make demo       run the whole product on this machine, with demo traffic"
	@echo "make test       everything: checks, tests, kill tests"
	@echo "make test-fast  the tests that take seconds"
	@echo "make check      lint, types, layers"
	@echo "make bench      measure, and write docs/benchmarks.md; AGAINST=COMMIT compares with that commit"
	@echo "make docs       build the site of the documents under build/site, and check every link"
	@echo "make plots      run the simulations of docs/simulations.md, and write their plots and numbers"
	@echo "make setup      only install; the others do it when needed"

setup: .venv/.dev

# `uv pip sync` makes the environment exactly what the lock says, hashes checked.
.venv/.uv:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip --quiet --disable-pip-version-check install --require-hashes -r requirements/uv.txt
	@touch $@

.venv/.dev: requirements/dev.txt pyproject.toml client/pyproject.toml .venv/.uv
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip sync --quiet --require-hashes requirements/dev.txt
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable . --editable client
	@touch $@

.venv/.bench: requirements/bench.txt .venv/.dev
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip sync --quiet --require-hashes requirements/bench.txt
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable . --editable client
	@touch $@

demo: setup
	$(BIN)/doubledecker up --data .demo

# Classes that the JVMs of the tests share; without the file, each reads its own.
.venv/spark-classes.jsa: .venv/.dev tests/spark_classes.py
	$(BIN)/python tests/spark_classes.py $@

test: check .venv/spark-classes.jsa
	$(BIN)/pytest -n $$(($(JOBS) * 3 / 2)) --dist worksteal --durations=50

test-fast: setup
	$(BIN)/pytest -n $$((2 * $(JOBS))) --dist worksteal -m "not slow"

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# `make bench AGAINST=main` compares the product with another commit's instead.
bench: .venv/.bench
	$(BIN)/python -m bench $(if $(AGAINST),--against $(AGAINST))

# The pages keep their places, so that a link leads to the same in the site as in a clone.
PAGES := README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md STYLE.md LICENSE Dockerfile compose.yaml Procfile docs examples deploy
docs: setup
	rm -rf build/pages build/site
	mkdir -p build/pages
	cp -r $(PAGES) build/pages
	$(BIN)/zensical build --clean --strict

plots: setup
	$(BIN)/python examples/simulations/redraw.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

COMPILE := VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-package doubledecker-client --custom-compile-command "make lock" $(UPGRADE)

# `make lock UPGRADE=--upgrade` takes newer versions; without it only what changed is resolved anew.
lock: .venv/.uv
	$(COMPILE) requirements/uv.in --output-file requirements/uv.txt
	$(COMPILE) pyproject.toml --output-file requirements/run.txt
	$(COMPILE) pyproject.toml --extra spark --constraint requirements/run.txt --output-file requirements/spark.txt
	$(COMPILE) pyproject.toml --all-extras --group dev --constraint requirements/spark.txt requirements/uv.in --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --all-extras --group dev --group bench --constraint requirements/dev.txt requirements/uv.in --output-file requirements/bench.txt

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
