#!/bin/sh
# Installs what the tests need and is not there yet: Debian packages, libtorrent and qbittorrent-api for Python in .deps/venv, axe-core for
# JavaScript in .deps/axe, and a SCION end host of Anapaya's crates in .deps/sciparse-host. Quick when everything is there. Instead of
# that (minutes each):
#   install.sh rqbit         builds rqbit into .deps/rqbit
#   install.sh sendme        builds sendme into .deps/sendme
#   install.sh clients       installs Deluge, and WebTorrent into .deps/webtorrent (wants Node.js with npm)
#   install.sh jpan          builds a SCION end host around JPAN into .deps/jpan, and installs Maven and a JDK for it
#   install.sh pocketscion   installs what interop/pocketscion takes to build
#   install.sh bench         installs the programs that bulk transfer is measured beside, and builds croc into .deps/croc where Go is
#   install.sh slurm         installs Slurm, for tests of job arrays
#   install.sh film          installs what makes films, and who plays them
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

packages=
need() { # PROGRAM PACKAGE
    command -v "$1" >/dev/null || packages="$packages $2"
}

install_packages() {
    [ -n "$packages" ] || return 0
    command -v apt-get >/dev/null || {
        echo "The tests need these (names of Debian packages):$packages" >&2
        exit 1
    }
    # RUNLEVEL=1 keeps the package scripts from starting transmission as a service.
    # shellcheck disable=SC2086
    install="env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -q --no-install-recommends $packages"
    # The package lists may be missing or stale: refresh them only then.
    as_root $install || { as_root apt-get update -q && as_root $install; }
}

case "${1:-}" in
rqbit)
    [ -x .deps/rqbit/bin/rqbit ] || cargo install rqbit --version 9.1.0 --locked --root .deps/rqbit
    exit
    ;;
sendme)
    [ -x .deps/sendme/bin/sendme ] || cargo install sendme --version 0.37.1 --locked --root .deps/sendme
    exit
    ;;
clients)
    need deluged deluged
    need deluge-console deluge-console
    need node nodejs
    need npm npm
    install_packages
    # Of version 2, WebRTC's binary comes from no registry.
    [ -d .deps/webtorrent/node_modules/webtorrent ] ||
        npm install --no-audit --no-fund --ignore-scripts --silent --prefix .deps/webtorrent webtorrent@1.9.7
    exit
    ;;
jpan)
    need mvn maven
    need javac default-jdk-headless
    install_packages
    peer=crates/testbed/peers/jpan
    [ .deps/jpan/peer.jar -nt $peer/src/main/java/Peer.java ] && [ .deps/jpan/peer.jar -nt $peer/pom.xml ] && exit
    out=$PWD/.deps/jpan
    mvn -B -q -f $peer/pom.xml -Doutput="$out" package dependency:copy-dependencies -DoutputDirectory="$out/lib" || {
        echo "The JPAN peer was not built. Maven takes JPAN (org.scion:jpan, the version in $peer/pom.xml) from Maven" \
            "Central. Where that is not reachable or does not have it, install it into the local repository first:" \
            "\`mvn install\` in a checkout of JPAN of that version." >&2
        exit 1
    }
    exit
    ;;
film)
    need ffmpeg ffmpeg
    need vlc vlc-bin
    # What it reads, decodes and shows with comes without a program.
    ls /usr/lib/*/vlc/plugins/codec/libavcodec_plugin.so >/dev/null 2>&1 || packages="$packages vlc-plugin-base"
    need chromium chromium
    need chromedriver chromium-driver
    install_packages
    exit
    ;;
slurm)
    need sbatch slurm-client
    need /usr/sbin/slurmctld slurmctld
    need /usr/sbin/slurmd slurmd
    need /usr/sbin/munged munge
    need nsenter util-linux
    install_packages
    exit
    ;;
pocketscion)
    need cmake cmake
    need c++ g++
    # BoringSSL's bindings are made with libclang, which comes without a program.
    ls /usr/lib/llvm-*/lib/libclang.so* >/dev/null 2>&1 || packages="$packages libclang-dev"
    install_packages
    exit
    ;;
bench)
    need iperf3 iperf3
    need rsync rsync
    need scp openssh-client
    need /usr/sbin/sshd openssh-server
    need openssl openssl
    need curl curl
    install_packages
    # A rival more, where Go is: a minute.
    [ -x .deps/croc/croc ] || ! command -v go >/dev/null ||
        GOBIN=$PWD/.deps/croc go install github.com/schollz/croc/v10@v10.7.0 ||
        echo "croc was not built: bulk transfer is measured without it" >&2
    exit
    ;;
esac

need aria2c aria2
need transmission-daemon transmission-daemon
need transmission-remote transmission-cli
need transmission-create transmission-cli
need qbittorrent-nox qbittorrent-nox
need rtorrent rtorrent
need ip iproute2
# Routers that translate addresses, and open ports.
need /usr/sbin/nft nftables
need /usr/sbin/miniupnpd miniupnpd-nftables
need sysctl procps
# A web server of HTTP/2.
need /usr/sbin/nginx nginx
# A proxy that relays datagrams.
need /usr/sbin/danted dante-server
need python3 python3
need iperf3 iperf3
need globus-url-copy globus-gass-copy-progs
need /usr/sbin/globus-gridftp-server globus-gridftp-server-progs
# The page is driven in a browser.
need chromium chromium
need chromedriver chromium-driver
need npm npm
# What says what a service may reach.
need systemd-analyze systemd
# BGP of the lab: daemons that are in nobody's PATH.
need /usr/lib/frr/bgpd frr
# Debian splits ensurepip off into python3-venv.
if command -v python3 >/dev/null && ! python3 -c 'import ensurepip' 2>/dev/null; then
    packages="$packages python3-venv"
fi

install_packages

venv=.deps/venv
installed() {
    "$venv/bin/python" -c 'import libtorrent, qbittorrentapi, sys; sys.exit(not libtorrent.version.startswith("2.1."))' \
        2>/dev/null
}
if ! installed; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check 'libtorrent==2.1.*' qbittorrent-api
    installed
fi

# What finds on a page what keeps people with disabilities out.
[ -f .deps/axe/node_modules/axe-core/axe.min.js ] ||
    npm install --silent --no-audit --no-fund --ignore-scripts --prefix .deps/axe axe-core@4

cargo build --quiet --locked --manifest-path interop/sciparse-host/Cargo.toml --target-dir .deps/sciparse-host
