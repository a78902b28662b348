#!/bin/sh
# Runs all tests of the workspace. Most of their time is waiting (for peers, timers, links), so several test programs run side by
# side: SIDE_BY_SIDE of them, three where nothing is said. One that fails there has a second try alone, and is named: what fails again,
# fails. CARGO is the cargo to use. BESIDE is a command that runs meanwhile, once all is built, and has to succeed too.
set -eu
cargo=${CARGO:-cargo}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM HUP

"$cargo" test --workspace --no-run --message-format json-render-diagnostics >"$logs/built"
# A line for each program: the folder of its package, and itself. Who talks to other programs takes longest, and begins.
sed -n 's|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"overflow_checks":[a-z]*,"test":true}.*"executable":"\([^"]*\)".*|\1 \2|p' \
    "$logs/built" | sort -u | awk '/\/testbed /{ print; next } { rest = rest $0 "\n" } END { printf "%s", rest }' >"$logs/programs"
[ -s "$logs/programs" ] || { echo "no test programs among what cargo built" >&2; exit 1; }

if [ -n "${BESIDE:-}" ]; then
    { $BESIDE >"$logs/beside" 2>&1 && status=0 || status=$?; echo $status >"$logs/beside-status"; } &
    beside=$!
fi

# As a session that nobody has told to ignore Ctrl-C: tests end programs with it.
cat >"$logs/one" <<'ONE'
log=$1/$(basename "$3").log
begun=$(date +%s)
cd "$2" && CARGO_MANIFEST_DIR=$2 env --default-signal=INT,HUP "$3" >"$log" 2>&1 </dev/null
status=$?
{ echo "     Running $(basename "$3") ($2), $(($(date +%s) - begun)) s"; cat "$log"; }
[ $status = 0 ] || echo "$2 $3" >>"$1/failed"
exit 0
ONE
xargs -P "${SIDE_BY_SIDE:-3}" -n 2 sh "$logs/one" "$logs" <"$logs/programs"

if [ -e "$logs/failed" ]; then
    # What found something in input that is new each time is not to pass with other input.
    grep '/fuzz_targets-' "$logs/failed" >"$logs/found" || true
    mv "$logs/failed" "$logs/again"
    echo "these failed beside others, and are tried again alone:"
    sed 's/.* /    /' "$logs/again"
    xargs -n 2 sh "$logs/one" "$logs" <"$logs/again"
    [ ! -s "$logs/found" ] || cat "$logs/found" >>"$logs/failed"
fi
"$cargo" test --workspace --doc
if [ -n "${BESIDE:-}" ]; then
    wait "$beside"
    cat "$logs/beside"
    [ "$(cat "$logs/beside-status")" = 0 ] || echo "$BESIDE" >>"$logs/failed"
fi
if [ -e "$logs/failed" ]; then
    echo "failed:" >&2
    sed 's/^[^ ]* \//    \//' "$logs/failed" >&2
    exit 1
fi
