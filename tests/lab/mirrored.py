"""Mirrors of a lab's locks on loopback, as sites have them: apt on its hosts reads few lists, and not all of Debian's.

Every start of apt reads every list.  On an emulated machine, that was more than half of what a rollout's looks took.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.lock import lockfile
from gdslab import guest
from gdslab.host import LabHost
from gdslab.qemu import VmHost
from gdslab.state import Lab
from tests.lab.program import gdsdeploy
from tests.repos.archive import Key, serve

NAME = "mirror.example"
#: The host's own sources, out of apt's sight.
SOURCES = "/root/debian.sources"
_FOLDER, _PORT, _KEY = "mirrors", "port", "gdsdeploy-mirror.gpg"
#: Makes the mirror the only source of packages; the lists of others go.
USE = f"""
set -eu
grep -q {NAME} /etc/hosts || echo "$1 {NAME}" >>/etc/hosts
echo 'Acquire::http::Proxy::{NAME} "DIRECT";' >/etc/apt/apt.conf.d/00mirror
if [ -e /etc/apt/sources.list.d/debian.sources ]; then mv /etc/apt/sources.list.d/debian.sources {SOURCES}; fi
rm -rf /var/lib/apt/lists/*_* /var/cache/apt/*.bin
"""


@contextmanager
def mirrors(lab: Lab, home: Path) -> Iterator[Key]:
    """Serve mirrors of the lab, of which :func:`add` makes one; their key is in ``home``."""
    folder = lab.directory / _FOLDER
    folder.mkdir()
    key = Key.generate(home, "mirror")
    try:
        with serve(folder) as server:
            (folder / _PORT).write_text(server.uri.rpartition(":")[2])
            yield key
    finally:
        key.forget()


def add(lab: Lab, stack: str, key: Key) -> None:
    """Mirror what the lock beside the lab's fleet file has, and all that it depends on."""
    lock = lockfile.beside(lab.fleet_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNUPGHOME", str(key.home))
        gdsdeploy("mirror", lock, lab.directory / _FOLDER / stack, "--key", key.fingerprint)


def settings(lab: Lab, stack: str) -> dict[str, Any]:
    """The fleet file's key ``mirror``, if the stack has one."""
    folder = lab.directory / _FOLDER
    keyring = folder / stack / _KEY
    if not keyring.is_file():
        return {}
    uri = f"http://{NAME}:{(folder / _PORT).read_text()}/{stack}"
    return {"mirror": {"uri": uri, "keyring": str(keyring)}}


def use(hosts: Sequence[LabHost]) -> None:
    """Let hosts have packages of the mirrors alone; again after a host was copied, whose /etc/hosts is new."""
    for host in hosts:
        host.ssh(["sudo", "sh", "-s", _address(host)], input=USE)


def name(hosts: Sequence[LabHost]) -> None:
    """Give hosts that use mirrors the mirrors' address, where it isn't the one of the machine that made them."""
    for host in hosts:
        host.ssh(["sudo", "sh", "-c", f"echo '{_address(host)} {NAME}' >>/etc/hosts"])


def _address(host: LabHost) -> str:
    return guest.GATEWAY if isinstance(host, VmHost) else "127.0.0.1"
