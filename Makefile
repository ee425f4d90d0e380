# Two commands set up everything on a fresh machine: `make demo` and `make test`.
# They need Python >= 3.10 with venv, and a C++17 compiler.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# One stamp for each set of extras, renewed when what is compiled or required changes.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(shell find cpp -name '*.cpp' -o -name '*.h')

.PHONY: demo test quick-test slow-test lint sanitize clean

demo: $(VENV)/.eval
	$(BIN)/ntk-alibi eval

test: lint quick-test slow-test

quick-test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto -m "not slow"

slow-test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto -m slow

lint: $(VENV)/.lint
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pre-commit run --all-files --show-diff-on-failure

$(VENV)/.eval: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt ".[eval]"
	touch $@

$(VENV)/.test: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test]"
	touch $@

$(VENV)/.lint: $(VENV)/.test
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test,lint]"
	touch $@

clean:
	rm -rf $(VENV) build
