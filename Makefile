# What to do with this checkout. `make setup` installs what is missing; everything else calls it.

CARGO ?= cargo
# Where cargo puts what it builds, also when the environment says otherwise.
TARGET := $(or $(CARGO_TARGET_DIR),target)
export CARGO_TARGET_DIR := $(TARGET)

# Compiling takes long and several cores are rare: one profile for everything that runs guests.
RELEASE := $(TARGET)/release

.PHONY: all setup build install deb demo demo-stop test test-unit test-loom test-p4 fuzz-p4 test-end-to-end test-attack test-pipeline test-kills test-distributions \
	test-package test-tutorial test-page test-cni test-libvirt test-ovs test-ovs-guests test-openflow test-ovn test-kmod test-ovsdbapp test-os-vif soak lint bench bench-instructions bench-p4 mutants simulate clean

all: build

setup: ## Install missing packages, download the kernel for QEMU guests
	scripts/setup

build: ## Build the product
	scripts/setup --build
	$(CARGO) build --release --package hyperswitch --package ovs-shim

PREFIX ?= /usr/local
DESTDIR ?=
BINDIR = $(PREFIX)/bin
# What was built; also for packages that build in another way.
BINARY ?= $(RELEASE)/hyperswitch
SHIM ?= $(RELEASE)/libovs_shim.so
LIBDIR = $(PREFIX)/lib/hyperswitch
COMPLETIONS = $(DESTDIR)$(PREFIX)/share

# Installs what `make build` has built, without symbols, and builds nothing itself: installing takes root, compiling does not.
# An existing configuration file is kept.
install: ## Install program, what joins Open vSwitch to it, manual pages, completions and service; PREFIX and DESTDIR as usual
	@for file in $(BINARY) $(SHIM); do \
		test -e $$file || { echo "$$file is missing: run make build first" >&2; exit 1; }; \
	done
	install -D --strip -m 755 $(BINARY) $(DESTDIR)$(BINDIR)/hyperswitch
	install -D --strip -m 644 $(SHIM) $(DESTDIR)$(LIBDIR)/libovs_shim.so
	sed 's|@LIBDIR@|$(LIBDIR)|g' packaging/ovs-vswitchd-hyperswitch > $(DESTDIR)$(LIBDIR)/ovs-vswitchd-hyperswitch
	chmod 755 $(DESTDIR)$(LIBDIR)/ovs-vswitchd-hyperswitch
	$(BINARY) man $(DESTDIR)$(PREFIX)/share/man/man1
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man5 packaging/man/hyperswitch.toml.5
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man7 packaging/man/hyperswitch.7
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man8 packaging/man/hyperswitch-cni.8 packaging/man/hyperswitch-netavark.8
	install -d $(COMPLETIONS)/bash-completion/completions $(COMPLETIONS)/zsh/site-functions \
		$(COMPLETIONS)/fish/vendor_completions.d
	set -e; directory=$$(mktemp -d); trap "rm -rf $$directory" EXIT; \
	$(BINARY) completions $$directory; \
	install -m 644 $$directory/hyperswitch.bash $(COMPLETIONS)/bash-completion/completions/hyperswitch; \
	install -m 644 $$directory/_hyperswitch $(COMPLETIONS)/zsh/site-functions/_hyperswitch; \
	install -m 644 $$directory/hyperswitch.fish $(COMPLETIONS)/fish/vendor_completions.d/hyperswitch.fish
	install -d $(DESTDIR)/lib/systemd/system
	sed 's|@BINDIR@|$(BINDIR)|g' packaging/hyperswitch.service > $(DESTDIR)/lib/systemd/system/hyperswitch.service
	chmod 644 $(DESTDIR)/lib/systemd/system/hyperswitch.service
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/udev/rules.d packaging/80-hyperswitch.rules
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/network packaging/05-hyperswitch.network
	install -d $(DESTDIR)$(PREFIX)/lib/cni $(DESTDIR)$(PREFIX)/lib/netavark
	ln -sf ../../bin/hyperswitch $(DESTDIR)$(PREFIX)/lib/cni/hyperswitch-cni
	ln -sf ../../bin/hyperswitch $(DESTDIR)$(PREFIX)/lib/netavark/hyperswitch-netavark
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/hyperswitch packaging/hyperswitch-alerts.yml packaging/hyperswitch-dashboard.json
	test -e $(DESTDIR)/etc/hyperswitch/hyperswitch.toml || \
		install -D -m 644 packaging/hyperswitch.toml $(DESTDIR)/etc/hyperswitch/hyperswitch.toml

