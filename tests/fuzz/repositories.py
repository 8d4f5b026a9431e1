"""Seeds and calls of the readers of what repositories serve; signatures, which come first, have tests of their own."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import itertools
import lzma
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gdsdeploy.repo import apt, names, packages, rpm, unpack
from gdsdeploy.repo.repository import Signed
from gdsdeploy.repo.rpm import Modules
from tests.unit.host.kmod.test_kmod_unreadable import zst

NOW = datetime(2026, 11, 22, tzinfo=UTC)
REPOSITORY = {"uri": "https://r.example", "keyring": Path("/k"), "fingerprints": (), "host_keyring": "/k"}
REPOMD = b"""<?xml version="1.0" encoding="UTF-8"?>
<repomd xmlns="http://linux.duke.edu/metadata/repo"><revision>1</revision>
<data type="primary"><checksum type="sha256">%(sum)s</checksum><open-checksum type="sha256">%(sum)s</open-checksum>
<location href="repodata/primary.xml.gz"/><timestamp>1700000000</timestamp>
<size>100</size><open-size>500</open-size></data>
<data type="modules"><checksum type="sha256">%(sum)s</checksum><location href="repodata/modules.yaml.gz"/>
<timestamp>1700000000.5</timestamp><size>100</size></data></repomd>
""" % {b"sum": b"0" * 64}
PRIMARY = b"""<?xml version="1.0" encoding="UTF-8"?>
<metadata xmlns="http://linux.duke.edu/metadata/common" xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="1">
<package type="rpm"><name>nvidia-driver</name><arch>x86_64</arch><version epoch="3" ver="550.1" rel="1.el9"/>
<checksum type="sha256" pkgid="YES">%s</checksum><time file="1" build="1"/><size package="1" installed="1" archive="1"/>
<location href="Packages/n.rpm"/><format><rpm:vendor>NVIDIA</rpm:vendor><rpm:sourcerpm>n.src.rpm</rpm:sourcerpm>
<rpm:provides><rpm:entry name="nvidia-driver" flags="EQ" epoch="3" ver="550.1" rel="1.el9"/></rpm:provides>
<rpm:requires><rpm:entry name="/usr/bin/x"/>
<rpm:entry name="(a if b)"/><rpm:entry name="kmod" flags="GE" epoch="0" ver="1"/></rpm:requires>
<file>/usr/bin/nvidia</file></format></package>
</metadata>
""" % (b"0" * 64)
FILELISTS = b"""<?xml version="1.0" encoding="UTF-8"?>
<filelists xmlns="http://linux.duke.edu/metadata/filelists" packages="1">
<package pkgid="%s" name="nvidia-driver" arch="x86_64"><version epoch="3" ver="550.1" rel="1.el9"/>
<file>/opt/x</file></package></filelists>
""" % (b"0" * 64)
LISTS = PRIMARY + b"\0\0\0" + FILELISTS
MODULES = b"""---
document: modulemd
version: 2
data: {name: nvidia-driver, stream: 550-open, artifacts: {rpms: ["nvidia-driver-3:550.1-1.el9.x86_64"]}}
...
---
document: modulemd-defaults
version: 1
data: {module: nvidia-driver, stream: 550-open}
"""
RELEASE = b"""Origin: Debian
Suite: stable
Codename: trixie
Date: Sat, 21 Nov 2026 10:00:00 UTC
Valid-Until: Sat, 28 Nov 2026 10:00:00 UTC
Acquire-By-Hash: yes
Components: main contrib
SHA256:
 %s 1234 main/binary-amd64/Packages.xz
""" % (b"0" * 64)
PACKAGES = b"""Package: nvidia-driver
Source: nvidia-graphics-drivers (550.1-2)
Version: 550.1-2
Architecture: amd64
Multi-Arch: allowed
Depends: libc6 (>= 2.36), python3:any, a | b:i386 (<< 2:3~x), nvidia-kernel-dkms (= 550.1-2)
Provides: nvidia-driver-any, v (= 2), v:amd64
Filename: pool/n.deb
Size: 123
SHA256: %s

Package: dkms
Version: 3.2.2-1~deb13u1
Architecture: all
Filename: pool/d.deb
Size: 1
SHA256: %s
""" % (b"0" * 64, b"1" * 64)


#: One a line: of Debian's and of rpm's.
VERSIONS = b"""1:2.3-4~deb13u1+b2
3:550.1-1.el9
0~rc1^git20261121-0ubuntu1
6.12.94+deb13-1.09
"""
#: The ending and, after a line end, the data.
PACKED = [ending + b"\n" + pack(PACKAGES) for ending, pack in (
    (b"xz", lzma.compress), (b"gz", gzip.compress), (b"bz2", bz2.compress), (b"zst", zst), (b"", bytes),
)]  # fmt: skip


def version_order(data: bytes) -> None:
    """Those that pass for a version have one order, whatever they are."""
    texts = data.decode("utf-8", "replace").split("\n")[:40]
    for order in (packages.DEB, packages.RPM):
        keys = []
        for text in texts:
            with contextlib.suppress(ValueError):
                keys.append(order.key(names.version(text, order.kind)))
        keys.sort()
        assert all(one <= other and not other < one for one, other in itertools.pairwise(keys))


def unpacked(path: Path) -> None:
    ending, _, packed = path.read_bytes().partition(b"\n")
    path.write_bytes(packed)
    unpack.index(path, f"https://r.example/Packages.{ending.decode('ascii', 'replace')}", None)


def fetching(data: bytes) -> Any:
    return SimpleNamespace(small=lambda _: data)


def accept_unsigned(document: bytes, **_: object) -> Signed:
    """In place of gpgv, which other tests cover."""
    return Signed(document, ("A" * 40,))


def repomd(data: bytes) -> None:
    with mock.patch.object(rpm, "verify", accept_unsigned):
        rpm.repomd(fetching(data), rpm.Repository("r", **REPOSITORY), now=NOW).index()


def release(data: bytes) -> None:
    repository = apt.Repository("r", suites=("trixie",), components=("main",), **REPOSITORY)
    with mock.patch.object(apt, "verify", accept_unsigned):
        read = apt.release(fetching(data), repository, "trixie", now=NOW)
        read.index()
        apt.list_stems(read, "amd64")


def package_list(data: bytes) -> None:
    parsed = packages.PackageList(
        data, packages.Origin("r", "trixie", "main", "debian", ("amd64", "all"), "https://r.example/Packages")
    )
    for name in list(parsed.names()):
        for candidate in parsed.named(name):
            parsed.stanza(candidate)
    for name in ("v", "nvidia-driver:any", "v:i386"):
        parsed.providing(name)


def primary(data: bytes) -> None:
    listing, _, files = data.partition(b"\0\0\0")
    parsed = rpm.Primary(
        listing, packages.Origin("r", "", "", "r", ("x86_64", "noarch"), "https://r.example/p"), lambda: files
    )
    for name in list(parsed.names()):
        parsed.named(name)
    for name in ("nvidia-driver", "/usr/bin/nvidia", "/opt/x"):
        parsed.providing(name)


def module_metadata(data: bytes) -> None:
    parsed = Modules()
    parsed.add(data, "https://r.example/modules.yaml")
    parsed.enable({})
