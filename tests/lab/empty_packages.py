"""Packages without content for a host's apt, in a folder of that host."""

from __future__ import annotations

from collections.abc import Iterable

from gdslab import LabHost

#: Its arguments are a name, a version and further lines of control for each package.
_SCRIPT = r"""
set -eu
mkdir -p /srv/stack
cd /srv/stack
deb() {
    rm -rf build && mkdir -p build/DEBIAN
    printf 'Package: %s\nVersion: %s\nArchitecture: all\n%s\n' "$1" "$2" "${3:-Section: misc}" >build/DEBIAN/control
    printf 'Maintainer: nobody <nobody@archive.example>\nDescription: imitated\n' >>build/DEBIAN/control
    dpkg-deb --build --root-owner-group build "$1_$2.deb" >/dev/null
    dpkg-deb --field "$1_$2.deb"
    printf 'Filename: ./%s\nSize: %s\n' "$1_$2.deb" "$(stat -c %s "$1_$2.deb")"
    printf 'SHA256: %s\n\n' "$(sha256sum "$1_$2.deb" | cut -d' ' -f1)"
}
while [ $# -gt 0 ]; do
    deb "$1" "$2" "$3"
    shift 3
done >Packages
echo 'deb [trusted=yes] file:/srv/stack ./' >/etc/apt/sources.list.d/stack.list
apt-get -qq update
"""


def offer(host: LabHost, packages: Iterable[tuple[str, str, str]]) -> None:
    """Make each (name, version, further lines of control), and let the host's apt know them."""
    words = [word for package in packages for word in package]
    host.ssh(["sudo", "sh", "-c", _SCRIPT, "sh", *words])
