"""Real modules of an aarch64 kernel, audited against that kernel's real headers on whatever machine this is.

apt fetches and verifies both, with settings of its own; Debian's cloud kernel is the smallest.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.kmod.kernel import Kernel
from gdslab import archive

SUITE = "trixie"
IMAGE = "linux-image-cloud-arm64"
#: Modules of other kinds, and what they need.
MODULES = ["sunrpc", "nfs", "xfs", "raid456", "virtio_net"]


def apt(root: Path, *words: str) -> str:
    source = archive.controller_archive()
    options: dict[str, object] = {
        "Dir": root, "Dir::Etc": root / "etc", "Dir::State": root / "state", "Dir::Cache": root / "cache",
        "Dir::State::status": root / "status", "APT::Architecture": "arm64", "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root", "Acquire::Languages": "none", **source.options, **source.proxy,
    }  # fmt: skip
    if source.ca_bundle:
        options["Acquire::https::CAInfo"] = source.ca_bundle
    argv = [words[0], *(word for key, value in options.items() for word in ("-o", f"{key}={value}")), *words[1:]]
    done = subprocess.run(argv, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """The newest aarch64 cloud kernel of the archive, with its headers."""
    source = archive.controller_archive()
    root = tmp_path_factory.mktemp("arm64")
    for folder in ("etc/apt.conf.d", "etc/preferences.d", "etc/sources.list.d", "state/lists/partial",
                   "cache/archives/partial", "there/usr"):  # fmt: skip
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    (root / "etc/sources.list").write_text(f"deb [signed-by={source.keyring}] {source.uri} {SUITE} main\n")
    apt(root, "apt-get", "-q", "update")
    match = re.search(r"^Depends: linux-image-(\S+)", apt(root, "apt-cache", "show", IMAGE), re.MULTILINE)
    assert match
    apt(root, "apt-get", "-q", "download", f"linux-image-{match[1]}", f"linux-headers-{match[1]}")
    # As on a machine: packages still say /lib.
    (root / "there/lib").symlink_to("usr/lib")
    (root / "there/usr/lib").mkdir()
    for package in root.glob("*.deb"):
        unpack = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, capture_output=True).stdout
        keep = ["tar", "--extract", "--keep-directory-symlink", "--directory", root / "there"]
        subprocess.run(keep, input=unpack, check=True)
        package.unlink()
    return Kernel(match[1], str(root / "there"))


def test_they_are_read_as_what_they_are(kernel: Kernel) -> None:
    module = kernel.own_module
    assert module is not None
    assert module.machine == "aarch64"
    assert module.vermagic.split()[0] == kernel.release
    assert module.vermagic.split()[-1] == "aarch64"
    assert kernel.versioned
    assert len(kernel.symvers()) > 10_000


def test_the_audit_finds_nothing_wrong_with_them(kernel: Kernel) -> None:
    others = [name for name in sorted(kernel.by_name)[::50] if name not in MODULES]
    results = audit(kernel, [*MODULES, *others])
    assert [result["module"] for result in results] == [*MODULES, *others]
    assert [result for result in results if any(finding["severity"] != "note" for finding in result["findings"])] == []


def test_what_they_export_is_what_their_headers_say(kernel: Kernel) -> None:
    """The versions inside aarch64 modules are relative, as on x86_64."""
    symvers = kernel.symvers()
    for name in ("sunrpc", "nfs"):
        exports = kernel.read(kernel.by_name[name][0]).exports
        assert len(exports) > 20
        listed = {symbol: export.crc for symbol, export in symvers.items() if export.module.endswith("/" + name)}
        assert {symbol: crc for symbol, (crc, _) in exports.items()} == listed


def test_the_audit_finds_a_version_that_was_changed(kernel: Kernel, tmp_path: Path) -> None:
    exported = kernel.read(kernel.by_name["sunrpc"][0]).exports
    symbol = next(name for name in kernel.read(kernel.by_name["nfs"][0]).imports if name in exported)
    path = Path(kernel.path(kernel.by_name["nfs"][0]))
    crc = kernel.symvers()[symbol].crc
    plain = subprocess.run(["xz", "-dc", path], check=True, capture_output=True).stdout
    data = plain.replace(crc.to_bytes(4, "little"), (crc ^ 1).to_bytes(4, "little"))
    assert data != plain
    (tmp_path / "nfs.ko").write_bytes(data)
    result = audit(kernel, [str(tmp_path / "nfs.ko")])[0]
    messages = [finding["message"] for finding in result["findings"] if finding["id"] == "symbol-crc"]
    assert len(messages) == 1
    assert f"{symbol} (0x{crc ^ 1:08x}, exported 0x{crc:08x})" in messages[0]


def test_the_audit_finds_that_they_are_of_another_machine(kernel: Kernel, tmp_path: Path) -> None:
    path = Path(kernel.path(kernel.by_name["nfs"][0]))
    copy = tmp_path / path.name
    shutil.copy(path, copy)
    plain = bytearray(subprocess.run(["xz", "-dc", copy], check=True, capture_output=True).stdout)
    # e_machine of the ELF header: x86-64.
    plain[18] = 62
    (tmp_path / "nfs.ko").write_bytes(plain)
    result = audit(kernel, [str(tmp_path / "nfs.ko")])[0]
    messages = {finding["id"]: finding["message"] for finding in result["findings"]}
    assert messages["machine"] == "is for x86_64, the kernel for aarch64"
