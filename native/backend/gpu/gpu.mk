# The GPU backends. One source for all: the kernels are compiled as CUDA, as HIP, or as plain C++ for the emulated card;
# the rooms above the device seam are those of the CPU build.

HOST_OBJECTS := $(filter-out $(BUILD)/native/backend/cpu/%,$(LIBRARY_OBJECTS))
# What the parity tests compare with: the CPU's arithmetic, but not its devices.
REFERENCE_OBJECTS := $(filter-out %/open_backend.o,$(filter $(BUILD)/native/backend/cpu/%,$(LIBRARY_OBJECTS)))
GPU_MAKE := native/backend/gpu/gpu.mk
GPU_SOURCES := $(wildcard native/backend/gpu/*.cu)
GPU_TEST_SOURCES := $(wildcard native/backend/gpu/*_test.cpp)
CHECK_OBJECT := $(BUILD)/test/native/check.o

.PHONY: FORCE cuda rocm gpu-limits memory-limits gpu-test-cuda gpu-test-rocm check-hip gpu-emulated test-gpu-emulated nvcc debian-hip

# ---- the emulated card ------------------------------------------------------------------------------

EMULATOR_TEST_SOURCES := $(wildcard test/emulated/*_test.cpp)
EMULATOR_SOURCES := $(filter-out $(EMULATOR_TEST_SOURCES),$(wildcard test/emulated/*.cpp))
EMULATED_FLAGS := -std=c++20 -O1 -fPIC -ffp-contract=off -pthread -DDS4_EMULATED -DDS4_GPU_ARCHITECTURES='"sm_80 sm_90"' \
                  -Inative -Itest -Itest/native -Wall -Wextra -Wno-unknown-pragmas

# With $(1) lanes to a wavefront.
define emulated_card
EMULATED_OBJECTS_$(1) := $$(patsubst %,build/emulated$(1)/%.o,$$(GPU_SOURCES) $$(EMULATOR_SOURCES))
EMULATED_TEST_OBJECTS_$(1) := $$(patsubst %,build/emulated$(1)/%.o,$$(GPU_TEST_SOURCES) $$(EMULATOR_TEST_SOURCES))

build/emulated$(1)/%.o: % $$(GPU_MAKE) | compiler
	@mkdir -p $$(@D)
	@echo "c++ $$< ($(1) lanes)"
	@$$(CXX) $$(EMULATED_FLAGS) -DDS4_EMULATED_WAVE=$(1) -MMD -MP -c -o $$@ -x c++ $$<

# Most of the time goes into changing between lanes.
build/emulated$(1)/test/emulated/lanes.cpp.o: EMULATED_FLAGS += -O2

build/emulated$(1)/ds4-gpu-test: $$(HOST_OBJECTS) $$(REFERENCE_OBJECTS) $$(CHECK_OBJECT) $$(EMULATED_OBJECTS_$(1)) $$(EMULATED_TEST_OBJECTS_$(1))
	@echo "link $$@"
	@$$(CXX) $$(LDFLAGS) -rdynamic -o $$@ $$^ -ldl

-include $$(EMULATED_OBJECTS_$(1):.o=.d) $$(EMULATED_TEST_OBJECTS_$(1):.o=.d)
endef
$(foreach lanes,32 64,$(eval $(call emulated_card,$(lanes))))

# Under the name of the real one, so that tests of the whole program can load it.
build/emulated/libds4-cuda.so: $(HOST_OBJECTS) $(EMULATED_OBJECTS_32)
	@mkdir -p $(@D)
	@echo "link $@"
	@$(CXX) -shared $(LDFLAGS) -Wl,-soname,$(@F) -Wl,-z,defs -o $@.new $^ -ldl && mv -f $@.new $@

build/emulated/ds4-gpu-test: build/emulated32/ds4-gpu-test
	@mkdir -p $(@D) && ln -sf ../emulated32/ds4-gpu-test $@

gpu-emulated: build/emulated/libds4-cuda.so build/emulated/ds4-gpu-test build/emulated64/ds4-gpu-test ## build the GPU backend for an emulated card

test-gpu-emulated: gpu-emulated ## run the GPU tests on the emulated card, with 32 and with 64 lanes to a wavefront
	build/emulated32/ds4-gpu-test
	build/emulated64/ds4-gpu-test

# ---- CUDA -------------------------------------------------------------------------------------------

NVCC ?= nvcc
# Cards from Ampere on, as far as this nvcc knows them. Code of one sm_XY runs on later cards of the same X. A file is compiled
# for several of them at a time.
CUDA_ARCH ?= $(filter sm_80 sm_86 sm_89 sm_90 sm_100 sm_120,$(shell $(NVCC) --list-gpu-code 2>/dev/null))
CUDA_FLAGS = -std=c++20 -O3 -fmad=false --threads $(JOBS) $(foreach arch,$(CUDA_ARCH),-gencode arch=$(arch:sm_%=compute_%),code=$(arch)) \
             -DDS4_GPU_ARCHITECTURES='"$(CUDA_ARCH)"' -Inative -Itest/native \
             -Xcompiler -fPIC,-fvisibility=hidden,-ffp-contract=off,-pthread,-Wall,-Wextra
CUDA_OBJECTS := $(GPU_SOURCES:%=build/cuda/%.o)
CUDA_TEST_OBJECTS := $(GPU_TEST_SOURCES:%=build/cuda/%.o)

nvcc:
	@command -v $(firstword $(NVCC)) >/dev/null || { echo "ds4: no CUDA compiler '$(NVCC)' here; install NVIDIA's CUDA toolkit 12 or newer, or name it: make cuda NVCC=/usr/local/cuda/bin/nvcc" >&2; exit 1; }
	@test -n "$(strip $(CUDA_ARCH))" || { echo "ds4: '$(NVCC)' knows none of the architectures that ds4 is built for; name yours: make cuda CUDA_ARCH=sm_90" >&2; exit 1; }

# Changes when the list of cards does: objects for other cards are made again.
build/cuda/architectures: FORCE
	@mkdir -p $(@D)
	@echo '$(CUDA_ARCH)' | cmp -s - $@ || echo '$(CUDA_ARCH)' > $@

build/cuda/%.o: % $(GPU_MAKE) build/cuda/architectures | nvcc compiler
	@mkdir -p $(@D)
	@echo "nvcc $<"
	@$(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -x cu -c -o $@ $<

# The CUDA runtime is linked in: the library loads, and says what is missing, on a machine without CUDA.
build/cuda/libds4-cuda.so: $(HOST_OBJECTS) $(CUDA_OBJECTS)
	@echo "link $@"
	@$(NVCC) -shared -cudart static -Xcompiler -pthread -Xlinker -soname,$(@F),--exclude-libs,ALL,-z,defs -o $@.new $^ && mv -f $@.new $@

build/cuda/ds4-gpu-test: $(HOST_OBJECTS) $(REFERENCE_OBJECTS) $(CHECK_OBJECT) $(CUDA_OBJECTS) $(CUDA_TEST_OBJECTS)
	@echo "link $@"
	@$(NVCC) -cudart static -Xcompiler -pthread -o $@ $^

cuda: build/cuda/libds4-cuda.so ## build the library for NVIDIA cards (CUDA_ARCH="sm_90 sm_120" for these only)

gpu-test-cuda: build/cuda/ds4-gpu-test ## build the GPU tests for NVIDIA cards

build/cuda/ds4-gpu-limits: bench/gpu/limits.cu
build/cuda/ds4-memory-limits: bench/memory/link.cu
build/cuda/ds4-gpu-limits build/cuda/ds4-memory-limits: bench/gpu/rates.h native/backend/gpu/gpu.h $(GPU_MAKE) | nvcc compiler
	@mkdir -p $(@D)
	@echo "nvcc $(filter %.cu,$^)"
	@$(NVCC) $(CUDA_FLAGS) -cudart static -o $@ $(filter %.cu,$^)

gpu-limits: build/cuda/ds4-gpu-limits ## build the program that measures what the card allows, for bench/gpu

memory-limits: build/cuda/ds4-memory-limits ## build the program that measures what the link and a disk allow, for bench/memory

-include $(CUDA_OBJECTS:.o=.d) $(CUDA_TEST_OBJECTS:.o=.d)

# ---- HIP --------------------------------------------------------------------------------------------

# AMD's own compiler where ROCm is installed, else Debian's clang with Debian's HIP.
ROCM_PATH ?= /opt/rocm
HIPCC ?= $(firstword $(wildcard $(ROCM_PATH)/bin/hipcc) clang++-19)
ROCM_ARCH ?= gfx1100
# MI300, RX 7900, Strix Halo, RX 9070: what `make check-hip` compiles for. Nobody runs that library, so minutes of
# optimising are saved.
CHECK_HIP_ARCH := gfx942 gfx1100 gfx1151 gfx1201
CHECK_HIP_OPTIMISE := -O0
# Reading HIP's headers takes seconds, for each card anew: of a file without kernels the check makes the host's part alone.
# The compiler names that after nothing then, and the names of two files clash in the linker.
KERNELLESS := $(shell grep -L DS4_KERNEL $(GPU_SOURCES))
check_hip_flags = $(CHECK_HIP_OPTIMISE) $(if $(filter $(KERNELLESS),$<),--cuda-host-only -Xclang -cuid=$(notdir $(basename $<)))
HIP_BITCODE := build/hip-bitcode
DEBIAN_BITCODE ?= /usr/lib/x86_64-linux-gnu/amdgcn/bitcode

# Flags of compiler $(1) for the cards $(2), with $(3) among them.
hip_flags = -x hip -std=c++20 $(3) -ffp-contract=off $(2:%=--offload-arch=%) -DDS4_GPU_ARCHITECTURES='"$(2)"' -Inative -Itest/native \
            -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Wno-unused-command-line-argument -Wno-pass-failed \
            $(if $(findstring clang,$(1)),--rocm-path=/usr --rocm-device-lib-path=$(HIP_BITCODE) -mcode-object-version=4)

# Debian's device libraries are older than its clang and lack the constant of newer cards: gfx1151 is 11501.
$(HIP_BITCODE)/oclc_isa_version_%.bc: $(GPU_MAKE) | debian-hip
	@mkdir -p $(@D) && ln -sf $(DEBIAN_BITCODE)/*.bc $(@D)/ && rm -f $@
	@card=$*; major=$${card%??}; rest=$${card#$$major}; minor=$${rest%?}; stepping=$${rest#?}; \
	printf 'target triple = "amdgcn-amd-amdhsa"\n@__oclc_ISA_version = linkonce_odr protected local_unnamed_addr addrspace(4) constant i32 %d, align 4\n' \
	    $$((1000 * major + 100 * minor + 16#$$stepping)) | clang++-19 -target amdgcn-amd-amdhsa -nogpulib -x ir -emit-llvm -c -o $@ -

.SECONDARY: $(CHECK_HIP_ARCH:gfx%=$(HIP_BITCODE)/oclc_isa_version_%.bc)

debian-hip:
	@for tool in clang++-19 ld.lld-19 clang-offload-bundler-19; do command -v $$tool >/dev/null || { echo "ds4: no $$tool here to compile for AMD cards; install ROCm, or Debian's tools: apt-get install clang-19 lld-19 clang-tools-19" >&2; exit 1; }; done
	@test -e /usr/include/hip/hip_runtime.h && test -e $(DEBIAN_BITCODE)/ocml.bc || { echo "ds4: no HIP headers or device libraries here; install ROCm, or Debian's: apt-get install libamdhip64-dev rocm-device-libs" >&2; exit 1; }

# Folder build/$(1), compiler $(2), cards $(3), name of the variable with flags that are this library's own $(4).
define hip_library
$(1)_OBJECTS := $$(GPU_SOURCES:%=build/$(1)/%.o)
$(1)_TEST_OBJECTS := $$(GPU_TEST_SOURCES:%=build/$(1)/%.o)

build/$(1)/architectures: FORCE
	@mkdir -p $$(@D)
	@echo '$(3)' | cmp -s - $$@ || echo '$(3)' > $$@

build/$(1)/%.o: % $$(GPU_MAKE) build/$(1)/architectures $(if $(findstring clang,$(2)),$(3:gfx%=$(HIP_BITCODE)/oclc_isa_version_%.bc)) | compiler
	@mkdir -p $$(@D)
	@echo "hip $$<"
	@$(2) $$(call hip_flags,$(2),$(3),$$($(4))) -MMD -MP -MF $$(@:.o=.d) -c -o $$@ $$<

build/$(1)/libds4-rocm.so: $$(HOST_OBJECTS) $$($(1)_OBJECTS)
	@echo "link $$@"
	@$$(CXX) -shared -pthread -Wl,-soname,$$(@F) -Wl,-z,defs -o $$@.new $$^ $$(addprefix -L,$$(wildcard $$(ROCM_PATH)/lib)) -lamdhip64 && mv -f $$@.new $$@

build/$(1)/ds4-gpu-test: $$(HOST_OBJECTS) $$(REFERENCE_OBJECTS) $$(CHECK_OBJECT) $$($(1)_OBJECTS) $$($(1)_TEST_OBJECTS)
	@echo "link $$@"
	@$$(CXX) -pthread -o $$@ $$^ $$(addprefix -L,$$(wildcard $$(ROCM_PATH)/lib)) -lamdhip64

-include $$($(1)_OBJECTS:.o=.d) $$($(1)_TEST_OBJECTS:.o=.d)
endef
rocm_flags := -O3
$(eval $(call hip_library,rocm,$(HIPCC),$(ROCM_ARCH),rocm_flags))
$(eval $(call hip_library,check-hip,clang++-19,$(CHECK_HIP_ARCH),check_hip_flags))

rocm: build/rocm/libds4-rocm.so ## build the library for AMD cards (ROCM_ARCH="gfx942 gfx1151" for others than gfx1100)

gpu-test-rocm: build/rocm/ds4-gpu-test ## build the GPU tests for AMD cards

check-hip: build/check-hip/libds4-rocm.so ## compile and link the kernels for AMD cards of four generations, with Debian's packages
