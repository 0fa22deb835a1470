# `make demo` and `make test` set up what they need in .venv, once.
PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo
# What TensorFlow says of missing GPUs would bury the progress bars.
export TF_CPP_MIN_LOG_LEVEL ?= 3
# Compiling is what takes JAX long; without fusion emitters it takes a third less.
XLA_FLAGS ?= --xla_cpu_use_fusion_emitters=false

# `make student TEXTS=texts.txt` shrinks SOURCE to these sizes and heals it.
STUDENT := runs/student
SOURCE ?= sentence-transformers/all-MiniLM-L6-v2
TEXTS ?=
HIDDEN_DIM ?= 384
NUM_LAYERS ?= 4
# Texts of random words teach those that TEXTS lack.
RANDOM_TEXTS ?= 0
SHRUNK = $(STUDENT)/shrunk_$(HIDDEN_DIM)x$(NUM_LAYERS)
HEALED = $(STUDENT)/healed_$(HIDDEN_DIM)x$(NUM_LAYERS)

# `make notebooks NOTEBOOKS='1_*'` runs one.
NOTEBOOKS ?= *
CHOSEN = $(sort $(patsubst colab/%.py,%,$(wildcard $(NOTEBOOKS:%=colab/%.py))))

.PHONY: help setup demo student test test-slow lint format docs docs-serve \
	notebooks clean

help: ## Say what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

setup: .venv/installed ## Install everything into .venv

# Dependency groups came with pip 25.1.
.venv/installed: constraints.txt setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Python 3.11 to 3.13 is needed, $(PYTHON) is {v[0]}.{v[1]}. Choose another: make setup PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[pictures,retrieval]' --group training --group beam \
		--group export --group test
	@touch $@

# The demo reads the docstrings of what .venv holds; mypy's are not for it.
.venv/mypy/installed: .venv/installed
	$(BIN)/python -m venv .venv/mypy
	.venv/mypy/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	.venv/mypy/bin/python -m pip install --quiet --constraint constraints.txt \
		--group types
	@touch $@

.venv/docs/installed: constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	.venv/docs/bin/python -m pip install --quiet --constraint constraints.txt \
		--group docs
	@touch $@

# PyTorch and TensorFlow can crash when one process imports both.
.venv/torch/installed: .venv/installed
	$(BIN)/python -m venv .venv/torch
	.venv/torch/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	.venv/torch/bin/python -m pip install --quiet --constraint constraints.txt \
		--group without-tensorflow torch bm25s faiss-cpu ir-measures matplotlib \
		psutil pytest PyStemmer PyYAML tensorboard
	.venv/torch/bin/python -m pip install --quiet --constraint constraints.txt \
		--no-deps keras-hub
	@touch $@

demo: setup ## From real text to a served, searched encoder
	$(BIN)/python -m training.prepare pairs --output $(DEMO)/data
	$(BIN)/python -m training.finetune --config demo_retrieval \
		--data $(DEMO)/data --workdir $(DEMO)/train
	$(BIN)/python -m export.saved_model --model $(DEMO)/train/preset \
		--output $(DEMO)/models/docstrings
	$(BIN)/python -m export.search --collection $(DEMO)/data/heldout \
		--serve $(DEMO)/models/docstrings --model_name docstrings \
		--output $(DEMO)

student: setup ## A smaller MiniLM, from TEXTS, files with a text a line
	@test -n '$(TEXTS)' || { echo "TEXTS names files with a text a line: make student TEXTS='a.txt b.txt'" >&2; exit 2; }
	mkdir -p $(STUDENT)
	cat $(TEXTS) > $(STUDENT)/texts.txt
	test -e $(STUDENT)/teacher || $(BIN)/python -m training.convert \
		--source $(SOURCE) --output $(STUDENT)/teacher
	test -e $(SHRUNK) || $(BIN)/python -m training.shrink \
		--source $(STUDENT)/teacher --hidden_dim $(HIDDEN_DIM) \
		--num_layers $(NUM_LAYERS) --calibration_tokens 80000 \
		--sequence_length 128 --calibration $(TEXTS) --output $(SHRUNK)
	$(BIN)/python -m training.distill --config heal --init $(SHRUNK) \
		--teacher $(STUDENT)/teacher --data $(STUDENT)/texts.txt \
		--random_texts $(RANDOM_TEXTS) --workdir $(HEALED)

test: setup ## Run the tests on TensorFlow, the library's on JAX too
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
		--no-loadscope-reorder
	KERAS_BACKEND=jax JAX_DISABLE_MOST_OPTIMIZATIONS=1 XLA_FLAGS='$(XLA_FLAGS)' \
		JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.pytest_cache/jax \
		JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 \
		$(BIN)/python -m pytest --numprocesses 2 --dist loadfile \
		-m "not slow and not any_backend" tests/keras_fixedhead

test-slow: setup .venv/torch/installed ## Run what takes long or wants real data, and PyTorch
	$(BIN)/python -m pytest -m slow
	KERAS_BACKEND=torch .venv/torch/bin/python -m pytest \
		-m "not slow and not any_backend" tests/keras_fixedhead

lint: setup .venv/mypy/installed ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	.venv/mypy/bin/mypy --python-executable $(BIN)/python

format: setup ## Mend style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: .venv/docs/installed ## Build the site in build/site
	.venv/docs/bin/zensical build --clean --strict

docs-serve: .venv/docs/installed ## Show the site, while you write
	.venv/docs/bin/zensical serve

# Cell ids are random, and format 4.4 has none: the same text, the same bytes.
colab/%.ipynb: colab/%.py .venv/installed
	$(BIN)/jupytext --quiet --to ipynb --output - --update-metadata '{"jupytext": null, "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}' $< > $@.new
	sed -e '/^   "id": /d' -e 's/"nbformat_minor": 5/"nbformat_minor": 4/' $@.new > $@
	rm $@.new

# They clone this clone: commit first, and not from a shallow one.
notebooks: $(CHOSEN:%=run-notebook-%) ## Write colab/*.ipynb, run each in a fresh environment

# As on Colab, the environment has Jupyter; the notebook installs the rest.
run-notebook-%: colab/%.ipynb
	rm -rf .venv/notebooks/$* runs/notebooks/$*
	mkdir -p runs/notebooks/$*
	$(PYTHON) -m venv .venv/notebooks/$*
	.venv/notebooks/$*/bin/python -m pip install --quiet --constraint constraints.txt --upgrade pip
	.venv/notebooks/$*/bin/python -m pip install --quiet --constraint constraints.txt \
		--group notebooks
	sed 's|REPOSITORY_URL|file://$(CURDIR)|g' $< > runs/notebooks/$*/$*.ipynb
	cd runs/notebooks/$* && PATH="$(CURDIR)/.venv/notebooks/$*/bin:$$PATH" \
		jupyter execute --inplace --timeout=1200 $*.ipynb
	rm -rf .venv/notebooks/$*

clean: ## Remove what the demo made
	rm -rf $(DEMO)
