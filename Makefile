# Needs make, a C++ compiler and a Python from 3.10 to 3.13 (PYTHON=python3.12 names one);
# everything else goes into .venv and build.

PYTHON ?= python3
# make test-all ARGS="-k loss_scale"; make bench ARGS="gemm layers"; and
# make gallery ONLY=speech_recognition ARGS="--data FILE"
ARGS ?=
# Experiments that make gallery trains, and pairs that make test-versions runs on; without
# one, all.
ONLY ?=
VERSIONS ?=
BACKENDS ?= jax torch

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check
TF_QUIET := TF_CPP_MIN_LOG_LEVEL=2
# A process for each core; four fill the memory of a small machine.
PYTEST := $(RUN) -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

GPU := $(wildcard /dev/nvidia0)
NVCC := $(or $(CUDACXX),$(shell command -v nvcc 2>/dev/null),$(wildcard $(CUDA_PATH)/bin/nvcc))
# Read by setup.py. The CUDA kernels take minutes to compile; to do so without a GPU:
# make KERAS_MP_CUDA=ON
ifndef KERAS_MP_CUDA
KERAS_MP_CUDA := $(if $(and $(GPU),$(NVCC)),ON,OFF)
WITHOUT_NVCC := $(if $(NVCC),,$(GPU))
endif
export KERAS_MP_CUDA
NATIVE := keras_mp/ops/kernels/_keras_mp_ops.so
SOURCES := $(shell find custom_ops -type f)

.PHONY: help bench build-wheel clean demo docs docs-serve gallery gallery-full lint notebook \
	packages-and-test-cpp test test-all test-backends test-cpp test-cpp-arm test-cpp-memory \
	test-cpp-slow test-next test-slow test-versions test-wheel wheel wheel-cuda
.DELETE_ON_ERROR:

help:
	@echo 'make demo           train a small translation model in FP32 and in mixed precision'
	@echo 'make gallery        train the experiments of the paper, small, an hour; one: ONLY=translation'
	@echo 'make gallery-full   train every setting of it that has no result yet; hours, Ctrl-C stops it'
	@echo 'make notebook       run examples/tour.ipynb again and write its outputs into it'
	@echo 'make test           what takes less than a second each; CONTRIBUTING.md has the times'
	@echo 'make test-all       these, the slow tests, and the site'
	@echo 'make test-slow      those of minutes: kills, storms, long runs, all cases of long tables'
	@echo 'make test-versions  those of other versions of TensorFlow, Keras and Python; hours'
	@echo 'make test-backends  those of the optimizer on JAX and PyTorch'
	@echo 'make docs           build the site, strictly, in build/site; make docs-serve shows it'
	@echo 'make wheel          build a wheel and a source distribution in dist, and test them'
	@echo 'make wheel-cuda     the same in dist-cuda, with the CUDA kernels; needs no GPU and no nvcc'
	@echo 'make bench          measure for an hour; writes tables to benchmarks/results'
	@echo 'make lint           check style, format, types and prose'
	@echo 'make clean          remove .venv, build outputs and caches'

demo: $(VENV)/.installed-examples $(NATIVE)
	@$(TF_QUIET) $(RUN) examples/translation/compare.py

gallery: $(VENV)/.installed-examples $(NATIVE)
	@$(TF_QUIET) $(RUN) examples/gallery.py train $(ONLY) $(ARGS)

# Goes on where it was stopped; with what it has recorded, docs/gallery.md is written again.
gallery-full: $(VENV)/.installed-examples $(NATIVE)
	@$(TF_QUIET) $(RUN) examples/gallery.py measure $(ONLY) $(ARGS)
	@$(TF_QUIET) $(RUN) examples/gallery.py tables

notebook: $(VENV)/.installed-examples $(NATIVE)
	@$(TF_QUIET) $(RUN) examples/execute_tour.py

test: packages-and-test-cpp $(NATIVE)
	@$(TF_QUIET) KERAS_MP_OPS=native $(PYTEST) -m 'not slow and not xslow' $(ARGS)

