# make demo    a server on SQLite, sample jobs, a receiver: prints what fires
# make serve   the server alone, on 127.0.0.1:8080
# make test    installs all that it needs and runs every check and every test
# make quick   the quick tests only (under 30 seconds)
# make check   format, lint, types, layers
# make bench   the benchmarks, beside their raw drivers

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo serve test quick check bench servers clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,uvloop]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

serve: $(STAMP)
	@$(BIN)/horarium serve

test: check servers
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

servers: $(STAMP)
	$(BIN)/python tools/install_servers.py

quick: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 -m "not slow"

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP)
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
