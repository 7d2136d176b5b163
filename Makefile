# make demo    a server on SQLite with a past, sample jobs, a receiver: prints the dashboard's address and what fires
# make serve   the server alone, on 127.0.0.1:8080
# make test    installs all that it needs and runs every check and every test that is certain on any machine
# make quick   the quick tests only (under 30 seconds)
# make lowest  with the oldest versions of all libraries that pyproject.toml allows: the quick tests, real stores and buses
# make pythons the quick tests on each other version of Python that the machine has
# make check   format, lint, types, layers
# make cockroach  the contract of stores on a real CockroachDB, which is built once
# make certain proofs that are certain on a busy machine, a real CockroachDB among them: what make test has no time for
# make proof   real processes against real time: killed, paused and cut off for minutes; wants a quiet machine
# make mutants breaks triggers/ and rules/ at random places: the tests must see each break
# make dist    a release in dist/: source distribution, wheel, bill of materials, checksums
# make docs    the site of the documentation in site/, with pictures of the dashboard; SITE_URL=https://... where it will be
# make bench   the benchmarks, beside their raw drivers

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Processes that tests start would compile every module again where Python is told to write nothing down.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo serve test tests compiled quick lowest pythons check cockroach certain proof mutants dist docs bench servers clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,uvloop]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

serve: $(STAMP)
	@$(BIN)/horarium serve

# The types are checked beside the tests, for which the servers are installed and all modules compiled first, once for all
# workers. Many tests wait for a process or a clock of the store: six workers keep two cores busy.
test: $(STAMP)
	@$(MAKE) --no-print-directory --jobs=3 check tests

tests: servers compiled
	$(BIN)/python -m pytest -n 6 --dist worksteal -m "not proof"

compiled: $(STAMP)
	@$(BIN)/python -m pytest --collect-only -qq -m "not proof" > /dev/null || true

servers: $(STAMP)
	$(BIN)/python tools/install_servers.py

quick: $(STAMP)
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow"

lowest:
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/pip install --quiet --disable-pip-version-check uv
	$(VENV)-lowest/bin/uv pip install --quiet --python $(VENV)-lowest/bin/python --resolution lowest-direct -e '.[all,dev]'
	$(VENV)-lowest/bin/python -m pytest -q -n 2 --dist worksteal -m "not slow"
	$(VENV)-lowest/bin/python tools/install_servers.py
	$(VENV)-lowest/bin/python -m pytest -q -n 6 --dist worksteal -m "slow and not proof" tests/stores tests/buses

pythons: $(STAMP)
	@for python in $$($(BIN)/python -c 'from tests.release.test_release import others; print(*others())'); do \
		$(MAKE) --no-print-directory quick PYTHON=$$python VENV=$(VENV)-$$(basename $$python) || exit 1; done

# The contract of stores on a real CockroachDB, which is built once (five minutes, into ~/.cache/horarium).
cockroach: $(STAMP)
	$(BIN)/python -m pytest -m proof tests/proof/test_cockroach.py

CERTAIN = tests/api tests/release tests/simulation tests/stores/test_contract_catches.py tests/triggers/test_business.py \
	tests/proof/test_cockroach.py
certain: $(STAMP)
	@test -n "$$HORARIUM_TEST_COCKROACH" || bash tools/build_cockroach.sh
	$(BIN)/python -m pytest -n 2 --dist worksteal -m proof $(CERTAIN)

# Then real time, one after the other.
proof: $(STAMP)
	$(BIN)/python tools/install_servers.py --proof
	@$(MAKE) --no-print-directory certain lowest pythons
	$(BIN)/python -m pytest -m proof $(CERTAIN:%=--ignore=%)
	for store in sqlite postgres redis valkey mongo; do $(BIN)/python -m tests.proof --store $$store --minutes 1.2 || exit 1; done
	$(BIN)/python -m tests.buses --minutes 3

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

mutants: $(STAMP)
	$(BIN)/python tools/mutants.py

dist: $(STAMP)
	$(BIN)/python tools/dist.py

# Without Chromium there are no pictures, and the pages leave their places out.
docs: $(STAMP)
	-$(BIN)/python tools/pictures.py --only overview,jobs,run-failed,calendar --looks light,dark
	$(BIN)/python tools/docs_site.py $(if $(SITE_URL),--url $(SITE_URL))

bench: $(STAMP)
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) $(VENV)-lowest dist site build .pytest_cache .mypy_cache .ruff_cache