# DEBFULLNAME and DEBEMAIL name the maintainer.
deb: build ## A Debian package of what `make install` installs, in build/
	scripts/setup --package
	scripts/make-deb

# KEEP=1 leaves it running.
demo: setup ## Real guests talk through the switch, in one table
	$(CARGO) build --release --package hyperswitch --package testbed
	scripts/as-root $(RELEASE)/demo $(if $(KEEP),--keep)

demo-stop: ## End a demonstration that was kept
	scripts/as-root $(RELEASE)/demo stop

test: setup ## All tests
	scripts/setup --ovs
	$(MAKE) test-unit
	$(MAKE) test-loom
	$(MAKE) test-end-to-end

# What no mode changes: how headers are parsed, what a VMM's messages do, what controllers are told.
SAME_IN_ALL_MODES = $(addprefix --skip ,deep_headers bad_messages bad_descriptors events p4_scripts)
IN_MODES = --package datapath --test data_plane -- --test-threads=1 $(SAME_IN_ALL_MODES)
test-unit: ## Unit, property and integration tests of all crates
	$(CARGO) test --workspace --exclude testbed
	set -e; for mode in poll thread-per-vnic driver-domain; do \
		echo "The data plane in mode $$mode:"; \
		HYPERSWITCH_TEST_MODE=$$mode $(CARGO) test $(IN_MODES); \
	done
	@echo "The data plane with knowledge of cores and guests:"
	scripts/as-root env HYPERSWITCH_TEST_MODE=vm-state $(CARGO) test $(IN_MODES)

# Folders of packet tests: the project's own, and further ones where they are.
STF ?= $(wildcard ../shared/p4/stf)
test-p4: ## Packet tests of P4 programs, offline and from rings to rings, clients of P4Runtime and the tutorials' exercises with containers; STF="DIR ..." for others
	$(CARGO) run --release --package p4-stf --example conformance -- crates/p4/p4-bmv2/programs $(STF)
	STF="$(abspath $(STF))" $(CARGO) test --release --package datapath --test data_plane -- --nocapture p4_scripts
	$(CARGO) build --release --package hyperswitch
	scripts/as-root env HYPERSWITCH_E2E=require scripts/test-p4runtime
	scripts/as-root scripts/test-p4-tutorials --program $(RELEASE)/hyperswitch

MINUTES ?= 60
fuzz-p4: ## Changed programs, entries, packets and scripts for an hour; MINUTES=5 is shorter
	P4_FUZZ_MINUTES=$(MINUTES) $(CARGO) test --release --package p4-stf --test fuzz -- --nocapture nothing_panics_or_hangs
	$(CARGO) run --release --package p4-twin -- --programs 100000
	$(CARGO) run --release --package p4-twin -- --programs 20000 --seed 4294967296

test-loom: ## All interleavings of the lock-free parts
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=$(TARGET)/loom $(CARGO) test --release --package lock-free

test-end-to-end: ## The product with real guests
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root env HYPERSWITCH_E2E=require HYPERSWITCH_OVS=require $(CARGO) test --release --package testbed

# Long runs whose times are held to bounds; `make test` has short ones without.
test-attack: ## Guests and VMMs that break the rules beside two that do not: what each attack costs them
	HYPERSWITCH_ATTACK=1 $(CARGO) test --release --package datapath --test attack -- --test-threads=1 --nocapture
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root env HYPERSWITCH_ATTACK=1 $(CARGO) test --release --package ovs-shim --test vswitchd leave_others_their_share \
		-- --test-threads=1 --nocapture

