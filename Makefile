# Everything runs from a fresh clone with Python 3.11 or newer and make; the rest goes into .venv.

PYTHON ?= python3
JOBS ?= 2
ARGS ?=
DEMO ?= results/quick
BENCH ?= dynamics spherical kernel many_classes training importing explorer

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
PARTIAL := $(VENV)/.setup-running
LOG := $(VENV)/setup.log

.DEFAULT_GOAL := help
.PHONY: help demo test setup lint types format bench build docs notebooks clean distclean FORCE

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PYTHON=python3.12  the interpreter a new .venv is made from ($(PYTHON))"
	@echo "  JOBS=4             test processes ($(JOBS))"
	@echo "  ARGS='-k flow'     more arguments for pytest, the benchmark or the demo"

demo: setup ## Set up, test every claim of the paper, make its numerical figures, train a few networks, and write a report
	@$(BIN)/unhinge verify --out $(DEMO)
	@$(BIN)/unhinge reproduce numerical collapse beyond-long-tailed-steps --scale quick --out $(DEMO) $(ARGS)
	@echo "The report: $(CURDIR)/$(DEMO)/report.html"

# One thread for each process: the test processes already fill the cores.
test: lint types ## Lint, check types, run every test and doctest
	@echo "== pytest"
	@OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MPLBACKEND=Agg \
		$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

lint: setup ## Check style and formatting with ruff
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check . || { echo "'make format' rewrites them."; exit 1; }

types: setup ## Check types with mypy
	@echo "== mypy"
	@$(BIN)/mypy

format: setup ## Fix what ruff can fix, and format
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: setup ## Measure speed and accuracy beside our peers (half an hour; one script: make bench BENCH=dynamics)
	@for name in $(BENCH); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py $(ARGS) || exit 1; done

docs: setup ## Build the documentation, offline, warnings as errors (ARGS=--fast: no figures, no verdicts)
	@MPLBACKEND=Agg $(BIN)/python docs/build.py $(ARGS)

notebooks: setup ## Make the notebooks of the examples again (minutes)
	@OMP_NUM_THREADS=1 $(BIN)/python examples/notebooks/build.py $(ARGS)

build: setup ## Build the wheel and the sdist into dist/
	@$(BIN)/python -m build --no-isolation --outdir dist .

setup: $(STAMP) ## Make .venv with everything in it (nothing to do when up to date)

clean: ## Remove caches and build output
	rm -rf build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -type d -name __pycache__ -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## Remove .venv as well
	rm -rf $(VENV)

# The stamp holds the folder it was made in, because a copied or moved .venv still points at the
# old one: such a stamp, or one without a working interpreter, does not count.
ifneq ($(shell test -x $(BIN)/python && cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

# $(PARTIAL) lies there while pip works, and becomes the stamp at the end. Found at the start, it
# tells that an earlier run was cut short, maybe within a package: then all is made anew. Written
# first, it also dates the stamp to the start, so that an edit made meanwhile is seen the next time.
# Where pip itself gives up (no network, versions in conflict), what is installed is whole: kept.
install = trap 'exit 1' INT TERM; \
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off \
		-c constraints.txt $(1) >$(LOG) 2>&1 || { cat $(LOG) >&2; rm -f $(PARTIAL); exit 1; }

# The explorer's tests drive a real browser. Where it can be installed, it is; where not, the reason is kept and those
# tests skip with it.
chromium = rm -f $(VENV)/.no-chromium; \
	if command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; then :; \
	elif ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ]; then \
		echo "install chromium for the explorer's tests (make setup could not: no apt-get, or not root)" >$(VENV)/.no-chromium; \
	else echo "== installing chromium, for the explorer's tests"; \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y --no-install-recommends chromium; } \
			>$(VENV)/chromium.log 2>&1 || \
		echo "apt-get install chromium failed in make setup; see $(VENV)/chromium.log" >$(VENV)/.no-chromium; fi

# torch comes first and by its pin, since a bare torch may be a build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "$(PYTHON) was not found; name another one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "unhinge needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1);" \
			"name another one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@mkdir -p $(VENV)
	@if [ -e $(PARTIAL) ] || [ "$$(cat $(STAMP) 2>/dev/null || echo "$(CURDIR)")" != "$(CURDIR)" ] \
			|| ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		echo "== making $(VENV) with $$($(PYTHON) -V)"; touch $(PARTIAL); \
		find $(VENV) -mindepth 1 -maxdepth 1 ! -name $(notdir $(PARTIAL)) -exec rm -rf {} + && \
		$(PYTHON) -m venv $(VENV); fi
	@printf '%s\n' "$(CURDIR)" >$(PARTIAL)
	@echo "== installing torch (minutes, when it has to be downloaded)"
	@$(call install,torch)
	@echo "== installing unhinge and its development tools"
	@$(call install,-e '.[dev]')
	@$(chromium)
	@mv -f $(PARTIAL) $(STAMP)
