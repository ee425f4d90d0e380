# Two commands set up everything on a fresh machine: `make demo` and `make test`.
# They need Python >= 3.10 with venv, and a C++17 compiler.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

COMMA := ,

# One stamp for each set of extras, renewed when what is compiled or required changes.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt $(shell find cpp -name '*.cpp' -o -name '*.h')
PIP := $(BIN)/python -m pip install -q -c constraints.txt

# torch without CUDA, which PyPI does not have for Linux; PyPI's, where this index is out of reach.
TORCH := $(PIP) --no-deps --retries 0 --index-url https://download.pytorch.org/whl/cpu torch || true

# Workers take over what others have left, so that the longest tests do not end alone.
PYTEST := $(BIN)/python -m pytest -q -n auto --dist worksteal --durations 20 --durations-min 1

.PHONY: demo test test-all newest oldest versions gpu-test fuzz vllm-test peer-tests windows-test macos-build lint docs docs-links sanitize emulate clean

demo: $(VENV)/.demo
	$(BIN)/ntk-alibi demo

# Lint, and the core of the tests: each feature once, in its smallest form, on one instruction set.
test: lint
	$(PYTEST) -m "not slow and not gpu" --doctest-ignore-import-errors

# Then grids, every instruction set, torch.compile, processes, the harness, notebooks, the site, wheels.
test-all: test emulate $(VENV)/.test-all
	$(PYTEST) -m "slow and not gpu"

# The quick tests with the newest of everything that pip finds, and the notebooks, which users get
# that way; the quick tests with the lowest versions that pyproject.toml allows. Each has an
# environment of its own; torch from PyPI has some gigabytes.
OLDEST := "torch==2.9.*" "numpy==1.26.*" "transformers==5.4.*" "tokenizers<=0.23.0" "huggingface-hub<2"

newest oldest:
	$(PYTHON) -m venv --clear build/$@
	build/$@/bin/python -m pip install -q --upgrade -e ".[test$(if $(filter newest,$@),$(COMMA)notebook)]" $(if $(filter oldest,$@),$(OLDEST))
	build/$@/bin/python -m pip freeze
	build/$@/bin/python -m pytest -q -n auto --dist worksteal -m "not slow and not gpu" \
	  --doctest-ignore-import-errors tests
	$(if $(filter newest,$@),build/$@/bin/python -m pytest -q -n auto -m slow tests/test_notebooks.py)

# The quick tests of patched models with versions of transformers between the oldest and the newest,
# each in an environment of its own, which borrows all other packages from $(VENV).
VERSIONS ?= 5.8.1 5.12.1 5.15.1 5.20.2

versions: $(VENV)/.test
	NTK_ALIBI_VERSIONS="$(VERSIONS)" $(PYTEST) -m slow tests/integrations/test_versions.py

# On a machine with a CUDA device and a torch for it, in the environment GPU_PYTHON: kernels, gradients
# and generation there against float64 on the CPU. Without a device every test is skipped.
GPU_PYTHON ?= $(BIN)/python

gpu-test: $(VENV)/.test
	$(GPU_PYTHON) -m pytest -m gpu -rs tests/fused/tensors/devices

# Random calls against formulas written anew, on every instruction set: `make fuzz MINUTES=60`.
# A fresh seed is drawn and printed, unless SEED= gives one.
MINUTES ?= 5

fuzz: $(VENV)/.test
	$(BIN)/python -m fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# The tests that start vLLM, in an environment of its own; each engine takes half a minute to start.
# WRITE=1 puts what they measured into the table of benchmarks/results/vllm.md.
vllm-test: $(VENV)/.test
	NTK_ALIBI_VLLM_ALL=1 NTK_ALIBI_VLLM_WRITE=$(WRITE) $(BIN)/python -m pytest -m slow tests/engines/vllm/test_engine.py

# transformers' own tests of the model families, stock and on patched models: of a checkout at the
# installed version, `make peer-tests TRANSFORMERS=path`, or of a clone of its tag.
peer-tests: $(VENV)/.test
	$(PIP) datasets httpx parameterized requests
	PYTHONPATH=tests/by_hand $(BIN)/python -m peers $(if $(TRANSFORMERS),--transformers "$(TRANSFORMERS)")

