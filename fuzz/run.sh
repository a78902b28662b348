#!/bin/sh
# Runs the fuzz targets one after the other: run.sh [SECONDS [TARGET...]]
#
# Needs the stable toolchain and a C++ compiler, nothing else. A finding ends the run with the input in fuzz/artifacts/TARGET;
# run it again with: fuzz/target/*/release/TARGET fuzz/artifacts/TARGET/FILE
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- $(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' Cargo.toml)

# The samples come from an ordinary build; naming the target below keeps the two builds apart.
cargo build --quiet --release --no-default-features --bin seeds
target/release/seeds corpus
fixtures=${ANABRANCH_FIXTURES:-../../shared/fixtures}/torrents
if [ -d "$fixtures" ]; then
    for corpus in metainfo edit; do
        find "$fixtures" -name '*.torrent' -size -64k -exec cp -n {} "corpus/$corpus/" \;
    done
fi

# What cargo-fuzz passes, without a sanitizer: coverage counters on every edge and the operands of comparisons.
host=$(rustc -vV | sed -n 's/^host: //p')
bins=$(printf -- '--bin %s ' "$@")
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1" \
    cargo build --quiet --release --target "$host" $bins

for target in "$@"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "fuzz $target: $seconds s" >&2
    # Memory and time for one input are bounded: hostile input must cost neither.
    if ! "target/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" "corpus/$target" >"artifacts/$target/log" 2>&1; then
        tail -n 40 "artifacts/$target/log" >&2
        echo "fuzz $target: a finding, see fuzz/artifacts/$target" >&2
        exit 1
    fi
    grep -E 'number_of_executed_units|new_units_added|peak_rss_mb' "artifacts/$target/log" >&2
done
