# Nothing else has to be done by hand: each target installs and builds what it needs.
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
INSTALL := crates/testbed/peers/install.sh
# Where a script runs this in the background, Ctrl-C is ignored, and so it would be by the programs that tests end with it.
TEST := env --default-signal=INT,HUP $(CARGO) test
# The program under test is always the optimised one.
export ANABRANCH_BIN := $(TARGET)/release/anabranch
# bench: rows to run (all when empty) and further flags, such as `make bench ROWS="loopback-v1 create" FLAGS=--quick`.
ROWS ?=
FLAGS ?=
# lab: what to run.
PLAN ?= plans/000-fig4.toml
# results: which plans (those that are for virtual time are left out), and in which form: FORM= for the standard one, --full.
PLANS ?= $(shell grep -L '^sim = ' plans/*.toml)
FORM ?= --quick
# fuzz: seconds for each target.
SECONDS_EACH ?= 60

.PHONY: help build check deps demo lab test matrix zoo bulk play live daemon page film congestion ledbat mistakes hostile interop churn bench fuzz coverage miri lint rqbit sendme results slurm kills deb tarball

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

build: ## Build the program, optimised: target/release/anabranch
	$(CARGO) build --release -p anabranch

check: lint ## Form, lints and the tests that need neither root nor other programs (minutes): before every change is sent
	$(TEST) --workspace --exclude anabranch-testbed --lib --bins --test fixtures --test hostile --test commands --test choosing --test quiet

deb: build ## Make a Debian package of the program, its manual, completions and service: target/package/*.deb
	@packaging/package.sh deb $(ANABRANCH_BIN) $(TARGET)/package

tarball: build ## The same as an archive for other systems: target/package/*.tar.gz
	@packaging/package.sh tarball $(ANABRANCH_BIN) $(TARGET)/package

demo: build ## Fetch one file over one path, over naive paths and over disjoint ones, and draw a page of it (FLAGS=--web serves it meanwhile)
	$(ANABRANCH_BIN) demo --out $(TARGET)/demo $(FLAGS)

lab: deps build ## Compare SCION with BGP on the same links, as PLAN says (as root; PLAN=plans/000-fig4.toml takes half an hour, FLAGS=--quick minutes, FLAGS=--full hours)
	$(ANABRANCH_BIN) lab run $(PLAN) --out $(TARGET)/lab $(FLAGS)

results: deps build ## Run all plans for real packets in their quick form, and write docs/results.md anew (as root; sixteen minutes; PLANS=... for some, FORM= for the standard form: three hours)
	$(ANABRANCH_BIN) lab run $(PLANS) $(FORM) --resume --out $(TARGET)/results || [ $$? = 4 ]
	$(ANABRANCH_BIN) lab report $(TARGET)/results/*/ --markdown >$(TARGET)/results.md
	mv $(TARGET)/results.md docs/results.md

slurm: deps build ## Run a sweep of 24 cells as a job array of a Slurm of one node (installs it; minutes)
	$(INSTALL) slurm
	$(TEST) -p anabranch-testbed --test lab_slurm -- --ignored --nocapture

kills: deps build ## Kill the lab twenty times at random moments: nothing may be left, and no run lost (a quarter of an hour)
	$(TEST) -p anabranch-testbed --test lab -- --ignored --nocapture

deps: ## Install who the tests talk to (Debian packages; libtorrent and a SCION end host into .deps/)
	$(INSTALL)

test: deps build ## Run all tests, the matrix of clients included (but for rqbit, Deluge, WebTorrent, JPAN and pocketscion)
	CARGO="$(CARGO)" crates/testbed/run-tests.sh

matrix: deps rqbit build ## Let every client share to ours and fetch from it, with the settings that they come with, and write docs/matrix.md anew (as root; an hour; CLIENTS=... for some, into OUT=...)
	$(INSTALL) clients
	$(CARGO) build --release -p anabranch-testbed
	$(TARGET)/release/anabranch-matrix $(if $(OUT),--out $(OUT)) $(CLIENTS)

zoo: deps build ## Share and fetch 200 strange folders in every way (half an hour; ANABRANCH_ZOO_SEED=N for one)
	$(TEST) -p anabranch-testbed --test zoo -- --ignored --nocapture

bulk: build ## Send 20 GiB over the demo's network while its links fail and both ends are killed ten times (half an hour, 40 GB of disk)
	$(TEST) -p anabranch-testbed --test bulk_chaos -- --ignored --nocapture

play: ## Ask for 10,000 ranges of a file while it arrives, and compare them (minutes)
	$(TEST) -p anabranch --test play -- --include-ignored

live: ## Print how fifty viewers of a live stream fare in virtual time, with an uplink of three copies at the source (minutes)
	$(TEST) -p anabranch-ppspp --lib live_table -- --ignored --nocapture --test-threads 1

congestion: ## Print how each congestion control of bulk transfer fares on links in virtual time: the tables of docs/bulk.md (half an hour)
	$(TEST) -p anabranch-hercules --test simulated table -- --ignored --nocapture --test-threads 1

ledbat: ## Print how the congestion control of PPSPP fares on links in virtual time, beside the paper's values
	$(TEST) -p anabranch-ledbat --lib -- --nocapture --test-threads 1

daemon: ## Kill the daemon a hundred times while contents come and go: nothing that was acknowledged may be lost (minutes)
	$(TEST) -p anabranch --test daemon -- --ignored --nocapture

page: deps build ## Drive the daemon's page in a browser: all of it for people with disabilities, on a phone, by keyboard; times are printed (minutes)
	$(TEST) -p anabranch-testbed --test page -- --include-ignored --nocapture --test-threads 1 $(FLAGS)

film: deps build ## Play a film in Chromium, and a live stream in VLC, over two paths of which one is cut meanwhile (minutes)
	$(INSTALL) film
	$(TEST) -p anabranch-testbed --test film -- --ignored --nocapture --test-threads 1

mistakes: ## Give every flag of every command values that cannot be meant, and a transfer a disk that fails (minutes)
	$(TEST) -p anabranch --test mistakes --test places -- --include-ignored

rqbit: ## Build rqbit into .deps/ (minutes)
	$(INSTALL) rqbit

sendme: ## Build sendme, a rival of bulk transfer, into .deps/ (a quarter of an hour)
	$(INSTALL) sendme

interop: deps rqbit build ## Run the whole matrix: rqbit, Deluge, WebTorrent, JPAN and pocketscion included
	$(INSTALL) clients
	$(INSTALL) jpan
	$(TEST) -p anabranch-testbed --test peers --test interop --test scion --test e2e -- --include-ignored
	$(INSTALL) pocketscion
	$(TEST) --locked --manifest-path interop/pocketscion/Cargo.toml --target-dir $(TARGET)/pocketscion

hostile: deps build ## Let every hostile peer, tracker and SCION host loose on a transfer, one kind after the other: none may cost a tenth of it
	$(TEST) -p anabranch-testbed --test hostile_zoo --test hostile_scion -- --ignored --nocapture

churn: ## Add and remove 1000 contents 100 times: memory, descriptors and threads have to be back where they were (minutes)
	$(TEST) --release -p anabranch-swarm --test churn -- --ignored --nocapture

bench: deps build ## Measure against libtorrent, rqbit and sendme (where `make rqbit` and `make sendme` built them) and the floor: see docs/bench.md
	$(INSTALL) bench
	$(CARGO) build --release -p anabranch-testbed
	$(TARGET)/release/anabranch-bench $(FLAGS) $(ROWS)

fuzz: ## Fuzz every parser for SECONDS_EACH seconds
	fuzz/run.sh $(SECONDS_EACH)

coverage: ## Which lines of path choice its own tests reach (installs cargo-tarpaulin below target/; a quarter of an hour)
	$(CARGO) install --quiet --locked --root $(TARGET)/tools cargo-tarpaulin
	PATH="$(TARGET)/tools/bin:$$PATH" $(CARGO) tarpaulin -p anabranch-paths --lib --engine ptrace --skip-clean \
		--include-files 'crates/paths/src/*' --target-dir $(TARGET)/coverage --out Stdout

miri: ## Run what handles raw memory under Miri (needs a nightly toolchain; without Miri: under AddressSanitizer)
	fuzz/memory.sh

lint: ## What CI asks of the code's form
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) fmt --check --manifest-path interop/sciparse-host/Cargo.toml
	$(CARGO) fmt --check --manifest-path interop/pocketscion/Cargo.toml
