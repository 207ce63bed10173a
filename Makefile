# weir. `make` lists what there is.

METHOD := $(if $(FLEET),cheetah,concury)
SECONDS := 30
EVENTS := 500
KILLS := 200
HELD := 100000
SYNS := 8000000
MINUTES := 60
ONLY :=
FRAMES := 1000000
FORWARD := l2
PLANE := kernel
OFFLOAD :=
CARD :=
RULES :=
LINK :=
SILENT :=
MSS :=
RUNS := 10
# Only a plane over DPDK needs its packages, and a program that is linked to them.
DPDK := $(if $(filter dpdk,$(PLANE)),dpdk)
.DEFAULT_GOAL := help
.PHONY: help setup build site deb demo test bench soak soak-faults soak-kills soak-flood soak-accounting upgrade-test install-test container-test fuzz mutations p4-test kernel-test clean

# Rust's installer puts cargo where no PATH looks before the next login.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/sbin:/sbin
# The laboratory, the tests and the benches need root.
ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

help:
	@echo 'make demo [METHOD=concury|tracked|jet|residue|cheetah|cheetah-stateful]'
	@echo '          [FORWARD=l2|ipip|gue|fou|gre|nat|fullnat] [PLANE=kernel|af-xdp|dpdk|p4]'
	@echo '          [SECONDS=30] [FLEET=3 [ROUTER=bgp|gobgp]]'
	@echo '          [FORWARD=ipip|gue|fou|gre|fullnat LINK=1400 [SILENT=yes] [MSS=1340]]'
	@echo '          [PLANE=af-xdp|dpdk OFFLOAD=sound|hostile [RULES=N] [CARD=emulated-veth]]'
	@echo '            real clients and servers around the balancer, while its pool changes'
	@echo 'make test   format, lints, documentation, tests, fuzzing, benches in small, laboratories'
	@echo 'make bench  every bench in full size; figures to bench-results/'
	@echo 'make soak [RUNS=10] [SECONDS=30]'
	@echo '            laboratories with RUNS seeds for each method; model checks to the end'
	@echo 'make soak-faults [EVENTS=500] [WEIR_SEED=N]'
	@echo '            one history of faults under connections'
	@echo 'make soak-kills [KILLS=200] [WEIR_SEED=N]'
	@echo '            SIGKILLs at random moments of changes of method, pool and file under connections'
	@echo 'make soak-flood [HELD=100000] [SYNS=8000000]'
	@echo '            HELD connections, and a tenth as many that begin meanwhile, through a flood and changes'
	@echo 'make soak-accounting [MINUTES=60] [ONLY=every_packet_is_counted_once] [WEIR_SEED=N]'
	@echo '            what drivers received is what was forwarded, left to the kernel and dropped, by five ways to'
	@echo '            backends (ONLY one of them), each for so long'
	@echo 'make upgrade-test [OLD=COMMIT] [NEW=COMMIT]'
	@echo '            a version takes the place of an older one, and goes again, under connections'
	@echo 'make install-test [SUITE=bookworm]'
	@echo '            the packages into a clean Debian that is made for it, and three commands to a balanced request'
	@echo 'make container-test [PROGRAM=target/release/weir]'
	@echo '            the container, built by its recipe (or of PROGRAM, which is much sooner), in front of two'
	@echo '            servers: stopped, killed, started again, and without each of its capabilities'
	@echo 'make fuzz [SECONDS=30] [FRAMES=1000000] [ONLY=random_frames]'
	@echo '            random inputs for the parser and for maps, then FRAMES random packets for the'
	@echo '            BPF program and its twin, of a grammar and blind, and in bursts (ONLY: not)'
	@echo 'make mutations'
	@echo '            faults of the packet path, each of which the corpus must find'
	@echo 'make p4-test'
	@echo '            the P4 plane on a running simple switch (p4c-bm2-ss and simple_switch in PATH)'
	@echo 'make kernel-test'
	@echo '            the BPF programs under the kernel of Debian, in QEMU (installs it), and a laboratory'
	@echo '            there with VLANs, bonds and the ends of tunnels that the kernel has, and the units'
	@echo '            of the packages under systemd'
	@echo 'make build  target/release/weir'
	@echo 'make site   the documentation as pages for a browser, in target/site'
	@echo 'make deb    Debian packages of it, in target/deb'
	@echo 'make setup  install what is missing (demo and test do it themselves)'
	@echo 'make clean  remove what was built'

setup:
	@scripts/setup

build:
	@scripts/setup demo $(DPDK)
	@cargo build --locked --release $(if $(DPDK),--features weir/dpdk)

deb: build
	@scripts/deb

demo: build
	@$(ROOT) target/release/weir lab --method $(METHOD) --forward $(FORWARD) --plane $(PLANE) --duration $(SECONDS)s $(if $(OFFLOAD),--offload $(OFFLOAD)) $(if $(RULES),--rules $(RULES)) $(if $(CARD),--card $(CARD)) $(if $(LINK),--link-mtu $(LINK)) $(if $(SILENT),--link-silent) $(if $(MSS),--mss $(MSS)) $(if $(FLEET),--fleet $(FLEET)) $(if $(ROUTER),--router $(ROUTER))

test:
	@scripts/setup test
	@scripts/test

bench: build
	@scripts/bench

soak: build
	@scripts/soak $(RUNS) $(SECONDS)

soak-faults:
	@scripts/setup test
	@WEIR_EVENTS=$(EVENTS) cargo test --locked --release -p weir --test faults whatever_happens -- --nocapture

soak-kills:
	@scripts/setup test
	@WEIR_KILLS=$(KILLS) cargo test --locked --release -p weir --test sigkill -- --nocapture

soak-flood:
	@scripts/setup test
	@WEIR_HELD=$(HELD) WEIR_SYNS=$(SYNS) cargo test --locked --release -p weir --test flood connections_outlive -- --nocapture

soak-accounting:
	@scripts/setup test
	@WEIR_SECONDS=$$(($(MINUTES) * 60)) cargo test --locked --release -p weir --test accounting $(ONLY) -- --nocapture

# OLD and NEW: commits or programs, see scripts/upgrade-test.
upgrade-test:
	@scripts/setup test
	@scripts/upgrade-test $(OLD) $(NEW)

# Needs mmdebstrap, and Debian's archive.
install-test: build
	@scripts/install-test $(SUITE)

# Needs podman, crun, mmdebstrap, and Debian's archive or that of the base images.
container-test:
	@scripts/container-test $(PROGRAM)

# The documentation as pages for a browser.
site:
	@scripts/site

# Without cargo-fuzz: see scripts/fuzz.
fuzz:
	@scripts/setup test
	@scripts/fuzz $(SECONDS)
	@scripts/fuzz-frames $(FRAMES) $(ONLY)

mutations:
	@scripts/setup test
	@scripts/mutations

# On a P4 switch, which is to be in PATH: see scripts/p4-test.
p4-test:
	@scripts/p4-test

kernel-test: build
	@scripts/kernel-test

clean:
	@cargo clean
	@rm -rf fuzz/target
