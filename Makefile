# The front door: CMake does the work. `make demo` and `make test` first see to it that the Debian packages they need are there.
BUILD ?= build
TYPE ?= Release
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE = cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=$(TYPE)
PREFIX ?= /usr/local
DESTDIR ?=
MAKEFLAGS += --no-print-directory

.PHONY: help build demo test slow check bench drift-all sanitize tsan valgrind cuda-compile install uninstall clean deps test-deps

help:
	@echo 'make demo      build, and show a model answering under several state methods'
	@echo 'make test      build, the fast tests, and 12 problems of the registers task'
	@echo 'make build     the library, the program ($(BUILD)/ebb), examples and tests'
	@echo 'make slow      the tests that take minutes: all 96 problems of the registers task'
	@echo 'make check     every kernel row against the reference'
	@echo 'make bench     the same, with times; and tokens per second of the bundled model'
	@echo 'make drift-all the drift of every state method over 65,536 tokens: an hour and a half, can be interrupted'
	@echo 'make sanitize  the fast tests under the address and undefined-behaviour sanitizers'
	@echo 'make tsan      the tests that use threads, under the thread sanitizer'
	@echo 'make valgrind  tests under valgrind'
	@echo 'make cuda-compile  compile what there is of CUDA, where nvcc is'
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
	@$(BUILD)/throughput models/tiny-gdn

drift-all: build
	@sh scripts/drift_all.sh $(BUILD)/ebb models/tiny-gdn models/eval/heldout_long.txt 65536 $(BUILD)/drift-all

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

# The thread sanitizer, and valgrind: the tests that race or leak, before a change is called done.
tsan: deps
	@cmake -S . -B $(BUILD)-tsan -DCMAKE_BUILD_TYPE=RelWithDebInfo -DEBB_TSAN=ON >/dev/null
	@cmake --build $(BUILD)-tsan -j $(JOBS)
	@for test in test_device test_linear test_attention test_store test_engine; do $(BUILD)-tsan/tests/$$test || exit 1; done

valgrind: build
	@command -v valgrind >/dev/null || { echo 'valgrind: not installed'; exit 1; }
	@for test in test_device test_state test_kv test_sample test_chat test_safetensors test_config test_forward test_image test_layout_file; do \
	    valgrind -q --leak-check=full --error-exitcode=1 $(BUILD)/tests/$$test || exit 1; done

# Installs what was built, or builds it with the same flags.
install: deps
	@$(CMAKE) -DCMAKE_INSTALL_PREFIX='$(PREFIX)' >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target ebb-shared manual
	@DESTDIR='$(DESTDIR)' cmake --install $(BUILD)

uninstall:
	@$(CMAKE) -DCMAKE_INSTALL_PREFIX='$(PREFIX)' >/dev/null
	@DESTDIR='$(DESTDIR)' sh scripts/uninstall.sh $(BUILD) '$(PREFIX)'

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-cuda
