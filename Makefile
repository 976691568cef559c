# Two commands do everything on a machine that has Python 3.11 to 3.13 and make:
#   make book    -> _build/html/index.html          make test    -> proves what the book says
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help book test test-browser lab execute bench lint format lock mechanisms clean

BIN := .venv/bin
INSTALLED := .venv/.installed
BUILT := _build/html/.built
BOOK_SOURCES := _config.yml _toc.yml $(wildcard notebooks/*.ipynb) \
  $(shell find book momentdp results -type f -not -path '*/__pycache__/*' -not -path '*/.*' 2>/dev/null)

# Found by running it: a version manager's shim can be on PATH and still refuse to run.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))

# Tests and notebooks run two at a time on two cores, so each gets one thread of linear algebra;
# with one thread the last digits do not depend on the number of cores either.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: $(BUILT) ## build and check the book: _build/html/index.html
test: $(INSTALLED) ## unit tests, every notebook against its stored outputs, guard tests
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist loadfile
test-browser: $(BUILT) ## the built pages in headless Chromium; skipped where there is none
	$(ONE_THREAD) BOOK_SITE=$(dir $(BUILT)) $(BIN)/python -m pytest -n 2 -rs tests/browser
lab: $(INSTALLED) ## open the chapters in JupyterLab
	$(BIN)/jupyter lab notebooks
execute: $(INSTALLED) ## re-run all notebooks and store their outputs
	$(ONE_THREAD) $(BIN)/python book/tools/execute.py $(wildcard notebooks/*.ipynb)
bench: $(INSTALLED) ## measured ratios against the literal formulas and other libraries
	@for file in benchmarks/bench_*.py; do $(ONE_THREAD) $(BIN)/python $$file || exit 1; done
mechanisms: $(INSTALLED) ## rebuild the committed strategies with their optimisers
	$(ONE_THREAD) $(BIN)/python -m momentdp.studies.strategies
lint: $(INSTALLED) ## ruff and codespell, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
format: $(INSTALLED) ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
lock: $(INSTALLED) ## resolve pyproject.toml into requirements.lock again
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --all-extras pyproject.toml -o requirements.lock
clean: ## remove the built book, not the environment
	rm -rf _build

# The chapters must hold the outputs of the code that they show; whether `momentdp` still gives these
# outputs is what `make test` proves. The stamp is touched only after a build without warnings and a site check without problems; all
# pages are read each time, since an incremental build forgets the warnings of unchanged pages.
$(BUILT): $(INSTALLED) $(BOOK_SOURCES)
	$(BIN)/python book/tools/execute.py --check $(wildcard notebooks/*.ipynb)
	rm -rf _build
	$(BIN)/jupyter-book build . --all -W -n --keep-going
	$(BIN)/python book/tools/check_site.py _build/html
	@touch $@

# uv where it is on PATH, plain pip else. Two installs, since pip refuses `-e .` beside hashes.
# Matplotlib's list of fonts is made here: made in a notebook, it would write to stderr.
$(INSTALLED): requirements.lock pyproject.toml
	@set -e; rm -f $@; found=; uv=$$(command -v uv || true); \
	if ! $(BIN)/python -c '$(SUPPORTED)' 2>/dev/null; then \
	  for python in $(PYTHON) python3.13 python3.12 python3.11 python3; do \
	    if $$python -c '$(SUPPORTED)' 2>/dev/null && { test -n "$$uv" || $$python -c 'import ensurepip' 2>/dev/null; }; \
	    then found=$$python; break; fi; \
	  done; \
	  if test -z "$$found"; then \
	    echo "No Python 3.11 to 3.13 with venv found. Install one (on Debian: python3 and python3-venv)" >&2; \
	    echo "or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; \
	  fi; \
	  rm -rf .venv; \
	  if test -n "$$uv"; then "$$uv" venv --quiet --seed --python "$$(command -v $$found)" .venv; \
	  else $$found -m venv .venv; fi; \
	fi; \
	if test -n "$$uv"; then pip="$$uv pip install --quiet --python $(BIN)/python"; \
	else pip="$(BIN)/python -m pip install --quiet --disable-pip-version-check"; fi; \
	set -x; \
	$$pip --require-hashes -r requirements.lock; \
	$$pip --no-deps --no-build-isolation -e .; \
	$(BIN)/python -c 'import matplotlib.font_manager'
	@touch $@
