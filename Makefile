# `make test` and `make demo` need Debian's python3 and python3-venv; the rest they set up in .venv.
# `make test TF=2.20` tests with that release of TensorFlow and whatever else is newest, in
# .venv-tf2.20; `make test PYTHON=python3.13 VENV=.venv-3.13` with another Python.

PYTHON ?= python3
VENV := .venv$(TF:%=-tf%)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PEERS := $(VENV)/.peers-installed
NODE_PACKAGES := tests/peers/node_modules/.package-lock.json
TPU_BIN := .venv-tpu/bin
TPU_INSTALLED := .venv-tpu/.installed
TPU_JAX_BIN := .venv-tpu-jax/bin
TPU_JAX_INSTALLED := .venv-tpu-jax/.installed
SCALE ?= smoke

# Builds source packages in an isolated environment even where pip is as old as Debian 12's: without
# it, seqeval's setup.py would run with whatever setuptools the environment came with.
PIP_INSTALL := install --quiet --use-pep517

# Two workers that take tests from each other.
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal

# TensorFlow's start-up messages say nothing about this project.
export TF_CPP_MIN_LOG_LEVEL ?= 3

RELEASE_INSTALLED := .venv-release/.installed
# TensorFlow 1.15's last Python.
PYTHON37 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.7.*/bin/python3) python3.7)

.PHONY: demo test test-all test-python test-peers test-research lint docs format bench \
  bench-finetune bench-serving bench-serving-table bench-server bench-embedding bench-faster campaign mutants \
  tpu-check study speedrun beside-release reproduce findings

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py

test: $(if $(TF),$(INSTALLED),lint)
	$(PYTEST) -m 'not peers and not slow'

# Also the tests that take longest: more runs on JAX and in several processes, kernels, the wheel.
test-all: $(if $(TF),$(INSTALLED),lint)
	$(PYTEST) -m 'not peers'

# The tests whose results may differ between Pythons, or releases of NumPy and JAX: `make test-python
# PYTHON=python3.13 VENV=.venv-3.13`, after `make test-all` with another Python.
test-python: $(INSTALLED)
	$(PYTEST) -m 'not peers' \
	  $(addprefix tests/,model training records storage answers console test_scripts.py)

# The tests that need the real transformers, torch, KerasHub, onnxruntime or Beam: 1 GB if pip finds
# torch's CPU build, several GB otherwise. Those of JavaScript (another 0.5 GB) are skipped without
# Debian's nodejs, npm and chromium.
test-peers: $(PEERS) $(if $(shell command -v npm),$(NODE_PACKAGES))
	$(BIN)/python -m pytest -n 2 --dist loadfile -m peers

# Makes COUNT random changes of the library, one at a time, and counts how many its tests notice: a
# minute or less for each.
mutants: $(INSTALLED)
	$(BIN)/python -m tools.mutants --count $(or $(COUNT),200) $(ARGS)

