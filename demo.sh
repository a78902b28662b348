#!/bin/sh
# Runs a SCION network of three ASes in one process, shares a 1 GiB file at one end of it and fetches it at the other.
# Shows the path, progress, the rate, and that both files have the same SHA-256. Leaves nothing behind, needs no root and
# nothing but loopback addresses. `make demo` builds the program first.
set -eu

SIZE_MIB=1024
# The file twice, and a margin for what else is written meanwhile.
ROOM_MIB=$((3 * SIZE_MIB))
# How long the network has to start, and the sharing process to hash the file and listen, in tenths of a second.
START_TRIES=600
# alice and bob are hosts of two leaf ASes under one core AS.
TOPOLOGY=topologies/line.toml
ALICE_AS=1-ff00:0:111
BOB_AS=1-ff00:0:112
PORT=31000

cd "$(dirname "$0")"
folder=
network=
sharer=

fail() {
	echo "demo failed: $*" >&2
	exit 1
}

finish() {
	status=$?
	trap - EXIT INT TERM HUP
	for process in $sharer $network; do
		kill "$process" 2>/dev/null || true
		wait "$process" 2>/dev/null || true
	done
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

await() { # PROCESS FILES PATTERN NAME: until the process has written a line of this pattern
	tries=0
	until grep -q "$3" "$2.out" 2>/dev/null; do
		kill -0 "$1" 2>/dev/null || fail "$4 ended: $(cat "$2.err")"
		tries=$((tries + 1))
		[ "$tries" -le "$START_TRIES" ] || fail "$4 is not up after $((START_TRIES / 10)) s"
		sleep 0.1
	done
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

echo "\$ anabranch net up $TOPOLOGY"
"$ANABRANCH_BIN" --config "$config" net up "$TOPOLOGY" --control 127.0.0.1:0 >"$folder/net.out" 2>"$folder/net.err" &
network=$!
# The links come last: when they are listed, everything runs.
await "$network" "$folder/net" '^link ' "the network"
cat "$folder/net.out"
row() { # AS COLUMN, of the table that `net up` prints
	awk -v as="$1" -v column="$2" '$1 == as { print column == "host" ? $NF : $2; exit }' "$folder/net.out"
}
alice=$(row "$ALICE_AS" daemon)
bob=$(row "$BOB_AS" daemon)
bob_host=$(row "$BOB_AS" host)
[ -n "$alice" ] && [ -n "$bob" ] && [ -n "$bob_host" ] || fail "the network does not say where its daemons and hosts are"

echo
echo "\$ anabranch paths $BOB_AS --sciond $alice"
"$ANABRANCH_BIN" --config "$config" paths "$BOB_AS" --sciond "$alice" || fail "there is no path"

echo
address="[$BOB_AS,$bob_host]:$PORT"
echo "\$ anabranch share noise.torrent --listen $address --sciond $bob"
"$ANABRANCH_BIN" --config "$config" share "$folder/noise.torrent" --data "$folder/here" --listen "$address" --sciond "$bob" >"$folder/share.out" 2>"$folder/share.err" &
sharer=$!
# The magnet link comes last: when it is there, everything is hashed and shared.
await "$sharer" "$folder/share" '^magnet:' "the sharing process"

echo "\$ anabranch get noise.torrent --peer $address --sciond $alice"
began=$(now_ms)
# In front, so that it draws its progress on the terminal.
"$ANABRANCH_BIN" --config "$config" get "$folder/noise.torrent" -o "$folder/there" --peer "$address" --sciond "$alice" --listen 127.0.0.1:0 || fail "nothing was fetched"
took=$(($(now_ms) - began))
[ "$took" -gt 0 ] || took=1
echo "$SIZE_MIB MiB in $took ms: $((SIZE_MIB * 1048576 / took / 1000)) MB/s, hashing, writing and starting up included"

ours=$(digest "$folder/here/noise")
theirs=$(digest "$folder/there/noise")
echo "SHA-256 shared:  $ours"
echo "SHA-256 fetched: $theirs"
[ "$ours" = "$theirs" ] || fail "the files differ"
echo "The files are the same."