# `make test` has the parts without the programs of others.
test-pipeline: ## Policies of ports with real guests, and with dnsmasq, radvd, scapy and arping as rogues
	scripts/setup --pipeline
	scripts/setup --ovs
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root env HYPERSWITCH_E2E=require $(CARGO) test --release --package testbed --test e2e -- \
		--include-ignored --nocapture policies:: rogues::
	scripts/as-root env HYPERSWITCH_OVS=require $(CARGO) test --release --package ovs-shim --test vswitchd \
		ports_have_the_policies -- --nocapture

# Takes twenty minutes, since the supervisor waits longer after each death; `make test` has a few of them.
test-kills: ## 200 deaths of the data plane under mixed load, with real guests: no chain is lost, and none comes twice
	$(CARGO) build --release --package hyperswitch
	scripts/as-root env HYPERSWITCH_E2E=require $(CARGO) test --release --package testbed --test e2e kills::two_hundred \
		-- --ignored --nocapture

# Takes three quarters of an hour. Each part says what does not pass, and why.
OVS_PARTS = test-ovs-guests test-openflow test-ovn test-kmod test-ovsdbapp test-os-vif
test-ovs: ## Everything under an unmodified ovs-vswitchd: the six targets below
	@failed=; for part in $(OVS_PARTS); do \
		echo "$$part:"; $(MAKE) $$part || failed="$$failed $$part"; done; \
	[ -z "$$failed" ] || { echo "Did not pass:$$failed"; exit 1; }

test-ovs-guests: ## An unmodified ovs-vswitchd on the glue, over a data plane in memory and over our own, with real guests
	scripts/setup --ovs
	mkdir -p build
	$(CARGO) build --package hyperswitch --package ovs-shim
	scripts/as-root env HYPERSWITCH_OVS=require $(CARGO) test --package ovs-shim --package ovs-glue --package ovs-netlink \
		> build/test-ovs.txt 2>&1 || { cat build/test-ovs.txt; exit 1; }
	scripts/as-root env HYPERSWITCH_OVS=require $(CARGO) test --package testbed --test ovs \
		>> build/test-ovs.txt 2>&1 || { cat build/test-ovs.txt; exit 1; }
	@grep -E '^test .*\.\.\. ok$$' build/test-ovs.txt | grep -v -e inside_ -e library_client
	@echo "All passed; what they said is in build/test-ovs.txt"

# Takes a quarter of an hour; ONLY=meter is a part.
test-openflow: ## os-ken's switch tests of OpenFlow 1.3 with an unmodified ovs-vswitchd, on our data plane and on Open vSwitch's own
	scripts/setup --ovs
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root scripts/test-openflow --program $(RELEASE)/hyperswitch $(if $(ONLY),--only $(ONLY))

test-ovn: ## OVN on one chassis with an unmodified ovs-vswitchd, on our data plane and on Open vSwitch's own
	scripts/setup --suites
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root scripts/test-ovn --program $(RELEASE)/hyperswitch

# Tests that want devices which the host's kernel lacks (VLAN, bond) run in a QEMU guest; GUEST=1 runs all in one. TESTS="1 2" are some.
test-kmod: ## Open vSwitch's own tests of its kernel datapath on our data plane
	scripts/setup --suites
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root $(if $(GUEST),scripts/in-guest) scripts/test-kmod $(if $(GUEST),,--guest) \
		--program $(abspath $(RELEASE)/hyperswitch) $(TESTS)

# ONLY="add_br" are some of them.
test-ovsdbapp: ## ovsdbapp's functional tests with Open vSwitch as `hyperswitch ovs start` starts it
	scripts/setup --suites
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root scripts/test-ovsdbapp --program $(RELEASE)/hyperswitch $(if $(ONLY),--only "$(ONLY)")

test-os-vif: ## Virtual machines that os-vif plugs, as Nova calls it, on an unmodified ovs-vswitchd
	scripts/setup --ovs
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root scripts/test-os-vif --program $(RELEASE)/hyperswitch

# RELEASES="trixie" tries one; COMMANDS="make test" tries another command than `make demo`.
test-distributions: ## The README's commands on each supported release of Debian, in a tree of its own
	scripts/setup --package
	scripts/as-root scripts/test-distributions $(if $(COMMANDS),--commands "$(COMMANDS)") $(RELEASES)

