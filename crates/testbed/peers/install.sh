#!/bin/sh
# Installs what the tests need and is not there yet: Debian packages, and libtorrent for Python in .deps/venv.
# Quick when everything is there. `install.sh rqbit` builds rqbit into .deps/rqbit instead (minutes).
set -eu
cd "$(dirname "$0")/../../.."

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "Installing the Debian packages of the tests needs root or sudo. As root: apt-get install $packages" >&2
        exit 1
    fi
}

if [ "${1:-}" = rqbit ]; then
    [ -x .deps/rqbit/bin/rqbit ] || cargo install rqbit --version 9.1.0 --locked --root .deps/rqbit
    exit
fi

packages=
need() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null || packages="$packages $2"
}
need aria2c aria2
need transmission-daemon transmission-daemon
need transmission-remote transmission-cli
need transmission-create transmission-cli
need ip iproute2
need sysctl procps
need python3 python3
# Debian splits ensurepip off into python3-venv.
if command -v python3 >/dev/null && ! python3 -c 'import ensurepip' 2>/dev/null; then
    packages="$packages python3-venv"
fi

if [ -n "$packages" ]; then
    command -v apt-get >/dev/null || {
        echo "The tests need these (names of Debian packages):$packages" >&2
        exit 1
    }
    # RUNLEVEL=1 keeps the package scripts from starting transmission as a service.
    # shellcheck disable=SC2086
    install="env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q --no-install-recommends $packages"
    # The package lists may be missing or stale: refresh them only then.
    as_root $install || { as_root apt-get update -q && as_root $install; }
fi

venv=.deps/venv
installed() { "$venv/bin/python" -c 'import libtorrent, sys; sys.exit(not libtorrent.version.startswith("2.1."))' 2>/dev/null; }
if ! installed; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'libtorrent==2.1.*'
    installed
fi
