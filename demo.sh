#!/bin/sh
# Shares a 1 GiB file between two processes on loopback: one has it, the other fetches it. Shows progress, the rate, and
# that both files have the same SHA-256. Leaves nothing behind. `make demo` builds the program first.
set -eu

SIZE_MIB=1024
# The file twice, and a margin for what else is written meanwhile.
ROOM_MIB=$((3 * SIZE_MIB))
# How long the sharing process has to hash the file and listen, in tenths of a second.
START_TRIES=600

cd "$(dirname "$0")"
folder=
sharer=

fail() {
	echo "demo failed: $*" >&2
	exit 1
}

finish() {
	status=$?
	trap - EXIT INT TERM HUP
	if [ -n "$sharer" ]; then
		kill "$sharer" 2>/dev/null || true
		wait "$sharer" 2>/dev/null || true
	fi
	if [ -n "$folder" ]; then
		rm -rf "$folder"
	fi
	exit "$status"
}

room_mib() {
	df -Pm "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'
}

now_ms() {
	date +%s%3N
}

digest() {
	sha256sum <"$1" | cut -d ' ' -f 1
}

trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -z "${ANABRANCH_BIN:-}" ]; then
	cargo build --release --locked --package anabranch || fail "the program does not build"
	ANABRANCH_BIN=${CARGO_TARGET_DIR:-target}/release/anabranch
fi
[ -x "$ANABRANCH_BIN" ] || fail "there is no program at $ANABRANCH_BIN; unset ANABRANCH_BIN to build it"

# Memory, where there is room: then the demo shows the program and not the disk.
parent=/dev/shm
if ! [ -w "$parent" ] || [ "$(room_mib "$parent")" -lt "$ROOM_MIB" ]; then
	parent=${TMPDIR:-/tmp}
	room=$(room_mib "$parent")
	[ "${room:-0}" -ge "$ROOM_MIB" ] || fail "$parent has ${room:-no} MiB free, $ROOM_MIB are needed; point TMPDIR elsewhere"
fi
folder=$(mktemp -d "$parent/anabranch-demo.XXXXXX") || fail "no folder can be made in $parent"
mkdir "$folder/here" "$folder/there"
# The demo is the same whatever the user's own settings are.
config=$folder/config.toml
: >"$config"

echo "Making a file of $SIZE_MIB MiB of noise in $folder"
head -c "$((SIZE_MIB * 1024 * 1024))" /dev/urandom >"$folder/here/noise" || fail "the file cannot be written"

echo "\$ anabranch create noise -o noise.torrent"
"$ANABRANCH_BIN" --config "$config" create "$folder/here/noise" -o "$folder/noise.torrent" || fail "no torrent was made"

echo "\$ anabranch share noise.torrent --listen 127.0.0.1:0"
: >"$folder/share.out"
"$ANABRANCH_BIN" --config "$config" share "$folder/noise.torrent" --data "$folder/here" --listen 127.0.0.1:0 >"$folder/share.out" 2>"$folder/share.err" &
sharer=$!
# The magnet link comes last: when it is there, everything is hashed and shared.
tries=0
until grep -q '^magnet:' "$folder/share.out"; do
	kill -0 "$sharer" 2>/dev/null || fail "the sharing process ended: $(cat "$folder/share.err")"
	tries=$((tries + 1))
	[ "$tries" -le "$START_TRIES" ] || fail "the sharing process does not listen after $((START_TRIES / 10)) s"
	sleep 0.1
done
address=$(sed -n 's/^listening on \([^ ]*\).*/\1/p' "$folder/share.out")
[ -n "$address" ] || fail "the sharing process does not say where it listens"

echo "\$ anabranch get noise.torrent --peer $address"
began=$(now_ms)
# In front, so that it draws its progress on the terminal.
"$ANABRANCH_BIN" --config "$config" get "$folder/noise.torrent" -o "$folder/there" --peer "$address" --listen 127.0.0.1:0 || fail "nothing was fetched"
took=$(($(now_ms) - began))
[ "$took" -gt 0 ] || took=1
echo "$SIZE_MIB MiB in $took ms: $((SIZE_MIB * 1048576 / took / 1000)) MB/s, hashing, writing and starting up included"

ours=$(digest "$folder/here/noise")
theirs=$(digest "$folder/there/noise")
echo "SHA-256 shared:  $ours"
echo "SHA-256 fetched: $theirs"
[ "$ours" = "$theirs" ] || fail "the files differ"
echo "The files are the same."
