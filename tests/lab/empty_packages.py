"""Packages without content for a host's apt, in a folder of that host."""

from __future__ import annotations

from collections.abc import Iterable

from gdslab import LabHost

#: Makes a package for apt in this folder, and prints its stanza.
DEB = r"""
deb() { # name, version, lines of control, postinst, prerm, file
    rm -rf build && mkdir -p build/DEBIAN
    printf 'Package: %s\nVersion: %s\nArchitecture: all\n%s\n' "$1" "$2" "${3:-Section: misc}" >build/DEBIAN/control
    printf 'Maintainer: nobody <nobody@archive.example>\nDescription: imitated\n' >>build/DEBIAN/control
    [ -z "${4:-}" ] || { printf '#!/bin/sh\n%s\n' "$4" >build/DEBIAN/postinst; chmod 755 build/DEBIAN/postinst; }
    [ -z "${5:-}" ] || { printf '#!/bin/sh\n%s\n' "$5" >build/DEBIAN/prerm; chmod 755 build/DEBIAN/prerm; }
    [ -z "${6:-}" ] || { mkdir -p "build$(dirname "$6")"; echo "$1" >"build$6"; }
    dpkg-deb --build --root-owner-group build "$1_$2.deb" >/dev/null
    dpkg-deb --field "$1_$2.deb"
    printf 'Filename: ./%s\nSize: %s\n' "$1_$2.deb" "$(stat -c %s "$1_$2.deb")"
    printf 'SHA256: %s\n\n' "$(sha256sum "$1_$2.deb" | cut -d' ' -f1)"
}
"""
#: Has apt know what is in /srv/stack.
OFFER = """
echo 'deb [trusted=yes] file:/srv/stack ./' >/etc/apt/sources.list.d/stack.list
apt-get -qq update
"""
#: Its arguments are a name, a version and further lines of control for each package.
_EACH = """
while [ $# -gt 0 ]; do
    deb "$1" "$2" "$3"
    shift 3
done >Packages
"""


def offer(host: LabHost, packages: Iterable[tuple[str, str, str]]) -> None:
    """Make each (name, version, further lines of control), and let the host's apt know them."""
    words = [word for package in packages for word in package]
    script = f"set -eu\nmkdir -p /srv/stack\ncd /srv/stack\n{DEB}{_EACH}{OFFER}"
    host.ssh(["sudo", "sh", "-c", script, "sh", *words])
