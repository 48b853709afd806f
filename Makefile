# The two commands: `make quickstart` and `make test`. Both need root and install what is missing.

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help build quickstart test check install clean

help:
	@echo "make quickstart  install what is missing, build, and measure nginx on the kernel and on Overfly"
	@echo "make test        install what is missing, check, build, and run every test"
	@echo "make build       build target/release/overfly and target/release/liboverfly.so"
	@echo "make check       formatting and lints"
	@echo "make clean       remove what was built"

build:
	$(CARGO) build --release --locked

quickstart: install build
	$(TARGET)/release/overfly bench cookbooks/quickstart.toml

test: install check build
	scripts/test.sh

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

install:
	@scripts/install.sh

clean:
	$(CARGO) clean
