# `make help` lists the targets. All output goes under build/ and dist/, nothing beside the sources.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
MAKEFLAGS += --no-builtin-rules

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(JOBS) --output-sync=target
endif

# ---- native ---------------------------------------------------------------------------------------

CXX := $(if $(filter default undefined,$(origin CXX)),g++,$(CXX))
OPTIMISE ?= -O3
# SANITIZE=address,undefined or SANITIZE=thread builds beside the normal library.
SANITIZE ?=
BUILD ?= build/cpu$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
comma := ,

CXXFLAGS += -std=c++20 $(OPTIMISE) -g -fPIC -fvisibility=hidden -ffp-contract=off -pthread -Inative -Itest/native \
            -Wall -Wextra -Wconversion -Werror $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
LDFLAGS += -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE))

# Instruction sets above the baseline: only these files may use them, and only behind run-time dispatch.
MACHINE := $(shell uname -m)
ifneq ($(filter x86_64 amd64,$(MACHINE)),)
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
endif

CPU_ROOMS := native/abi native/runtime native/model native/quant native/backend/cpu
SOURCES := $(foreach room,$(CPU_ROOMS),$(shell find $(room) -name '*.cpp'))
TEST_SOURCES := $(filter %_test.cpp,$(SOURCES)) $(wildcard test/native/*.cpp)
BENCH_SOURCES := $(filter %_bench.cpp,$(SOURCES))
LIBRARY_SOURCES := $(filter-out $(TEST_SOURCES) $(BENCH_SOURCES),$(SOURCES))

LIBRARY_OBJECTS := $(LIBRARY_SOURCES:%.cpp=$(BUILD)/%.o)
TEST_OBJECTS := $(TEST_SOURCES:%.cpp=$(BUILD)/%.o)
LIBRARY := $(BUILD)/libds4-cpu.so
NATIVE_TEST := $(BUILD)/ds4-native-test

# The simulated device: the CPU's objects, but for the one file that says which devices there are.
SIM_BUILD := $(patsubst build/cpu%,build/sim%,$(BUILD))
SIM_SOURCES := $(wildcard native/backend/sim/*.cpp)
SIM_TEST_SOURCES := $(filter %_test.cpp,$(SIM_SOURCES)) $(wildcard test/native/*.cpp)
SIM_OBJECTS := $(filter-out %/native/backend/cpu/open_backend.o,$(LIBRARY_OBJECTS)) \
               $(patsubst %.cpp,$(BUILD)/%.o,$(filter-out %_test.cpp,$(SIM_SOURCES)))
SIM_TEST_OBJECTS := $(SIM_TEST_SOURCES:%.cpp=$(BUILD)/%.o)
SIM_LIBRARY := $(SIM_BUILD)/libds4-sim.so
SIM_TEST := $(SIM_BUILD)/ds4-sim-test

.PHONY: all cpu sim ts test test-native test-unit test-golden test-e2e test-fault lint format docs models bundle bench clean help compiler

all: ts cpu sim ## build the command line, the CPU library and the simulated device (the default)

cpu: $(LIBRARY) ## build the native CPU library

sim: $(SIM_LIBRARY) ## build the library of a simulated GPU

compiler:
	@command -v $(firstword $(CXX)) >/dev/null || { echo "ds4: no C++ compiler '$(CXX)' here; install it with: apt-get install g++" >&2; exit 1; }

$(BUILD)/%.o: %.cpp Makefile | compiler
	@mkdir -p $(@D)
	@echo "c++ $<"
	@$(CXX) $(CXXFLAGS) $(if $(findstring _avx512,$<),$(ISA_avx512),$(if $(findstring _avx2,$<),$(ISA_avx2))) -MMD -MP -c -o $@ $<

# Linked aside and renamed, so that a running ds4 keeps the file it has mapped.
$(LIBRARY): $(LIBRARY_OBJECTS)
$(SIM_LIBRARY): $(SIM_OBJECTS)
$(LIBRARY) $(SIM_LIBRARY):
	@mkdir -p $(@D)
	@echo "link $@"
	@$(CXX) -shared -Wl,-soname,$(@F) $(LDFLAGS) -o $@.new $^ && mv -f $@.new $@

$(NATIVE_TEST): $(LIBRARY_OBJECTS) $(TEST_OBJECTS)
$(SIM_TEST): $(SIM_OBJECTS) $(SIM_TEST_OBJECTS)
$(NATIVE_TEST) $(SIM_TEST):
	@mkdir -p $(@D)
	@echo "link $@"
	@$(CXX) $(LDFLAGS) -o $@ $^

-include $(LIBRARY_OBJECTS:.o=.d) $(TEST_OBJECTS:.o=.d) $(SIM_OBJECTS:.o=.d) $(SIM_TEST_OBJECTS:.o=.d)

include native/backend/gpu/gpu.mk

# ---- TypeScript -----------------------------------------------------------------------------------

# npm rewrites this file at each install, so it is newer than the lock file exactly when nothing has changed.
node_modules/.package-lock.json: package-lock.json package.json
	@command -v npm >/dev/null || { echo "ds4: no npm here; install Node.js 20 or newer with npm" >&2; exit 1; }
	npm ci --no-fund --no-audit --loglevel=error
	@touch $@

dist/cli/main.js: node_modules/.package-lock.json tsconfig.json tsconfig.build.json $(shell find src -name '*.ts')
	npm run --silent build
	@touch $@

ts: dist/cli/main.js ## build the command line (TypeScript)

# ---- checks ---------------------------------------------------------------------------------------

test: all $(NATIVE_TEST) $(SIM_TEST) gpu-emulated lint ## run every test and the linters
	@mkdir -p build/results && rm -f build/results/*
	$(NATIVE_TEST) | tee build/results/native.log
	$(SIM_TEST) | tee build/results/sim.log
	build/emulated32/ds4-gpu-test > build/results/gpu32.log & narrow=$$!; wide=0; \
	build/emulated64/ds4-gpu-test > build/results/gpu64.log || wide=$$?; \
	status=0; wait $$narrow || status=$$?; cat build/results/gpu32.log build/results/gpu64.log; exit $$((status | wide))
	status=0; npx vitest run --reporter=default --reporter=json --outputFile.json=build/results/vitest.json || status=$$?; \
	node tools/test-summary.mjs build/results/*.log build/results/vitest.json && exit $$status

test-native: $(NATIVE_TEST) $(SIM_TEST) ## run the native tests (SANITIZE=address,undefined or thread to instrument them)
	$(NATIVE_TEST)
	$(SIM_TEST)

test-unit: node_modules/.package-lock.json ## run the tests that need no build
	npm run --silent test

test-golden: all ## compare logits, layers and choices with the reference data
	npx vitest run --project golden

test-e2e: all ## drive the real program
	npx vitest run --project e2e

test-fault: all ## make calls fail, one at a time
	npx vitest run --project fault

lint: node_modules/.package-lock.json ## type check, eslint, prettier
	npm run --silent check
	npm run --silent lint

format: node_modules/.package-lock.json ## rewrite sources in house style
	npm run --silent format

docs: all ## regenerate the generated parts of docs/
	npx tsx tools/docs.ts

PYTHON ?= python3
models: ## make the quantised siblings of the small model (needs python3 with numpy)
	@$(PYTHON) -c 'import numpy' 2>/dev/null || { echo "ds4: no numpy for python3 here; install it with: apt-get install python3-numpy" >&2; exit 1; }
	$(PYTHON) tools/small-model/quantise.py

bundle: all ## pack what a machine without Node, npm or a compiler needs (with the GPU libraries that are built)
	node tools/bundle.mjs

bench: all ## compare with a peer in the same run (installs it under bench/)
	npm ci --prefix bench --no-fund --no-audit --loglevel=error
	node bench/cpu.mjs

clean: ## remove everything that was built
	rm -rf build dist

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile native/backend/gpu/gpu.mk | sed -E 's/:[^#]*## /\t/' | expand -t 16
