"""Modules signed by the kernel's own sign-file, by ourselves and by the real dkms, with keys of openssl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gdsdeploy import run
from gdsdeploy.host.apply.files import FILE
from gdsdeploy.host.apply.signing import Desired
from gdsdeploy.host.apply.signing import Signing as SigningResource
from gdsdeploy.host.kmod.files import open_plain
from gdsdeploy.host.secure_boot.signature import read_signature
from gdsdeploy.model.profile_parts import Signing

if TYPE_CHECKING:
    from tests.kmod.conftest import Builder

pytestmark = pytest.mark.kbuild

KEY, CERTIFICATE = "/etc/gdsdeploy-keys/modules.key", "/etc/gdsdeploy-keys/modules.der"
SIGN = ("kmod", "sign", "--key", KEY, "--certificate", CERTIFICATE)
TINY = """\
PACKAGE_NAME="tiny"
PACKAGE_VERSION="1"
BUILT_MODULE_NAME[0]="tiny"
DEST_MODULE_LOCATION[0]="/updates/dkms"
MAKE[0]="cp /build/tiny.ko tiny.ko"
CLEAN="true"
"""
SOURCE = '#include <linux/module.h>\nMODULE_LICENSE("GPL");\nMODULE_DESCRIPTION("tiny");\n'


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the owner's key, made as a user makes it, and another one."""
    from gdsdeploy.host.secure_boot import mok

    folder = tmp_path_factory.mktemp("keys")
    for name in ("owner", "other"):
        mok.make_key(str(folder / f"{name}.key"), str(folder / f"{name}.der"), f"{name} of a fleet", 2)
        files = ("-in", folder / f"{name}.der", "-out", folder / f"{name}.pem")
        subprocess.run(("openssl", "x509", "-inform", "DER", *files), check=True)
    return folder


@pytest.fixture(scope="module")
def tiny(
    kbuild_base: Path, make_host: Callable[[Path, Path], Builder], tmp_path_factory: pytest.TempPathFactory
) -> bytes:
    """A really built module, with its debug data and not signed."""
    host = make_host(kbuild_base, tmp_path_factory.mktemp("tiny") / "host")
    for name, text in (("tiny.c", SOURCE), ("Makefile", "obj-m += tiny.o\n")):
        host.write(f"/build/tiny/{name}", text)
    host.run("make", "-s", "-C", f"{host.modules}/build", "M=/build/tiny", "modules")
    return host.path("/build/tiny/tiny.ko").read_bytes()


@pytest.fixture
def host(builder: Builder, keys: Path, tiny: bytes) -> Builder:
    """A host that builds, with the owner's key where the fleet file has it by default, and without openssl."""
    builder.path("/etc/gdsdeploy-keys").mkdir(parents=True)
    for name, place in (("owner.key", KEY), ("owner.der", CERTIFICATE)):
        shutil.copy(keys / name, builder.path(place))
    shutil.copytree(keys, builder.path("/build/keys"))
    builder.path(KEY).chmod(0o600)
    builder.run("sh", "-c", "! command -v openssl")
    builder.path("/build/tiny.ko").write_bytes(tiny)
    for name, text in (("dkms.conf", TINY), ("tiny.c", SOURCE)):
        builder.write(f"/usr/src/tiny-1/{name}", text)
    return builder


def by_openssl(file: Path, pem: Path, folder: Path) -> bool:
    """Whether openssl, which shares no code with ours, finds the module's signature to be by ``pem``'s key."""
    with open_plain(str(file)) as plain:
        signature = read_signature(plain)
        plain.seek(0)
        data = plain.read()
    assert signature is not None
    (folder / "content").write_bytes(data[: signature.size])
    (folder / "message").write_bytes(data[signature.size : -40])
    files = ("-in", folder / "message", "-content", folder / "content", "-certfile", pem, "-out", "/dev/null")
    argv = ("openssl", "cms", "-verify", "-binary", "-inform", "DER", "-nointern", "-noverify", *files)
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def dkms(host: Builder) -> tuple[str, str]:
    """Build the tiny module with dkms: what it printed, and the file that it would install."""
    done = host.run("dkms", "build", "tiny/1", "-k", host.kernel)
    return done.stdout + done.stderr, f"/var/lib/dkms/tiny/1/{host.kernel}/x86_64/module/tiny.ko.xz"


def configure(host: Builder, signing: Signing) -> None:
    """What the role leaves on a machine that builds."""
    desired = Desired(signing.certificate, settings=signing.settings, signs=True)
    for file in SigningResource().desired_files(desired):
        if file.kind == FILE:
            host.write(file.path, file.content.decode())
    host.path("/usr/lib/gdsdeploy/sign-file").chmod(0o755)


def test_signed_by_the_kernels_tool_as_openssl_and_modinfo_see_it(host: Builder, keys: Path, tmp_path: Path) -> None:
    file = "/build/tiny.ko"
    large = host.path(file).stat().st_size
    check = json.loads(host.gdsdeploy(*SIGN, file, "--check", "--json").stdout)
    assert check == {"changed": True, "modules": [{"file": file, "changed": True}]}
    assert host.path(file).stat().st_size == large
    host.gdsdeploy(*SIGN, file)
    assert host.path(file).stat().st_size < large, "what is signed cannot be stripped any more"
    assert by_openssl(host.path(file), keys / "owner.pem", tmp_path)
    assert not by_openssl(host.path(file), keys / "other.pem", tmp_path)
    assert "owner of a fleet" in host.run("modinfo", "-F", "signer", file).stdout
    bytes_before = host.path(file).read_bytes()
    assert "is signed already" in host.gdsdeploy(*SIGN, file).stdout
    assert host.path(file).read_bytes() == bytes_before