# Wheels for Windows, built by zig's clang and tested in Windows' own Python under Wine; the library,
# the C++ tests and the module for macOS, built and not run. Debian and PyPI have all that they need.
windows-test macos-build: $(VENV)/.test
	$(PIP) ninja pybind11 scikit-build-core uv wheel ziglang
	PYTHONPATH=tests/by_hand:tests/shared $(BIN)/python -m desktops.$(firstword $(subst -, ,$@)) $(TESTS)

lint: $(VENV)/.test
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pre-commit run --all-files --show-diff-on-failure

# The site, in build/docs, without a network. Broken links between pages are warnings, and so errors;
# `docs-links` asks the network whether the others lead somewhere.
SPHINX := $(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky

docs: $(VENV)/.docs
	$(SPHINX) -b html docs build/docs

docs-links: $(VENV)/.docs
	$(SPHINX) -b linkcheck docs build/docs-links

# A module that is built otherwise, in a virtual environment of its own in a folder, which borrows all
# other packages from $(VENV): $(call module,FOLDER,OPTIONS).
PACKAGES := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
define module
$(BIN)/python -m venv --without-pip $(1)/venv
own=$$($(1)/venv/bin/python $(PACKAGES)) && \
$(BIN)/python $(PACKAGES) > $$own/borrowed.pth && \
CXX=g++ $(BIN)/python -m pip install -q --no-deps --upgrade --target $$own -C build-dir=$(1)/module $(2) .
endef

# The C++ tests with g++'s sanitizers of memory, undefined behaviour and threads; then the Python tests
# of biases and kernels, and ten thousand cases of the fuzzer, on a module built with the first two.
SANITIZED := build/sanitize
SANITIZED_TESTS := tests/biases tests/fused tests/test_core.py tests/test_runtime.py
SANITIZED_PYTHON := ASAN_OPTIONS=detect_leaks=0 \
  LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
  $(SANITIZED)/venv/bin/python

sanitize: $(VENV)/.test
	$(BIN)/python -m pytest -m slow tests/test_compilers.py -k "address or thread"
	$(call module,$(SANITIZED),-C cmake.build-type=Debug -C cmake.define.NTK_ALIBI_SANITIZE=address$(COMMA)undefined)
	$(SANITIZED_PYTHON) -m pytest -n auto -m "not slow or grid" --hypothesis-profile=sanitize \
	  $(SANITIZED_TESTS)
	$(SANITIZED_PYTHON) -m fuzz --cases 10000

# Tests of kernels, and cases of the fuzzer, on kernels for AMX that any processor runs.
EMULATED := build/emulate
EMULATED_PYTHON := NTK_ALIBI_ISA=amx $(EMULATED)/venv/bin/python

emulate: $(VENV)/.test
	$(call module,$(EMULATED),-C cmake.define.NTK_ALIBI_EMULATE_AMX=ON -C cmake.define.NTK_ALIBI_ISAS=amx)
	$(EMULATED_PYTHON) -m pytest -q -n auto -m "not slow or grid" --hypothesis-profile=sanitize \
	  tests/fused tests/biases
	$(EMULATED_PYTHON) -m fuzz --cases 2000

# The demo's kernels: of this machine alone, where /proc tells it, which is a third less to compile.
ISA := $(or $(shell grep -owm1 avx512_bf16 /proc/cpuinfo),$(shell grep -owm1 avx2 /proc/cpuinfo))
KERNELS := $(if $(ISA),-C cmake.define.NTK_ALIBI_ISAS=$(ISA))

$(VENV)/.demo: $(SOURCES)
	@echo "The demo installs 1.1 GB of packages and builds the kernels, then reads for a minute."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(TORCH)
	$(patsubst -q,,$(PIP)) --no-compile -C build-dir=build/demo $(KERNELS) ".[transformers]"
	touch $@

$(VENV)/.test: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(TORCH)
	$(PIP) -e ".[test,lint]"
	touch $@

# These add packages to the build that is there.
$(VENV)/.test-all $(VENV)/.docs: $(VENV)/.%: $(VENV)/.test
	$(PIP) "ntk-alibi[$*]"
	touch $@

clean:
	rm -rf $(VENV) build