# Layers and optimizers run on the native library, and again in plain TensorFlow: without
# XLA and training, which are the same both times. ARGS may choose none of these: 5.
test_plain = $(TF_QUIET) KERAS_MP_OPS=reference $(PYTEST) -k 'not xla and not graph' -m $(1) \
	tests/layers tests/optimizer/test_optimizers.py tests/optimizer/test_outside_changes.py \
	tests/optimizer/test_overflow.py --ignore tests/layers/test_training.py $(ARGS) \
	|| test $$? -eq 5

test-all: packages-and-test-cpp $(NATIVE) docs
	@$(TF_QUIET) KERAS_MP_OPS=native $(PYTEST) -m 'not xslow' $(ARGS)
	@$(call test_plain,'not slow and not xslow')

# The kernels are compiled and tested while pip, which takes one core, installs.
packages-and-test-cpp: $(VENV)/.created
	@$(MAKE) --no-print-directory --jobs 2 $(VENV)/.keras-hub $(TESTED_CPP)

test-slow: $(VENV)/.keras-hub $(NATIVE) test-cpp-slow
	@$(TF_QUIET) KERAS_MP_OPS=native $(PYTEST) -m xslow \
	  -o faulthandler_timeout=1800 $(ARGS)
	@$(call test_plain,'slow and not xslow')

# The conftest.py of the other tests, which is for TensorFlow, is not read.
test-backends: $(VENV)/.installed-backends
	@set -e; for backend in $(BACKENDS); do \
	  KERAS_BACKEND=$$backend $(PYTEST) --confcutdir tests/backends tests/backends \
	    $(ARGS); \
	done

# Arguments: NAME of build/cpp-NAME, sanitizers, other options of CMake. Without MAKEFLAGS:
# Ninja takes part in no job server, and would say so.
build_cpp = $(VENV)/bin/cmake -G Ninja -S custom_ops -B build/cpp-$(1) \
	-DCMAKE_MAKE_PROGRAM=$(abspath $(VENV))/bin/ninja \
	-DKERAS_MP_TENSORFLOW=OFF -DKERAS_MP_CUDA=OFF -DKERAS_MP_SANITIZE=$(2) $(3) \
	&& MAKEFLAGS= $(VENV)/bin/cmake --build build/cpp-$(1)
ctest = $(VENV)/bin/ctest --parallel 2 --output-on-failure --test-dir
MEMORY := address,undefined

TESTED_CPP := build/custom_ops/.tested

$(TESTED_CPP): $(SOURCES) setup.py | $(VENV)/.created
	@MAKEFLAGS= $(RUN) setup.py --quiet test_cpp
	@touch $@

test-cpp: $(VENV)/.created
	@rm -f $(TESTED_CPP)
	@$(MAKE) --no-print-directory $(TESTED_CPP)

test-cpp-memory: $(VENV)/.created
	@$(call build_cpp,memory,$(MEMORY))
	@$(ctest) build/cpp-memory

test-cpp-arm: $(VENV)/.created
	@$(call build_cpp,arm,,-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake)
	@$(ctest) build/cpp-arm

test-cpp-slow: test-cpp-memory
	@$(call build_cpp,thread,thread)
	@$(ctest) build/cpp-thread
	@for build in thread memory; do build/cpp-$$build/update_cpu_test 5000 || exit 1; done

define tell_of_nvcc
@test -z '$(WITHOUT_NVCC)' || { \
  echo "There is a GPU but no nvcc: the native library gets no CUDA kernels. For them"; \
  echo "install CUDA 12 or newer, put its nvcc into PATH, and build again:"; \
  echo "rm $(NATIVE); make test"; }
endef

$(NATIVE): $(SOURCES) setup.py
	$(tell_of_nvcc)
	@echo "Building the native library; this takes 1 to 3 minutes."
	@rm -f $@
	@MAKEFLAGS= $(RUN) setup.py --quiet build_ext --inplace
	@test -f $@ || { \
	  echo "error: the native library was not built; what is missing is named above." >&2; \
	  exit 1; }

docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet
	@echo 'The site is in build/site.'

docs-serve: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve --dev-addr 127.0.0.1:8000

# auditwheel refuses a platform older than the library needs. manylinux_2_34 is the oldest
# that g++ of Debian 12 builds for; CXX names an older compiler.
PLATFORM ?= manylinux_2_34_x86_64
WHEEL := $(CURDIR)/build/wheel
DIST := dist
# Minor versions of TensorFlow; without one the wheel is for that of .venv.
WHEEL_FOR ?= 2.20 2.21

wheel: build-wheel
	@$(MAKE) --no-print-directory test-wheel WHEEL_FOR='$(WHEEL_FOR)'

# Of pip's compilers that of CUDA 13.0 is the oldest, so the most drivers fit it.
PIP_NVCC := $(CURDIR)/build/nvcc/nvidia/cu13/bin/nvcc
wheel-cuda: NVCC := $(or $(NVCC),$(PIP_NVCC))
wheel-cuda: $(if $(NVCC),,$(PIP_NVCC)) $(VENV)/.installed-wheel
	@label=$$('$(NVCC)' --version | sed -n 's/.* release \([0-9]*\)\..*/+cuda\1/p'); \
	$(MAKE) --no-print-directory wheel DIST=dist-cuda KERAS_MP_VERSION_LABEL=$$label \
	  KERAS_MP_CUDA=ON CUDACXX='$(NVCC)'
	@rm -f dist-cuda/*.tar.gz  # its version would say that it has the kernels

# With the names of a toolkit: nvcc looks for libraries in lib64, and CMake for libcudart.so.
$(PIP_NVCC): | $(VENV)/.created
	@echo "There is no nvcc. Downloading that of CUDA 13.0 (100 MB)."
	@rm -rf build/nvcc build/nvcc.part
	@$(PIP) --no-deps --target build/nvcc.part 'nvidia-nvvm==13.0.*' \
	  $(patsubst %,'nvidia-cuda-%==13.0.*',nvcc crt runtime cccl)
	@ln -s lib build/nvcc.part/nvidia/cu13/lib64
	@ln -s libcudart.so.13 build/nvcc.part/nvidia/cu13/lib/libcudart.so
	@mv build/nvcc.part build/nvcc

# Of the other TensorFlows only the headers and one library are needed.
build-wheel: $(VENV)/.installed-wheel
	@rm -rf $(WHEEL) $(DIST) && mkdir -p $(WHEEL)
	@set -e; folders=; for minor in $(WHEEL_FOR); do \
	  folder=$(CURDIR)/build/tensorflow-$$minor; folders="$$folders:$$folder"; \
	  test -d $$folder && continue; echo "Downloading TensorFlow $$minor (600 MB)."; \
	  $(PIP) --no-deps --target $$folder.part "tensorflow==$$minor.*"; \
	  mv $$folder.part $$folder; \
	done; \
	KERAS_MP_TENSORFLOWS="$${folders#:}" $(RUN) -m build --no-isolation \
	  --outdir $(WHEEL) >$(WHEEL)/log 2>&1 || { tail -n 50 $(WHEEL)/log >&2; exit 1; }
	@PATH=$(abspath $(VENV))/bin:$$PATH $(RUN) -m auditwheel repair --plat $(PLATFORM) \
	  --only-plat --exclude libtensorflow_framework.so.2 --exclude libtensorflow_cc.so.2 \
	  --wheel-dir $(DIST) $(WHEEL)/*.whl
	@mv $(WHEEL)/*.tar.gz $(DIST)

# In a new environment for each TensorFlow, where PATH has no compiler, from a folder where
# `import keras_mp` finds nothing else. make test-wheel PYTHON=python3.13
WHEEL_TESTS := installed test_package.py ops/test_gemm.py optimizer/test_rounding.py \
	optimizer/test_step.py
test-wheel:
	@set -e; for minor in $(or $(WHEEL_FOR),newest); do \
	  wanted="tensorflow==$$minor.*"; \
	  test $$minor != newest || wanted="$$(echo $(DIST)/*.whl)[newest]"; \
	  $(PYTHON) -m venv --clear $(WHEEL)/venv; \
	  $(WHEEL)/venv/bin/pip install --quiet --disable-pip-version-check \
	    'hypothesis>=6.100' 'pytest>=9' "$$wanted" $(DIST)/*.whl; \
	  (cd $(WHEEL) && $(TF_QUIET) PATH=$(WHEEL)/venv/bin venv/bin/pytest -q \
	    -m 'not slow and not xslow' $(WHEEL_TESTS:%=$(CURDIR)/tests/%)); \
	  rm -rf $(WHEEL)/venv; \
	done

# The wheel of dist with each pair of versions; writes the table of docs/versions.md.
# Needs python3.10 to python3.13 on PATH. make test-versions VERSIONS="2.20/3.12 2.18/3.8"
test-versions:
	@test -e dist/*.whl || $(MAKE) --no-print-directory build-wheel
	@$(PYTHON) tests/versions/matrix.py $(VERSIONS)

test-next:
	@$(PYTHON) tests/versions/matrix.py next

bench: $(VENV)/.keras-hub $(NATIVE)
	@$(TF_QUIET) $(RUN) benchmarks/all.py $(ARGS)

lint: $(VENV)/.installed-dev
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(RUN) -m pytest -q --noconftest tests/docs/test_prose.py

clean:
	rm -rf $(VENV) build dist dist-cuda *.egg-info .coverage .hypothesis .mypy_cache \
	  .pytest_cache .ruff_cache keras_mp/ops/kernels/_keras_mp_ops*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What an extra has of the others, which pip need not install after it.
PART_OF_dev := docs examples test
PART_OF_test := examples

$(VENV)/.installed-%: setup.cfg pyproject.toml | $(VENV)/.created
	$(tell_of_nvcc)
	@echo "Installing keras_mp[$*] into $(VENV). The first time downloads TensorFlow"
	@echo "(600 MB) and takes 1 to 10 minutes; later runs skip this step."
	@$(PIP) --no-build-isolation -e '.[newest,$*]' || { \
	  echo >&2; \
	  echo "error: pip could not install keras_mp[$*]; its reason is above." >&2; \
	  echo "If it could not reach a package index: check the network, set HTTPS_PROXY" >&2; \
	  echo "behind a proxy, or name a mirror with PIP_INDEX_URL. Then run make again." >&2; \
	  exit 1; }
	@touch $(addprefix $(VENV)/.installed-,$* $(PART_OF_$*))

# Backbones to convert, without TensorFlow Text; the versions fit those of setup.cfg.
$(VENV)/.keras-hub: $(VENV)/.installed-test
	@$(PIP) --no-deps 'keras-hub>=0.32,<0.33; python_version >= "3.11"'
	@touch $@

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: no '$(PYTHON)' found. Install Python 3.10 to 3.13 (Debian, Ubuntu:" >&2; \
	  echo "apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "error: TensorFlow 2.21 needs Python 3.10 to 3.13." >&2; \
	  echo "Received: $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one: make PYTHON=python3.12" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) has no venv or no ensurepip (Debian, Ubuntu: apt install python3-venv)." >&2; \
	  exit 1; }
	@free=$$(df -Pk . | awk 'NR == 2 { print int($$4 / 1048576) }'); \
	test "$$free" -ge 4 || { \
	  echo "error: the virtual environment needs 4 GB of free disk space." >&2; \
	  echo "Received: $$free GB free in $(CURDIR). Free some space, then run make again." >&2; \
	  exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) 'setuptools>=77' 'cmake>=3.22' 'ninja>=1.10'
	@touch $@
