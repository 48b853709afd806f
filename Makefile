# The two commands: `make quickstart` and `make test`. As root they install what is missing. Without root, `make quickstart`
# says what is missing, and measures over shared memory instead of network namespaces; `make test` needs root.

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help build quickstart test check install clean

help:
	@echo "make quickstart  install what is missing (as root), build, and measure nginx on the kernel and on Overfly"
	@echo "make test        install what is missing, check, build, and run every test"
	@echo "make build       build target/release/overfly and target/release/liboverfly.so"
	@echo "make check       formatting and lints"
	@echo "make clean       remove what was built"

build:
	$(CARGO) build --release --locked

ifeq ($(shell id -u),0)
quickstart:
	@scripts/install.sh quickstart
	@$(MAKE) --no-print-directory build
	$(TARGET)/release/overfly bench cookbooks/quickstart.toml
else
# Servers are in /usr/sbin, which Debian leaves out of a user's PATH.
quickstart: export PATH := $(PATH):/usr/sbin:/sbin
quickstart:
	@scripts/install.sh quickstart
	@$(MAKE) --no-print-directory build
	$(TARGET)/release/overfly bench cookbooks/quickstart-memif.toml
endif

test: install check build
	scripts/test.sh

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

install:
	@scripts/install.sh

clean:
	$(CARGO) clean
