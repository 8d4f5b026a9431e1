# make demo   sets everything up, then: lab up → lock → provision → reboot → validate → report
# make test   sets everything up, then runs the linters and all tests that need no emulated machine and no compiled driver;
#             make test TESTS=PATH: those, in one process
# make test-machines  sets everything up, then runs the others; SHARD=2/6: the second of six shares, of about the same time
# make fuzz   gives every reader of files and answers N hostile inputs (100000), and prints a table; READER="fleet.yml" for one
# make packages  sets everything up, then builds a Debian package and an rpm of the host program: docs/packages.md
# make clean  removes what these made in this folder (the lab has its own: gdsdeploy lab down)

VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Three processes, because tests wait for hosts and disks; tests/groups.py says what each of them takes, and in which order.
SIDE_BY_SIDE := --numprocesses 3 --durations 15
PYTEST := $(BIN)/python -m tests.contained $(BIN)/python -m pytest

# Programs start some hundred times in the tests: without their bytecode, each start compiles them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-machines fuzz packages setup lock clean

demo: setup
	$(BIN)/gdsdeploy lab demo --yes

test: setup
	$(BIN)/python -m tests.packages
	$(PYTEST) $(or $(TESTS),$(SIDE_BY_SIDE))

test-machines: setup
	$(BIN)/python -m tests.packages
	$(PYTEST) $(SIDE_BY_SIDE) --machines $(or $(SHARD),1/1)

fuzz: setup
	$(BIN)/python -m tests.fuzz.campaign $(or $(N),100000) $(if $(READER),"$(READER)")

packages: setup
	$(BIN)/python packaging/build.py dist $(if $(MAINTAINER),--maintainer "$(MAINTAINER)")

setup: $(VENV)/.complete

# The stamp is written last, so that an interrupted setup starts over and a complete one is not repeated.
$(VENV)/.complete: pyproject.toml lab/pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "error: gdsdeploy needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 4; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	    { echo "error: this Python cannot make virtual environments. On Debian: sudo apt-get install python3-venv" >&2; exit 4; }
	@echo "‣ Python packages of requirements-dev.lock go into $(VENV)/ (about 650 MB, half a minute)"
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes --requirement requirements-dev.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable . --editable lab
	@touch $@

# Resolves the development set anew, with the sha256 of each file: setup takes no other.
lock: setup
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --group dev --no-header --no-annotate --generate-hashes \
	    --output-file requirements-dev.lock pyproject.toml

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache
