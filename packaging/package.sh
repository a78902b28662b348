#!/bin/sh
# Makes a package of a program that is built: package.sh deb|tarball PROGRAM OUT
#
# `deb` makes a Debian package with dpkg-deb alone, `tarball` an archive for all else: the program, its man pages and completions, the
# service, its configuration, the documentation. Both are the same, byte for byte, for the same program and commit.
set -eu
kind=$1 program=$(realpath "$2") out=$3
cd "$(dirname "$0")/.."
version=$("$program" --version | sed 's/.* //')
architecture=$(dpkg --print-architecture 2>/dev/null || uname -m)
# Times of the commit, so that it does not matter when this runs.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What is the same in both, below $1.
fill() {
    install -D -m 755 "$program" "$1/bin/anabranch"
    # What is in there for debuggers is most of its size, and backtraces need lines alone.
    strip --strip-debug "$1/bin/anabranch" 2>/dev/null || true
    mkdir -p "$1/share/man/man1"
    "$program" man --dir "$1/share/man/man1"
    gzip -9 -n "$1"/share/man/man1/*.1
    mkdir -p "$1/share/bash-completion/completions" "$1/share/zsh/vendor-completions" "$1/share/fish/vendor_completions.d"
    "$program" completions bash >"$1/share/bash-completion/completions/anabranch"
    "$program" completions zsh >"$1/share/zsh/vendor-completions/_anabranch"
    "$program" completions fish >"$1/share/fish/vendor_completions.d/anabranch.fish"
    mkdir -p "$1/share/doc/anabranch"
    cp README.md docs/*.md "$1/share/doc/anabranch/"
}

case $kind in
deb)
    root=$work/root
    fill "$root/usr"
    install -D -m 644 packaging/anabranch.service "$root/usr/lib/systemd/system/anabranch.service"
    install -D -m 644 packaging/config.toml "$root/etc/anabranch/config.toml"
    # Debian's form of a licence that every Debian has.
    cat >"$root/usr/share/doc/anabranch/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: anabranch

Files: *
Copyright: the Anabranch authors
License: Apache-2.0
 On Debian systems, the full text is in /usr/share/common-licenses/Apache-2.0.
END
    mkdir -p "$root/DEBIAN"
    cp packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm "$root/DEBIAN/"
    chmod 755 "$root"/DEBIAN/p*
    echo /etc/anabranch/config.toml >"$root/DEBIAN/conffiles"
    # What the program is linked with that not every system has, at the versions of the one it was built on.
    libc=$(dpkg-query -W -f '${Version}' libc6 2>/dev/null | sed 's/-.*//')
    cat >"$root/DEBIAN/control" <<END
Package: anabranch
Version: $version
Architecture: $architecture
Maintainer: the Anabranch authors <anabranch@localhost>
Section: net
Priority: optional
Depends: libc6 (>= ${libc:-2.31}), libgcc-s1
Recommends: ca-certificates
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Description: moves files over every path at once
 Shares, fetches, sends and streams content between machines that have more
 than one way to reach each other: several SCION paths, several uplinks, or
 both. To everybody else it is a fast, ordinary BitTorrent client.
 .
 The service keeps a library of contents behind an HTTP API, qBittorrent's
 WebAPI and a page.
END
    (cd "$root" && find usr etc -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$root" -print0 | xargs -0 touch -h -d "@$SOURCE_DATE_EPOCH"
    package=$out/anabranch_${version}_$architecture.deb
    dpkg-deb --root-owner-group -Zxz -z3 --build "$root" "$package" >/dev/null
    ;;
tarball)
    name=anabranch-$version-linux-$architecture
    fill "$work/$name"
    install -D -m 644 packaging/anabranch.service "$work/$name/share/anabranch/anabranch.service"
    install -D -m 644 packaging/config.toml "$work/$name/share/anabranch/config.toml"
    cp LICENSE "$work/$name/"
    package=$out/$name.tar.gz
    tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c "$name" | gzip -9 -n >"$package"
    ;;
*)
    echo "package.sh: $kind is neither deb nor tarball" >&2
    exit 2
    ;;
esac
echo "$package"
