# The front door: CMake does the work. `make demo` and `make test` first see to it that the Debian packages they need are there.
BUILD ?= build
TYPE ?= Release
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE = cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=$(TYPE)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 300
FUZZ_TARGETS ?=
QUICK ?=
STEPS ?=
MODELS ?=
SOAK_SECONDS ?= 60
SOAK_CLIENTS ?= 200
DESTDIR ?=
MAKEFLAGS += --no-print-directory

.PHONY: help build demo test slow check bench drift-all reproduce sanitize tsan valgrind fuzz faults test-openai soak cuda-compile arm install uninstall clean deps test-deps

help:
	@echo 'make demo      build, and show a model answering under several state methods'
	@echo 'make test      build, the fast tests, and 12 problems of the registers task'
	@echo 'make build     the library, the program ($(BUILD)/ebb), examples and tests'
	@echo 'make slow      the tests that take minutes: all 96 problems of the registers task'
	@echo 'make check     every kernel row against the reference'
	@echo 'make bench     times of every kernel row, beside ggml where built (docs/bench.md); tokens/s of the bundled model'
	@echo 'make drift-all the drift of every state method over 65,536 tokens: an hour and a half, can be interrupted'
	@echo 'make reproduce the tables of docs/reproduce.md: many hours, can be interrupted; with QUICK=1 small ones'
	@echo 'make sanitize  the fast tests under the address and undefined-behaviour sanitizers'
	@echo 'make tsan      the tests that use threads, under the thread sanitizer'
	@echo 'make valgrind  tests under valgrind'
	@echo 'make fuzz      libFuzzer on every reader of untrusted bytes, FUZZ_SECONDS=300 each; FUZZ_TARGETS="config chat"'
	@echo 'make faults    every allocation and every file call failing in turn'
	@echo 'make test-openai  the server against the official openai client, which pip puts into $(BUILD)/venv'
	@echo 'make soak      the server under SOAK_CLIENTS=200 for SOAK_SECONDS=60: answers, memory, what is left behind'
	@echo 'make cuda-compile  compile what there is of CUDA, where nvcc is'
	@echo 'make arm       cross-compile ebb-core for 64-bit ARM; its kernel rows against the reference under qemu-user'
	@echo 'make install   libraries, headers, program and manual page, to PREFIX=/usr/local under DESTDIR='
	@echo 'make uninstall remove what install put there'
	@echo 'make clean     remove $(BUILD) and its kin'

deps:
	@sh scripts/deps.sh

test-deps:
	@sh scripts/deps.sh tests

build: test-deps
	@$(CMAKE) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

demo: deps
	@$(CMAKE) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target example-demo ebb-cli
	@echo
	@$(BUILD)/example-demo models/tiny-gdn models/eval/registers-128.jsonl
	@echo
	@$(BUILD)/ebb drift -m models/tiny-gdn --text models/eval/heldout_books.txt -n 4096 \
	    --state bf16,bf16-w,int8,int8-w,leap8,leap4,int4-w --svg demo-drift.svg
	@echo
	@echo 'demo-drift.svg shows the drift'

test: build
	@sh scripts/test.sh $(BUILD) $(JOBS) fast registers

slow: build
	@sh scripts/test.sh $(BUILD) $(JOBS) slow

check: build
	@$(BUILD)/tests/ebb-check

bench: build
	@$(BUILD)/tests/ebb-check --bench
	@if [ -e $(BUILD)/peers/VERSION ]; then \
	    cmake --build $(BUILD) -j $(JOBS) --target ggml-bench >/dev/null && echo && $(BUILD)/ggml-bench; \
	else echo; echo 'peers: ggml is not built, skipped; sh bench/peers/build.sh $(BUILD)/peers builds it'; fi
	@echo
	@$(BUILD)/throughput models/tiny-gdn

drift-all: build
	@sh scripts/drift_all.sh $(BUILD)/ebb models/tiny-gdn models/eval/heldout_long.txt 65536 $(BUILD)/drift-all

reproduce: build
	@QUICK='$(QUICK)' STEPS='$(STEPS)' sh scripts/reproduce.sh $(BUILD)/ebb $(BUILD)/reproduce$(if $(QUICK),-quick) $(MODELS)

