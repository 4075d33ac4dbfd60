# Two commands for a newcomer: `make demo` and `make test`. Each makes .venv once and uses it again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo_out

# The registered studies (results/protocol.md), search by search.
GRID := out/grid
PROBLEMS := digits logistic sentences documents cells mnist photographs  # those whose target is registered
SEARCHES := 1 2 3 4 5
CONFIRMED := logistic sentences cells mnist documents digits photographs  # those with winners

.PHONY: help demo notebooks test test-long test-extras mutants evidence check lint types format docs bench grid grid-pack confirmation clean

help:
	@echo "make demo    a small study on scikit-learn's digits: table and figures in $(DEMO)/"
	@echo "make notebooks  the notebooks in JupyterLab"
	@echo "make test    the tests: about 5 minutes on two cores"
	@echo "make test-long  the others: crashes, several processes, notebooks, pages' commands"
	@echo "make test-extras  the tests of integrations, whose packages take gigabytes"
	@echo "make mutants  how many small mistakes the tests notice: many hours"
	@echo "make evidence  recomputes every claim from the published records"
	@echo "make check   ruff and pyright"
	@echo "make format  let ruff format and fix"
	@echo "make docs    the documentation site in build/site"
	@echo "make bench   the benchmarks, each against what one would use instead"
	@echo "make grid    the registered studies of results/protocol.md: many hours; resumes"
	@echo "make confirmation  their best settings with new seeds; resumes"

demo: $(VENV)/.installed
	$(BIN)/python sweep.py --config=configs/cifar10.py:mini --study=demo --lanes=4 --outdir=$(DEMO)/study
	$(BIN)/python -m analysis $(DEMO)/study --out=$(DEMO)/report

notebooks: $(VENV)/.installed-notebooks
	$(BIN)/jupyter lab notebooks

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist=loadfile -m "not long and not extras"

test-long: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist=loadfile -m "long and not extras"

mutants: $(VENV)/.installed-dev
	$(BIN)/python -m tests.mutants

evidence: $(VENV)/.installed
	$(BIN)/python -m benchmarks.evidence --check

test-extras: $(VENV)/.installed-extras
	$(BIN)/python -m pytest -m extras

check: lint types

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	rm -rf build/docs
	mkdir -p build/docs
	cp -R README.md CONTRIBUTING.md CHANGELOG.md docs results configs notebooks examples build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.stage
	$(BIN)/python -m benchmarks.input
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.speedup --measure=steps
	$(BIN)/python -m benchmarks.speedup --measure=steps --source=burst
	$(BIN)/python -m benchmarks.speedup
	$(BIN)/python -m benchmarks.scale
	$(BIN)/python -m benchmarks.coverage

# Each process and each search would compile again.
grid confirmation: export JAX_COMPILATION_CACHE_DIR ?= $(GRID)/compiled
grid: $(VENV)/.installed-dev
	for searches in $(SEARCHES); do for problem in $(PROBLEMS); do \
	    nice -n 19 $(BIN)/python sweep.py --config=configs/problems.py:$$problem --study=grid \
	        --outdir=$(GRID)/$$problem --searches=$$searches --workers=2 --lanes=4 \
	        --config.dataset.cache_dir=$(GRID)/vocabularies || exit $$?; \
	done; done

grid-pack: $(VENV)/.installed
	for problem in $(PROBLEMS); do if [ -e $(GRID)/$$problem/study.json ]; then \
	    $(BIN)/python -m analysis $(GRID)/$$problem --pack=results --study=grid/$$problem || exit $$?; \
	fi; done

confirmation: $(VENV)/.installed-dev
	for problem in $(CONFIRMED); do \
	    nice -n 19 $(BIN)/python sweep.py --config=configs/problems.py:$$problem \
	        --study=confirmation --outdir=$(GRID)/confirmation_$$problem --workers=2 \
	        --config.dataset.cache_dir=$(GRID)/vocabularies || exit $$?; \
	    $(BIN)/python -m analysis $(GRID)/confirmation_$$problem \
	        --pack=results --study=grid/confirmation_$$problem || exit $$?; \
	done

clean:
	rm -rf $(VENV) $(DEMO)

$(VENV)/.installed: requirements.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'Python 3.11 or newer is needed, \
	this is %d.%d; try make PYTHON=python3.13' % sys.version_info[:2])"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

$(VENV)/.installed-notebooks: $(VENV)/.installed requirements-notebooks.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-notebooks.txt
	touch $@

$(VENV)/.installed-extras: $(VENV)/.installed-dev requirements-extras.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-extras.txt
	touch $@
