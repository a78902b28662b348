#!/bin/sh
# Runs the fuzz targets one after the other: run.sh [SECONDS [TARGET...]]
#
# Needs the stable toolchain and a C++ compiler, nothing else. Where a nightly toolchain is installed, the targets are built with
# it, and with AddressSanitizer: what reads or writes beside its memory is then found where it does so. A finding ends the run
# with the input in fuzz/artifacts/TARGET; the last line says how to run it again.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- $(sed -n 's|^path = "fuzz_targets/\(.*\)\.rs"|\1|p' Cargo.toml)

# The samples come from an ordinary build; naming the target below keeps the two builds apart.
cargo build --quiet --no-default-features --bin seeds
target/debug/seeds corpus
fixtures=${ANABRANCH_FIXTURES:-../../shared/fixtures}/torrents
if [ -d "$fixtures" ]; then
    for corpus in metainfo edit; do
        find "$fixtures" -name '*.torrent' -size -64k -exec cp -n {} "corpus/$corpus/" \;
    done
fi

host=$(rustc -vV | sed -n 's/^host: //p')
# Bytes that the sanitizer keeps of freed memory count as the target's own; leaks are none of its business here, and looking for
# them is forbidden in many containers.
export ASAN_OPTIONS=quarantine_size_mb=64:detect_leaks=0:detect_odr_violation=0
if ls "$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/$host/lib/"*_rt.asan.a >/dev/null 2>&1; then
    echo "fuzz: with AddressSanitizer" >&2
    toolchain=+nightly sanitizer=-Zsanitizer=address built=target/address rss=2048
else
    echo "fuzz: without AddressSanitizer: no nightly toolchain is installed that has it" >&2
    toolchain= sanitizer= built=target rss=1024
fi
# What cargo-fuzz passes: coverage counters on every edge and the operands of comparisons.
bins=$(printf -- '--bin %s ' "$@")
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 $sanitizer" \
    cargo $toolchain build --quiet --release --target "$host" --target-dir "$built" $bins

for target in "$@"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    echo "fuzz $target: $seconds s" >&2
    # Memory and time for one input are bounded: hostile input must cost neither.
    if ! "$built/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=$rss -max_len=65536 \
        -print_final_stats=1 -artifact_prefix="artifacts/$target/" "corpus/$target" >"artifacts/$target/log" 2>&1; then
        tail -n 40 "artifacts/$target/log" >&2
        echo "fuzz $target: a finding; again with: fuzz/$built/$host/release/$target fuzz/artifacts/$target/FILE" >&2
        exit 1
    fi
    grep -aE 'number_of_executed_units|new_units_added|peak_rss_mb' "artifacts/$target/log" >&2
done