@pytest.mark.parametrize("suffix", ["xz", "zst", "gz"])
def test_packed_modules_stay_packed_and_another_owners_signature_goes(
    host: Builder, keys: Path, tmp_path: Path, suffix: str
) -> None:
    file = "/build/tiny.ko"
    pack = {"xz": "xz --check=crc32", "zst": "zstd -q --rm", "gz": "gzip"}[suffix]
    words = ["kmod", "sign", "--key", "/build/keys/other.key", "--certificate", "/build/keys/other.pem", file]
    host.gdsdeploy(*words)
    size = host.path(file).stat().st_size
    host.run("sh", "-c", f"{pack} {file}")
    host.gdsdeploy(*SIGN, f"{file}.{suffix}")
    assert by_openssl(host.path(f"{file}.{suffix}"), keys / "owner.pem", tmp_path)
    with open_plain(str(host.path(f"{file}.{suffix}"))) as plain:
        assert len(plain.read()) == size, "one signature is left"
    if suffix == "xz":
        listing = run.run(["xz", "--robot", "--list", str(host.path(f"{file}.xz"))], doing="look at it").stdout
        assert "CRC32" in listing, "the kernel's unpacker knows no other"


def test_a_key_that_others_can_read_is_refused(host: Builder) -> None:
    file = "/build/tiny.ko"
    host.path(KEY).chmod(0o640)
    output = host.gdsdeploy(*SIGN, file, status=1).stderr
    assert "can be read by others than its owner (mode 0640)" in output
    assert host.run("modinfo", "-F", "signer", file).stdout == ""


def test_a_key_that_does_not_belong_to_the_certificate(host: Builder) -> None:
    file = "/build/tiny.ko"
    words = ["kmod", "sign", "--key", "/build/keys/other.key", "--certificate", CERTIFICATE, file]
    before = host.path(file).read_bytes()
    assert CERTIFICATE in host.gdsdeploy(*words, status=1).stderr
    assert host.path(file).read_bytes() == before
    assert [path.name for path in host.path(file).parent.iterdir() if ".new" in path.name] == []


def test_without_headers_nothing_can_be_signed(host: Builder) -> None:
    file = "/build/tiny.ko"
    host.run("sh", "-c", f"rm {host.modules}/build; rm -r /usr/lib/linux-kbuild-*")
    assert f"install linux-headers-{host.kernel}" in host.gdsdeploy(*SIGN, file, status=1).stderr


def test_a_signer_elsewhere_gets_the_module_and_its_answer_is_verified(
    host: Builder, keys: Path, tmp_path: Path
) -> None:
    file = "/build/tiny.ko"
    host.run("strip", "--strip-debug", file)
    message = subprocess.run(
        ["openssl", "cms", "-sign", "-binary", "-noattr", "-nocerts", "-outform", "DER", "-md", "sha256",
         "-signer", keys / "owner.pem", "-inkey", keys / "owner.key"],
        input=host.path(file).read_bytes(), capture_output=True, check=True,
    ).stdout  # fmt: skip
    host.path("/build/answer").write_bytes(message)
    # The far end of a signer, which has the key: it is asked for this one module only.
    host.write("/usr/local/bin/ask", '#!/bin/sh\ncat > /build/asked\ncat "$1"\n')
    host.path("/usr/local/bin/ask").chmod(0o755)
    host.path(KEY).unlink()
    unsigned = host.path(file).read_bytes()
    wrong = {"/build/keys/owner.pem": "is unusable", "/dev/null": "did not sign", "/nowhere": "did not sign"}
    for answer, words in wrong.items():
        configure(host, Signing(signer=("/usr/local/bin/ask", answer)))
        assert words in host.gdsdeploy("kmod", "sign", file, status=1).stderr
        assert host.path(file).read_bytes() == unsigned
    configure(host, Signing(signer=("/usr/local/bin/ask", "/build/answer")))
    host.gdsdeploy("kmod", "sign", file)
    assert host.path("/build/asked").read_bytes() == unsigned
    assert by_openssl(host.path(file), keys / "owner.pem", tmp_path)


def test_dkms_without_openssl_leaves_modules_unsigned_with_exit_status_0_and_with_ours_it_signs(
    host: Builder, keys: Path, tmp_path: Path
) -> None:
    output, file = dkms(host)
    assert "openssl not found, can't generate key and certificate." in output
    assert host.run("modinfo", "-F", "signer", file).stdout == ""
    configure(host, Signing())
    assert json.loads(host.gdsdeploy("kmod", "sign", file, "--check", "--json").stdout)["changed"] is True
    host.run("dkms", "unbuild", "tiny/1", "-k", host.kernel)
    output, file = dkms(host)
    assert by_openssl(host.path(file), keys / "owner.pem", tmp_path)
    assert json.loads(host.gdsdeploy("kmod", "sign", file, "--check", "--json").stdout)["changed"] is False
    host.run("dkms", "unbuild", "tiny/1", "-k", host.kernel)
    host.path(KEY).unlink()
    output, file = dkms(host)
    assert f"the key {KEY} cannot be used" in output
    assert not host.path(KEY).exists(), "dkms made a key of its own"
    assert not host.path("/var/lib/dkms/mok.key").exists()
    # dkms ends with 0 all the same; the role's own step, after every build, does not.
    assert f"the key {KEY} cannot be used" in host.gdsdeploy("kmod", "sign", file, status=1).stderr
