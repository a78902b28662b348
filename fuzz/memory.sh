#!/bin/sh
# Runs the unit tests of what handles raw memory on the way of received bytes: the pool of buffers, the buffers in which pieces
# gather, and the layout of a receive. Under Miri, which knows every access that the language does not allow, be it harmless
# today; where the nightly toolchain has no Miri, under AddressSanitizer, which sees those that go beside their memory.
set -eu
cd "$(dirname "$0")/.."

if ! rustc +nightly -vV >/dev/null 2>&1; then
    echo "memory: left out: no nightly toolchain (rustup toolchain install nightly --component miri,rust-src)" >&2
    exit 0
fi
target=${CARGO_TARGET_DIR:-target}/memory
if cargo +nightly miri --version >/dev/null 2>&1; then
    echo "memory: under Miri" >&2
    run() {
        # Time passes by its own clock, and no test needs a file.
        cargo +nightly miri test --target-dir "$target" "$@"
    }
else
    echo "memory: under AddressSanitizer: no Miri (rustup component add --toolchain nightly miri rust-src)" >&2
    host=$(rustc -vV | sed -n 's/^host: //p')
    run() {
        # Naming the target keeps build scripts as they are.
        RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=0 \
            cargo +nightly test --target "$host" --target-dir "$target" "$@"
    }
fi
run -p anabranch-content --lib -- storage::pool
run -p anabranch-swarm --lib -- store::buffers bittorrent::scratch bittorrent::conn
