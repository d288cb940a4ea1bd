# 'make run' and 'make test' need git, make, and Python 3.11 or newer with venv, and nothing else.

PYTHON ?= python3
VENV := .venv
INSTALL := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints.txt

SECONDS ?= 60
WORKERS ?= 3

.PHONY: run test fuzz bench docs lint clean

run: $(VENV)/.installed
	@examples/run.sh

test: $(VENV)/.installed-tests $(if $(filter true,$(CI)),$(VENV)/.installed-fuzz)
	$(VENV)/bin/pytest -n $(WORKERS) --dist loadfile

# Looks for packets that break topodns for SECONDS, and goes on where the last run ended.
fuzz: $(VENV)/.installed-fuzz
	$(VENV)/bin/python -m tests.fuzz --seconds $(SECONDS) --keep .cache/fuzz

bench: $(VENV)/.installed-bench
	$(VENV)/bin/python -m bench

# Renews the pages that are made from code. A test fails while one of them is stale.
docs: $(VENV)/.installed-tests
	$(VENV)/bin/python -m tests.architecture_page > docs/architecture.md
	$(VENV)/bin/python -m tests.comparison > docs/compared-with-coredns.md
	$(VENV)/bin/python -m tests.doctor_page > docs/doctor.md
	$(VENV)/bin/python -m tests.findings_page > docs/findings.md
	$(VENV)/bin/python -m tests.metrics_page > docs/metrics.md
	$(VENV)/bin/python -m tests.grafana_dashboard > manifests/chart/files/monitoring/dashboard.json

lint: $(VENV)/.installed-tests
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info native/target dnsserver/net/*.so

# Created anew whenever the dependencies or the native code change. Native code from before would still be used if it
# could not be built again.
$(VENV)/.installed: pyproject.toml constraints.txt native/Cargo.toml $(wildcard native/src/*.rs)
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "topodns needs Python 3.11 or newer with venv (on Debian: apt install python3-venv);" \
	        "found $$($(PYTHON) --version 2>/dev/null || echo nothing) as '$(PYTHON)'." \
	        "Name another one so: make PYTHON=python3.12" >&2; exit 1; }
	rm -f dnsserver/net/*.so
	$(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) setuptools setuptools-rust
	$(INSTALL) --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-tests: $(VENV)/.installed
	$(INSTALL) --no-build-isolation -e '.[test]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-tests
	$(INSTALL) --no-build-isolation -e '.[test,bench]'
	@touch $@

$(VENV)/.installed-fuzz: $(VENV)/.installed-tests
	$(INSTALL) --no-build-isolation -e '.[test,fuzz]'
	@touch $@
