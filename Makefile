# make demo and make test need only Python 3.10+, a C++ compiler and pip.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(wildcard $(addprefix laconic/kernels/,*.inc */*.inc */*.h */*.cpp))

.PHONY: demo test lint bench clean

demo: $(READY)  ## train side by side over a slow link and write demo/report.html
	rm -rf demo
	$(BIN)/laconic compare --out demo

test: lint  ## lint, types and every test
	$(BIN)/pytest -n 2 --durations 30

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_rooms.py

bench: $(READY)
	$(BIN)/python -m benchmarks.ops

$(READY): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build demo
