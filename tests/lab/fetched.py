"""Debian's packages for a VM host, chosen and fetched on a light host, because an emulated apt needs minutes."""

from __future__ import annotations

from collections.abc import Sequence

from gdslab import LabHost

_FETCH = r"""
set -eu
rm -rf /tmp/fetched; mkdir -p /tmp/fetched/debs/partial /tmp/fetched/root; cd /tmp/fetched; cat >status
apt-get -qq update >&2
apt-get -qq install --yes --download-only --no-install-recommends -o Dir::State::status=$PWD/status \
    -o Dir::Cache::archives=$PWD/debs -o APT::Sandbox::User=root "$@" >&2
"""
#: The packages themselves.
DEBS = "tar --create --directory debs --exclude=./partial --exclude=./lock . | base64"
#: The files in them, without installing any.
FILES = r"""
for deb in debs/*.deb; do dpkg-deb --extract "$deb" root; done
tar --create --gzip --directory root \
    --exclude=usr/share/man --exclude=usr/share/doc --exclude=usr/share/locale usr etc | base64
"""


def fetch(packages: Sequence[str], vm: LabHost, light: LabHost, pack: str = DEBS) -> str:
    """What ``vm`` lacks of these packages and their dependencies, packed as base64."""
    status = vm.ssh(["cat", "/var/lib/dpkg/status"]).stdout
    return light.ssh(["sudo", "sh", "-c", _FETCH + pack, "fetch", *packages], input=status, timeout=600).stdout
