# `make help` lists the commands. Everything is installed into .venv; every step is skipped while what it depends on is unchanged.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD := build
PIP := $(BIN)/python -m pip --disable-pip-version-check
# $(call pip_install,ARGUMENTS): pip speaks only if it fails.
define pip_install
mkdir -p $(BUILD); $(PIP) install --progress-bar off -c constraints.txt $(1) >$(BUILD)/install.log 2>&1 || { tail -40 $(BUILD)/install.log; exit 1; }
endef
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST_ARGS ?=
BENCH_ARGS ?= --quick
PACKAGES = theseus_py resccl leveller flowsim
CPP_FILES = find csrc tests -name '*.h' -o -name '*.cc' -o -name '*.cuh' 2>/dev/null | sort
SANITIZED = address,undefined
# Folders of tests/unit that asan and tsan run; empty: all. `make tsan SANITIZED_TESTS="transport runtime"`
SANITIZED_TESTS ?=
SANITIZED_BUILD = $(BUILD)/sanitize-$(firstword $(subst $(comma), ,$(SANITIZED)))
# make reads a bare comma as the end of an argument, and drops a bare blank.
comma := ,
space := $(subst ,, )

.PHONY: help demo test lint format tidy build gtest tests-build bench wheel asan tsan sanitized clean distclean

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo build  ## set up, then watch collectives, training, and a job that heals itself
	@$(BIN)/theseus demo

# The closing line is pytest's: it counts the C++ tests too (tests/conftest.py).
test: $(VENV)/.dev tests-build  ## set up, build and run all tests
	@$(BIN)/python -m pytest -q $(PYTEST_ARGS)

# Every tool speaks before the verdict, so that one run shows all there is to mend.
lint: $(VENV)/.dev  ## check style, types, layers and complexity
	@status=0; \
	check() { "$${@:2}" >$(BUILD)/lint.log 2>&1 && echo "ok      $$1" || { cat $(BUILD)/lint.log; echo "FAILED  $$1"; status=1; }; }; \
	mkdir -p $(BUILD); files=$$($(CPP_FILES)); \
	check "ruff check"    $(BIN)/ruff check .; \
	check "ruff format"   $(BIN)/ruff format --check .; \
	check "clang-format"  $(BIN)/clang-format --dry-run -Werror $$files /dev/null; \
	check "lizard"        $(BIN)/lizard -l cpp -l python -w -m -C 25 -L 80 -a 10 csrc $(wildcard $(PACKAGES)); \
	if [ -d theseus_py ]; then \
	  check "mypy"          $(BIN)/mypy; \
	  check "import-linter" $(BIN)/lint-imports --no-cache; \
	fi; \
	exit $$status

format: $(VENV)/.dev  ## rewrite the sources in the house style
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .
	@files=$$($(CPP_FILES)); [ -z "$$files" ] || $(BIN)/clang-format -i $$files

tidy: $(VENV)/.dev tests-build  ## run clang-tidy over csrc (slow; advice, no gate)
	@$(call pip_install,clang-tidy)
	@find csrc -name '*.cc' -not -path 'csrc/bindings/*' | sort | xargs -P $(JOBS) -n 4 $(BIN)/clang-tidy --quiet -p $(BUILD)

build: $(VENV)/.tools  ## build the libraries and the Python extensions into the packages
	@mkdir -p $(BUILD)
	@THESEUS_JOBS=$(JOBS) $(BIN)/python setup.py --quiet build_ext --inplace >$(BUILD)/build.log 2>&1 || { cat $(BUILD)/build.log; exit 1; }

# GoogleTest and the headers of verbs come from the system; where they cannot be installed, what is left out is named.
gtest:
	@mkdir -p $(BUILD); missing=""; \
	[ -e /usr/include/gtest/gtest.h ] || missing="libgtest-dev"; \
	[ -e /usr/include/infiniband/verbs.h ] || missing="$$missing libibverbs-dev"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $$missing, for the C++ tests"; \
	  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$missing; } \
	    >$(BUILD)/apt.log 2>&1 || { tail -3 $(BUILD)/apt.log; echo "$$missing could not be installed"; }; \
	fi

tests-build: build gtest
	@$(BIN)/cmake $(BUILD) >$(BUILD)/configure.log 2>&1 || { cat $(BUILD)/configure.log; exit 1; }
	@grep 'left out' $(BUILD)/configure.log || true
	@$(BIN)/cmake --build $(BUILD) --target theseus_tests --parallel $(JOBS) >$(BUILD)/tests.log 2>&1 || { cat $(BUILD)/tests.log; exit 1; }

bench: $(VENV)/.dev build  ## run every benchmark (BENCH_ARGS=--quick)
	@for script in benchmarks/[!_]*.py; do \
	  [ -e "$$script" ] || { echo "there is no benchmark yet"; break; }; \
	  echo "== $$script"; $(BIN)/python "$$script" $(BENCH_ARGS); \
	done

wheel: $(VENV)/.tools  ## build a wheel into dist/
	@$(PIP) wheel --quiet --no-deps --no-build-isolation -w dist .
	@ls dist/*.whl

asan:  ## run the C++ tests under AddressSanitizer and UBSan
	@$(MAKE) sanitized SANITIZED=address,undefined

tsan:  ## run the C++ tests under ThreadSanitizer
	@$(MAKE) sanitized SANITIZED=thread

sanitized: $(VENV)/.tools gtest
	@$(BIN)/cmake -S . -B $(SANITIZED_BUILD) -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja \
	  -DTHESEUS_SANITIZE=$(SANITIZED) >/dev/null
	@$(BIN)/cmake --build $(SANITIZED_BUILD) --parallel $(JOBS) \
	  --target $(if $(strip $(SANITIZED_TESTS)),$(addprefix test_,$(SANITIZED_TESTS)),theseus_tests)
	@$(BIN)/ctest --test-dir $(SANITIZED_BUILD) --output-on-failure --no-tests=error -R '^($(subst $(space),|,$(strip $(or $(SANITIZED_TESTS),.*))))$$'

clean:  ## remove what was built; .venv stays
	@rm -rf $(BUILD) dist out theseus-demo theseus_py/lib theseus_py/include $(addsuffix /_core*.so,$(PACKAGES)) ./*.egg-info

distclean: clean  ## remove .venv as well
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

# --- The environment, in three steps of growing size, each marked by a stamp file.

$(VENV)/.tools: constraints.txt
	@[ -x $(BIN)/python ] || { echo "making .venv"; $(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.11 ...")'
	@echo "installing the build tools"
	@$(call pip_install,setuptools pybind11 cmake ninja)
	@touch $@

$(VENV)/.demo: $(VENV)/.tools pyproject.toml setup.py
	@echo "installing torch and building theseus: minutes the first time (the log: $(BUILD)/install.log)"
	@$(call pip_install,--no-build-isolation -e '.[torch$(comma)bench$(comma)testbed]')
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "installing the test and lint tools"
	@$(call pip_install,--no-build-isolation -e '.[torch$(comma)bench$(comma)testbed$(comma)dev]')
	@touch $@
