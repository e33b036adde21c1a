# The commands that README.md names, and some for developers. Each works alone on a fresh clone of a Debian 12 machine.
BUILD := build/release
PROMPT ?= Explain in a sentence why leaves are green.

.PHONY: all deps build quire cuda-all model run test test-aarch64 bench
all: build

deps:
	@tools/install_deps.sh

build: deps
	@test -f $(BUILD)/build.ninja || cmake --preset release
	@cmake --build $(BUILD)

# The program without its tests, which take longer to compile.
quire: deps
	@test -f $(BUILD)/build.ninja || cmake --preset release
	@cmake --build $(BUILD) --target quire

# That the CUDA code compiles for every GPU it is written for; it runs on compute capability 9.0 so far. Needs no GPU.
CUDA_ALL := 80;86;89;90a;100;120
cuda-all: deps
	@cmake -S . -B build/cuda-all -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=ON -DQUIRE_TESTS=OFF \
	  "-DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ALL)"
	@cmake --build build/cuda-all --target quire_ops_cuda quire_ops_hopper

model: deps
	@python3 tools/fetch_default_model.py

# The prompt goes by the environment, so that no shell reads what is in it.
run: export QUIRE_PROMPT = $(value PROMPT)
run: model quire  # in this order: what the network lacks shows before the long build
	@model=$$(python3 tools/fetch_default_model.py) && \
	  $(BUILD)/quire generate "$$model" --chat --temperature 0 --max-tokens 128 --prompt "$$QUIRE_PROMPT"

test: model build
	@QUIRE_TEST_MODEL=$$(python3 tools/fetch_default_model.py) && export QUIRE_TEST_MODEL && \
	  ctest --test-dir $(BUILD) --output-on-failure -L cpu -j 2

# The kernels for 64-bit ARM, cross compiled, under an emulator.
test-aarch64: deps
	@tools/test_aarch64.sh

bench: quire
	@model=$$(python3 tools/fetch_default_model.py) && $(BUILD)/quire bench "$$model"