# Tells which findings about other libraries still hold. Downloads 1.3 GB if pip finds torch's CPU
# build, several GB otherwise.
findings:
	@failed=; for script in findings/*.sh; do \
	  if sh $$script; then echo "$$script: unchanged"; \
	  else echo "$$script: changed"; failed=1; fi; done; test -z "$$failed"

# The tests of research/: after changes there, and before a release. A release also needs `make
# test-research TESTS=research/tests/test_gpu.py`: a file that is named runs with its slow tests, here
# ten minutes in which all lines of the GPU's benchmark are lowered.
test-research: $(PEERS)
	$(BIN)/python -m pytest -n 2 --dist loadfile $(or $(TESTS),research/tests)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in build/site: docs/, and the docstrings of public names. BUILDER=linkcheck also asks
# for all pages elsewhere that it links to.
docs: $(INSTALLED)
	$(BIN)/pip $(PIP_INSTALL) -e '.[docs]'
	$(BIN)/sphinx-build -q -W --keep-going -b $(or $(BUILDER),html) -c tools/site . build/$(or $(BUILDER),site)

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(PEERS)
	$(BIN)/python research/benchmarks/train_step.py

bench-finetune: $(PEERS)
	$(BIN)/python research/benchmarks/finetune.py

bench-serving: $(PEERS)
	$(BIN)/python research/benchmarks/serving.py

# The table at the head of docs/serving.md.
bench-serving-table: $(PEERS) $(if $(shell command -v npm),$(NODE_PACKAGES))
	$(BIN)/python research/benchmarks/serving_table.py $(ARGS)

# albert-serve with ONNX files and a SavedModel, under load and restarted.
bench-server: $(PEERS)
	$(BIN)/python research/benchmarks/server.py $(ARGS)

# Sentences to vectors; ARGS='--texts sentences.txt'.
bench-embedding: $(PEERS)
	$(BIN)/python research/benchmarks/embedding.py $(ARGS)

# Fewer layers, a teacher, eight bits: ARGS='--checkpoint albert_small --glue glue --only scores'.
bench-faster: $(PEERS)
	$(BIN)/python research/benchmarks/faster.py $(ARGS)

# Half an hour on two cores; ARGS='--minutes 3' for as much as that allows, '--seed 2',
# '--only kills', '--only squad_v1'...
campaign: $(INSTALLED)
	$(BIN)/python -m tools.campaign $(ARGS)

# Installs 3 GB: TensorFlow's TPU kernels come with another TensorFlow build. Needs no TPU.
# BACKEND=jax checks JAX's step, with its own libtpu.
ifeq ($(BACKEND),jax)
tpu-check: $(TPU_JAX_INSTALLED)
	$(TPU_JAX_BIN)/python -m tools.tpu_check.on_jax $(ARGS)
else
tpu-check: $(TPU_INSTALLED)
	$(TPU_BIN)/python -m tools.tpu_check $(ARGS)
endif

# Whole trainings by google-research/albert's own code and by ours, for some hours: `make
# beside-release RELEASE=path/to/its/clone ARGS='--seeds 3'`.
beside-release: $(PEERS) $(RELEASE_INSTALLED)
	$(BIN)/python -m research.beside_release --release $(RELEASE) --python .venv-release/bin/python $(ARGS)

$(RELEASE_INSTALLED):
	$(PYTHON37) -m venv .venv-release
	.venv-release/bin/pip install --quiet tensorflow==1.15.5 tensorflow_hub==0.7.0 \
	  sentencepiece==0.1.99 'protobuf<3.21' six
	touch $@

# Fine-tunes ALBERT base v2 by the paper's recipe, with five seeds, and compares with the published
# score: TASK=sst2, cola, mrpc, rte, stsb, squad_v1, squad_v2 or race. DATA=folder and WEIGHTS=path
# name what need not be downloaded; ARGS='--model albert-xxlarge-v1 --seeds 3', and flags of
# albert-finetune.
reproduce: $(INSTALLED)
	$(BIN)/python -m research.reproduce '$(TASK)' $(if $(DATA),--data '$(DATA)') \
	  $(if $(WEIGHTS),--weights '$(WEIGHTS)') $(ARGS)

# `make study STUDY=sharing SCALE=cpu`; ARGS=--report_only only writes the report.
study: $(INSTALLED)
	@test -n '$(STUDY)' || { \
	  echo "error: name a study: make study STUDY=sharing SCALE=smoke" >&2; exit 1; }
	$(BIN)/python -m research.experiments '$(STUDY)' --scale '$(SCALE)' $(ARGS)

# The best small model that MINUTES of this machine give: `make speedrun MINUTES=15 TEXT=my.txt`.
speedrun: $(INSTALLED)
	$(BIN)/python -m research.speedrun --minutes '$(or $(MINUTES),15)' $(if $(TEXT),--text '$(TEXT)') $(ARGS)

$(INSTALLED): tools/locks/requirements.lock pyproject.toml | $(BIN)/pip
ifdef TF
	$(BIN)/pip $(PIP_INSTALL) -e '.[data,demo,plots,test]' 'tensorflow==$(TF).*'
else
	$(BIN)/pip $(PIP_INSTALL) --require-hashes -r tools/locks/requirements.lock
	$(BIN)/pip $(PIP_INSTALL) --no-deps --no-build-isolation -e .
endif
	@touch $@

# torch is pinned: each release means gigabytes to download, and another peer to compare with.
$(PEERS): $(INSTALLED)
	$(BIN)/pip $(PIP_INSTALL) -e '.[beam,onnx,peers,serving]' 'torch==2.13.*'
	$(BIN)/pip $(PIP_INSTALL) -e '.[clients]'
	@touch $@

# No package's script is run: they would download GPU libraries.
$(NODE_PACKAGES): tests/peers/package-lock.json
	cd tests/peers && npm ci --ignore-scripts --no-audit --no-fund
	@touch $@

$(TPU_INSTALLED): tools/tpu_check/requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || { \
	  echo "error: '$(PYTHON)' is $$($(PYTHON) --version): tpu-check needs Python 3.11 to 3.13;" \
	    "name another one with make PYTHON=python3.13 tpu-check" >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv-tpu
	$(TPU_BIN)/pip $(PIP_INSTALL) --no-deps --require-hashes -r $<
	@touch $@

$(TPU_JAX_INSTALLED): tools/locks/requirements-tpu-jax.lock
	$(PYTHON) -m venv --clear .venv-tpu-jax
	$(TPU_JAX_BIN)/pip $(PIP_INSTALL) --require-hashes -r $<
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
	$(PYTHON) -m venv --clear $(VENV)
