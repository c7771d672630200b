# `make test` and `make demo` need Debian's python3 and python3-venv, and set up the rest in .venv.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PEERS := .venv/.peers-installed

# TensorFlow's notes on start-up say nothing about this project.
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test lint format bench bench-finetune

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Several GB: the contestants of the benchmark are installed for it alone.
bench: $(PEERS)
	$(BIN)/python benchmarks/train_step.py

bench-finetune: $(PEERS)
	$(BIN)/python benchmarks/finetune.py

$(INSTALLED): requirements.lock pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

$(PEERS): $(INSTALLED)
	$(BIN)/pip install --quiet -e '.[peers]'
	@touch $@

$(BIN)/pip:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: '$(PYTHON)' is not there: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || { \
	  echo "error: '$(PYTHON)' is $$($(PYTHON) --version): TensorFlow needs Python 3.10 to 3.13;" \
	    "name another one with make PYTHON=python3.13" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: '$(PYTHON)' can't make a virtual environment: apt-get install python3-venv" >&2; \
	  exit 1; }
	$(PYTHON) -m venv --clear .venv
