# Two commands for a newcomer: `make demo` and `make test`. Each sets up .venv first.
#
#   make demo [SEED=2] [ARGS="--no-exploration"]   the whole loop on this machine -> demo-out/
#   make test [ARGS="-k control"]                  check, aot, then all tests that need no GPU
#   make check                                     format, lint, types, import contracts
#   make chaos [SEED=2] [ARGS="--seconds 120"]     a run under fire; what was committed must stand
#   make fuzz [SEED=2] [FRAMES=200000]             mutated frames: refused, and nothing else
#   make mutants [ARGS="--only ledger"]            broken fleet code: the tests must notice
#   make aot [ARGS="--match adaln"]                compile every kernel for three GPUs, without one
#   make bench                                     every script in benchmarks/; 69 means no GPU
#   make results TRACES=DIR [ARGS=--quick]         docs/results.md: simulated, beside the paper
#   make test-gpu                                  tests that need a CUDA device
#   make pretrain [SEED=0] [OUT=DIR]               the embedded model again, from nothing
#   make clean                                     remove what make has made, .venv too
#
# PYTHON chooses the interpreter (3.11 or newer). Without a GPU, torch's CPU build is a tenth of
# the download: set PIP_EXTRA_INDEX_URL to PyTorch's CPU index (its install page names it).

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
OUT ?= pretrain-out

# The first of these that is new enough.
NAMES := python3 python3.14 python3.13 python3.12 python3.11
IS_NEW := -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
PYTHON ?= $(firstword $(foreach name,$(NAMES),$(shell $(name) $(IS_NEW) && echo $(name))))

.PHONY: demo test check chaos fuzz mutants aot bench results test-gpu pretrain setup clean
.DEFAULT_GOAL := test

demo: $(STAMP)
	$(BIN)/python -m spotlightd.demo --seed $(or $(SEED),1) --out demo-out $(ARGS)

test: check
	$(BIN)/python scripts/aot.py
	$(BIN)/python -m pytest $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --seed $(or $(SEED),1) $(ARGS)
	$(BIN)/python -m tests.chaos.transfers --seed $(or $(SEED),1)

fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --seed $(or $(SEED),1) --frames $(or $(FRAMES),200000)

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

aot: $(STAMP)
	$(BIN)/python scripts/aot.py $(ARGS)

bench: $(STAMP)
	@set -e; for script in benchmarks/[!_]*.py; do \
		echo "== $$script"; $(BIN)/python $$script $(ARGS) || test $$? -eq 69; \
	done

# Bamboo's repository has them under traces/ and traces/gcloud/; docs/results.md says more.
NAMED := p3-trace.csv g4dn-trace.csv a100x1-east1b.txt
results: $(STAMP)
	@test -n "$(TRACES)" || { \
		echo "name the folder that holds $(NAMED): make results TRACES=DIR" >&2; exit 1; }
	$(BIN)/python benchmarks/paper.py $(foreach name,$(NAMED),--trace $(TRACES)/$(name)) $(ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(ARGS)

pretrain: $(STAMP)
	$(BIN)/python scripts/pretrain.py --out $(OUT) --seed $(or $(SEED),0) $(ARGS)

setup: $(STAMP)

# torch comes first and alone: once its version stands, nothing later can pull in another build.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { \
		echo "Python 3.11 or newer is needed and none of '$(NAMES)' is one: install it, or name" \
			"it with make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make virtual environments: install python3-venv (Debian and" \
			"Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,pretrain]'
	@touch $@

clean:
	rm -rf $(VENV) build dist demo-out pretrain-out .mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