sanitize: test-deps
	@cmake -S . -B $(BUILD)-asan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DEBB_SANITIZE=ON >/dev/null
	@cmake --build $(BUILD)-asan -j $(JOBS)
	@sh scripts/test.sh $(BUILD)-asan $(JOBS) fast

# Compiled, never run: skipped with a sentence where there is no nvcc.
cuda-compile: deps
	@if command -v nvcc >/dev/null 2>&1; then \
	    cmake -S . -B $(BUILD)-cuda -DCMAKE_BUILD_TYPE=Release -DEBB_CUDA=ON >/dev/null && \
	    cmake --build $(BUILD)-cuda -j $(JOBS) --target ebb-cuda; \
	else echo 'cuda-compile: no nvcc here, skipped'; fi

# Small sizes only, for the CPU is emulated. Skipped with a sentence where there is no cross compiler or no qemu-user.
arm:
	@sh scripts/deps.sh arm
	@if command -v aarch64-linux-gnu-gcc >/dev/null 2>&1 && command -v qemu-aarch64 >/dev/null 2>&1; then \
	    cmake -S . -B $(BUILD)-arm -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DCMAKE_BUILD_TYPE=Release -DEBB_MODELS=OFF >/dev/null && \
	    cmake --build $(BUILD)-arm -j $(JOBS) --target ebb-check && \
	    qemu-aarch64 -L /usr/aarch64-linux-gnu $(BUILD)-arm/tests/ebb-check --quick; \
	else echo 'arm: no aarch64-linux-gnu-gcc or no qemu-aarch64 here, skipped'; fi

# The thread sanitizer, and valgrind: the tests that race or leak, before a change is called done.
tsan: deps
	@cmake -S . -B $(BUILD)-tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DEBB_TSAN=ON >/dev/null
	@cmake --build $(BUILD)-tsan -j $(JOBS)
	@for test in test_device test_linear test_attention test_store test_engine test_server_api; do \
	    EBB_STORE_METHODS=codec $(BUILD)-tsan/tests/$$test || exit 1; done

valgrind: build
	@command -v valgrind >/dev/null || { echo 'valgrind: not installed'; exit 1; }
	@for test in test_device test_state test_kv test_sample test_chat test_safetensors test_config test_forward test_image test_layout_file \
	    test_fuzz_seeds test_server_grammar test_server_parts; do \
	    valgrind -q --leak-check=full --error-exitcode=1 $(BUILD)/tests/$$test || exit 1; done

# Without clang it is skipped with a sentence.
fuzz:
	@sh scripts/deps.sh fuzz
	@if command -v clang >/dev/null 2>&1; then \
	    CC=clang cmake -S . -B $(BUILD)-fuzz -DCMAKE_BUILD_TYPE=RelWithDebInfo -DEBB_FUZZ=ON >/dev/null && \
	    cmake --build $(BUILD)-fuzz -j $(JOBS) --target ebb-fuzz && \
	    sh scripts/fuzz.sh $(BUILD)-fuzz/tests/ebb-fuzz tests/fuzz $(BUILD)-fuzz/found $(FUZZ_SECONDS) $(JOBS) $(FUZZ_TARGETS); \
	else echo 'fuzz: no clang here, skipped'; fi

faults: build
	@EBB_FAULTS=all $(BUILD)/tests/test_faults

# The client is a test's only: nothing else here needs Python.
test-openai: build
	@python3 -m venv $(BUILD)/venv && $(BUILD)/venv/bin/pip install -q --disable-pip-version-check openai
	@$(BUILD)/venv/bin/python tests/server_openai.py $(BUILD)/ebb models/tiny-gdn

soak: build
	@sh tests/server_soak.sh $(BUILD)/ebb . $(SOAK_SECONDS) $(SOAK_CLIENTS)

# Installs what was built, or builds it with the same flags.
install: deps
	@$(CMAKE) -DCMAKE_INSTALL_PREFIX='$(PREFIX)' >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target ebb-shared manual
	@DESTDIR='$(DESTDIR)' cmake --install $(BUILD)

uninstall:
	@$(CMAKE) -DCMAKE_INSTALL_PREFIX='$(PREFIX)' >/dev/null
	@DESTDIR='$(DESTDIR)' sh scripts/uninstall.sh $(BUILD) '$(PREFIX)'

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-cuda $(BUILD)-fuzz $(BUILD)-arm
