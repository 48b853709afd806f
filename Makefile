# The two commands: `make quickstart` and `make test`. As root they install what is missing. Without root, `make quickstart`
# says what is missing, and measures over shared memory instead of network namespaces; `make test` needs root.

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)

.PHONY: help build quickstart test check prepare install uninstall packages image packages-test clean

help:
	@echo "make quickstart  install what is missing (as root), build, and measure nginx on the kernel and on Overfly"
	@echo "make test        install what is missing, check, build, and run every test"
	@echo "make build       build target/release/overfly and target/release/liboverfly.so"
	@echo "make check       formatting, lints, and what xtask tidy judges"
	@echo "make install     install what was built into PREFIX (/usr/local), below DESTDIR; make uninstall takes it away"
	@echo "make packages    build a .deb, an .rpm and a tarball into target/packages"
	@echo "make image       make a container image, overfly:VERSION, with buildah (as root)"
	@echo "make packages-test  install the .deb in a clean Debian, use it, remove it; build the packages twice; run an image (minutes)"
	@echo "make clean       remove what was built"

build:
	$(CARGO) build --release --locked -p overfly-cli -p overfly-sockets

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

test: prepare check build
	scripts/test.py

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) run --quiet --locked -p xtask -- tidy
	scripts/chart.py check

prepare:
	@scripts/install.sh

# Not built first: `sudo make install` need not have a compiler.
install uninstall: export PREFIX := $(or $(PREFIX),/usr/local)
install uninstall: export DESTDIR := $(DESTDIR)
install uninstall:
	@BUILD=$(TARGET)/release packaging/install.sh $@

packages: build
	@scripts/install.sh packages
	@BUILD=$(TARGET)/release packaging/packages.sh $(TARGET)/packages

image: build
	@scripts/install.sh packages
	packaging/image.sh

packages-test: packages
	packaging/test.sh $(TARGET)/packages

clean:
	$(CARGO) clean