test-package: deb ## The Debian package under a systemd of each supported release: installed, upgraded under traffic, purged
	scripts/as-root scripts/test-package $(RELEASES)

test-tutorial: deb ## The commands of docs/tutorial.md, from `apt install` to two libvirt guests that ping, and how long they took
	scripts/setup --libvirt
	scripts/as-root scripts/test-tutorial

test-page: ## The page of the process `view` in a headless Chromium, where there is one; pictures go to build/page
	$(CARGO) build --release --package hyperswitch
	scripts/as-root scripts/test-page --program $(RELEASE)/hyperswitch

# TESTS="vlans mtu" are some of them.
test-cni: ## Containers by CNI and netavark, called as a runtime calls them, with Debian's host-local, and by Podman
	scripts/setup --cni
	$(CARGO) build --release --package hyperswitch
	scripts/as-root scripts/test-cni --program $(RELEASE)/hyperswitch $(TESTS)
	$(if $(TESTS),,scripts/as-root scripts/test-podman $(RELEASE)/hyperswitch)

test-libvirt: ## Two domains of the distribution's libvirt and QEMU: deaths, interfaces that come and go, statistics
	scripts/setup --libvirt
	$(CARGO) build --release --package hyperswitch --package ovs-shim
	scripts/as-root scripts/test-libvirt --program $(RELEASE)/hyperswitch $(TESTS)

# SOAK has further arguments: SOAK="--minutes 5 --seed 7".
soak: setup ## An hour of guests that come and go, and of processes that die; not part of the tests
	$(CARGO) build --release --package hyperswitch --package testbed
	scripts/as-root $(RELEASE)/soak $(SOAK)

lint: ## Formatting, clippy and dependencies, without mercy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	scripts/check-dependencies

# BENCH has further arguments: BENCH="--only loop --rounds 3", BENCH=--list.
bench: ## Measure against Open vSwitch and the kernel's bridge; results go to docs/performance
	scripts/setup --bench
	$(CARGO) build --release --package hyperswitch --package testbed --package ovs-shim
	scripts/as-root $(RELEASE)/bench $(BENCH)
	$(MAKE) bench-instructions
	$(MAKE) bench-p4

# Counted by valgrind, so that other programs on the machine do not matter. HYPERSWITCH_UPDATE=1 writes the figures instead of comparing them.
bench-instructions: ## Instructions per packet of a worker and of the pipeline are not more than docs/performance/instructions.md says
	$(CARGO) test --release --package datapath --lib -- --ignored --exact --nocapture worker_cycles::instructions_are_as_published

# One thread each, on a quiet machine; several runs, since a neighbour costs more than any change.
bench-p4: ## Packets, look-ups and changes of P4 programs per second, into docs/performance/p4.txt
	$(CARGO) build --release --package p4-interpreter --package p4-tables --examples
	{ date -u +%F; git rev-parse --short HEAD; grep -m 1 'model name' /proc/cpuinfo; \
	for round in 1 2 3; do \
		$(RELEASE)/examples/speed-of-programs; $(RELEASE)/examples/speed-of-tables; \
	done; } > docs/performance/p4.txt
	cat docs/performance/p4.txt

# Takes long: a build and the tests of the crate for each change. MUTANTS=flow is one crate.
MUTANTS ?= classifier flow wire lock-free placement
mutants: ## Changes to the code that a test should find, by cargo-mutants; what no test finds is in build/mutants
	command -v cargo-mutants > /dev/null || $(CARGO) install --locked cargo-mutants
	set -e; for crate in $(MUTANTS); do \
		$(CARGO) mutants --package $$crate --output build/mutants/$$crate --timeout 60 \
			$$(test $$crate != placement || printf -- '--file %s ' crates/scheduling/placement/src/policy.rs crates/scheduling/placement/src/policy/*.rs); \
	done

simulate: ## The placement policy on modelled machines; results go to docs/performance
	$(CARGO) run --release --package placement-simulator -- docs/performance

clean:
	$(CARGO) clean
	rm -rf build
