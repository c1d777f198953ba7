# make demo and make test need only Python 3.10+, a C++ compiler and pip.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard $(addprefix laconic/kernels/,*.inc */*.inc */*.h */*.cpp))

CLANG := build/clang
SITE  := import site; print(site.getsitepackages()[0])
CPU_TESTS := $(addprefix tests/kernels/test_,$(addsuffix .py,thc packing plain gennorm gennorm_average coding sign_vote))

.PHONY: demo test lint bench clang faults fuzz clean

demo: $(READY)  ## train side by side over a slow link and write demo/report.html
	rm -rf demo
	$(BIN)/laconic compare --out demo

test: lint  ## lint, types and every test
	$(BIN)/pytest -n 3 --durations 30

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_rooms.py

bench: $(READY)
	$(BIN)/python -m benchmarks.ops

faults: $(READY)  ## what workers make of what goes wrong, 20 trials of each kind: hours; writes docs/faults.md
	$(BIN)/python -m benchmarks.faults --outcomes runs/faults.jsonl --out docs/faults.md

clang: $(if $(shell command -v clang++),$(CLANG)/.ready)  ## the kernels as Clang builds them, under their tests
	$(if $^,$(CLANG)/bin/python -m pytest -q -n 2 $(CPU_TESTS),@echo "skipped: clang++ is not installed")

fuzz:  ## libFuzzer over every decoder in C++, each for SECONDS, 60 unless given
	@$(MAKE) --no-print-directory -f tests/fuzz/targets.mk

# An environment of its own for the extension; everything else is the other's.
$(CLANG)/.ready: $(READY)
	$(BIN)/python -m venv --without-pip $(CLANG)
	$(BIN)/python -c '$(SITE)' > $$($(CLANG)/bin/python -c '$(SITE)')/shared.pth
	CXX=clang++ PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip --python $(CLANG)/bin/python \
	  install --quiet --no-deps --editable . --config-settings build-dir=$(CLANG)/build
	touch $@

$(READY): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build demo
