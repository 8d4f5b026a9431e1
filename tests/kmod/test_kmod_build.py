"""Modules built and signed on a real host of Debian."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdsdeploy import run
from gdsdeploy.host.apply.files import FILE
from gdsdeploy.host.apply.signing import Desired, Signing as SigningResource
from gdsdeploy.host.kmod.files import open_plain
from gdsdeploy.host.secure_boot.signature import read_signature
from gdsdeploy.model.profile_parts import Signing

pytestmark = pytest.mark.kbuild

if TYPE_CHECKING:
    from tests.kmod.conftest import Builder


def findings(result: dict[str, Any]) -> list[str]:
    """Without what every nvidia-fs of the version that these sources claim to be has."""
    serious = [finding for finding in result["findings"] if finding["severity"] in ("error", "warning")]
    return [finding["id"] for finding in serious if finding["id"] != "vm-io"]


def versions(host: Builder, file: str) -> dict[str, str]:
    lines = host.run("modprobe", "--dump-modversions", file).stdout.splitlines()
    return {name: crc for crc, name in (line.split() for line in lines) if name.startswith("nvidia_p2p_")}


def test_built_against_the_installed_driver(driver: Builder) -> None:
    result = json.loads(driver.build("--json"))
    assert result["versions_from"] == "module"
    assert result["ok"] is True
    assert result["modules"][0]["files"][0]["audit"]["ok"] is True
    printed = driver.run("modinfo", "/build/nvidia-fs.ko").stdout
    fields = dict(line.split(":", 1) for line in printed.splitlines() if ":" in line)
    assert fields["depends"].strip() == "nvidia"
    assert fields["vermagic"].split()[0] == driver.kernel
    assert fields["gdsdeploy_driver"].strip() == "1.2.3"
    assert fields["gdsdeploy_flavour"].strip() == "open"
    trees = json.loads(driver.gdsdeploy("kmod", "trees", "--json").stdout)
    assert fields["gdsdeploy_tree"].strip() == trees[0]["digest"]
    exported = {
        line.split()[1]: line.split()[0]
        for line in driver.path("/build/driver/Module.symvers").read_text().splitlines()
    }
    assert versions(driver, "/build/nvidia-fs.ko") == exported


def test_debug_information_is_made_only_where_kbuild_makes_btf_of_it(driver: Builder) -> None:
    """Debian 13's headers have a vmlinux, as far as its BTF; Debian 12's have none."""

    def sections() -> set[str]:
        driver.build()
        listing = driver.run("readelf", "--section-headers", "--wide", "/build/nvidia-fs.ko").stdout
        return {name for name in (".debug_info", ".BTF") if f" {name} " in listing}

    assert sections() == {".debug_info", ".BTF"}
    driver.run("rm", f"{driver.modules}/build/vmlinux")
    assert sections() == set()
    assert "CONFIG_DEBUG_INFO=y" in driver.run("cat", f"{driver.modules}/build/.config").stdout


def test_built_before_the_driver_is_gets_the_same_versions(builder: Builder) -> None:
    result = json.loads(builder.build("--json"))
    assert result["versions_from"] == "compiled"
    assert result["modules"][0]["files"][0]["audit"]["ok"] is True
    early = versions(builder, "/build/nvidia-fs.ko")
    builder.run("cp", "-a", "/usr/src/driver", "/build/driver")
    builder.run("make", "-C", f"{builder.modules}/build", "M=/build/driver", "modules")
    lines = builder.path("/build/driver/Module.symvers").read_text().splitlines()
    assert early == {line.split()[1]: line.split()[0] for line in lines}
    assert len(early) == 2


def test_the_same_sources_give_the_same_bytes(driver: Builder) -> None:
    driver.build()
    first = driver.path("/build/nvidia-fs.ko").read_bytes()
    driver.build()
    assert driver.path("/build/nvidia-fs.ko").read_bytes() == first


def test_the_stock_way_succeeds_with_a_module_that_cannot_load(driver: Builder) -> None:
    driver.run("cp", "-a", "/usr/src/nvidia-fs", "/build/stock")
    driver.run("sh", "-c", f"cd /build/stock && ./configure {driver.kernel}")
    flags = "-DGDS_VERSION=1 -DNVFS_ENABLE_KERN_RDMA_SUPPORT -DNVFS_BATCH_SUPPORT=y"
    make = f"make -C {driver.modules}/build M=/build/stock NVIDIA_SRC_DIR=/usr/src/driver/nvidia modules"
    done = driver.run("env", f"KCPPFLAGS={flags}", "CONFIG_NVFS_STATS=y", *make.split())
    assert '"nvidia_p2p_get_pages" [/build/stock/nvidia-fs.ko] undefined!' in done.stderr.replace(
        "[nvidia-fs.ko]", "[/build/stock/nvidia-fs.ko]"
    )
    assert driver.run("modinfo", "-F", "depends", "/build/stock/nvidia-fs.ko").stdout.strip() == ""
    result = driver.audit("/build/stock/nvidia-fs.ko", status=1)[0]
    assert findings(result) == ["symbol-unversioned", "driver-tree-unknown"]


def test_another_drivers_tree_is_refused_where_a_driver_is_installed(driver: Builder) -> None:
    driver.run("cp", "-a", "/usr/src/driver", "/usr/src/other")
    driver.run("sed", "-i", "s/1\\.2\\.3/1.2.4/", "/usr/src/other/Kbuild", "/usr/src/other/dkms.conf")
    driver.write("/build/nvidia-fs.ko", "the old one")
    message = driver.build(driver="/usr/src/other", version="1.2.4", status=1)
    assert "has nvidia.ko of driver 1.2.3 (open), but /usr/src/other is the source of 1.2.4 (open)" in message
    assert driver.path("/build/nvidia-fs.ko").read_text() == "the old one"
    message = driver.build(driver="/usr/src/other", version="1.2.3", status=2)
    assert "/usr/src/other is 1.2.4 (open)" in message


def test_built_against_another_driver_with_equal_versions_is_found_by_what_it_recorded(driver: Builder) -> None:
    driver.run("cp", "-a", "/usr/src/driver", "/usr/src/other")
    driver.run("sed", "-i", "s/1\\.2\\.3/1.2.4/", "/usr/src/other/Kbuild", "/usr/src/other/dkms.conf")
    driver.build()
    right = versions(driver, "/build/nvidia-fs.ko")
    driver.build("--ahead", driver="/usr/src/other", version="1.2.4")
    assert versions(driver, "/build/nvidia-fs.ko") == right
    result = driver.audit("/build/nvidia-fs.ko", status=1)[0]
    assert findings(result) == ["driver-tree"]


def test_a_changed_interface_is_found_by_its_versions(driver: Builder) -> None:
    driver.build()
    driver.run("sed", "-i", "s/unsigned int entries/unsigned long entries/", "/build/driver/nvidia/nv-p2p.h")
    driver.run("make", "-C", f"{driver.modules}/build", "M=/build/driver", "modules")
    driver.run("cp", "/build/driver/nvidia.ko", f"{driver.modules}/updates/dkms/nvidia.ko")
    result = driver.audit("/build/nvidia-fs.ko", status=1)[0]
    assert findings(result) == ["symbol-crc"]


def test_an_unresolved_symbol_ends_the_build_and_the_old_module_stays(driver: Builder) -> None:
    driver.write(
        "/usr/src/nvidia-fs/nvfs-stat.c",
        "int nobody_has_this(void);\nint nvfs_stat(void);\nint nvfs_stat(void) { return nobody_has_this(); }\n",
    )
    driver.write("/build/nvidia-fs.ko", "the old one")
    message = driver.build(status=1)
    assert 'ERROR: modpost: "nobody_has_this" [nvidia-fs.ko] undefined!' in message
    assert "/usr/src/driver" in message
    assert driver.kernel in message
    assert "/build/nvidia-fs.ko.log" in message
    assert driver.path("/build/nvidia-fs.ko").read_text() == "the old one"
    assert driver.path("/build/nvidia-fs.ko.log").is_file()
    assert message.count("\n") == 1


def test_a_compiler_error_is_quoted(driver: Builder) -> None:
    driver.write("/usr/src/nvidia-fs/nvfs-stat.c", "int nvfs_stat(void);\nint nvfs_stat(void) { return undeclared; }\n")
    assert "nvfs-stat.c:2:" in driver.build(status=1)


def test_inherited_variables_change_nothing(driver: Builder) -> None:
    driver.write(
        "/usr/src/nvidia-fs/nvfs-stat.c",
        "int nobody_has_this(void);\nint nvfs_stat(void);\nint nvfs_stat(void) { return nobody_has_this(); }\n",
    )
    argv = ["python3", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz", "kmod", "build", "nvidia-fs", "--kernel", driver.kernel]
    argv += ["--driver-tree", "/usr/src/driver", "--driver-version", "1.2.3", "--source", "/usr/src/nvidia-fs"]
    done = driver.run(
        "env", "KBUILD_MODPOST_WARN=1", "MAKEFLAGS=-k", *argv, "--output", "/build/nvidia-fs.ko", status=1
    )
    assert "undefined!" in done.stderr


@pytest.mark.parametrize("program", ["pahole", "gcc"])
def test_headers_that_cannot_build_are_named_before_any_probe_answers_no(driver: Builder, program: str) -> None:
    names = driver.run("sh", "-c", f"ls /usr/bin/*{program}* | grep -E '{program}(-[0-9]+)?$'").stdout.split()
    driver.run("rm", *names)
    message = driver.build(status=2)
    assert f"the headers of kernel {driver.kernel} cannot build even an empty module" in message
    assert f"{program}" in message
    assert "install" in message


def test_a_kernel_without_headers(driver: Builder) -> None:
    driver.run("rm", f"{driver.modules}/build")
    assert f"install linux-headers-{driver.kernel}" in driver.build(status=2)


def test_what_is_not_the_source_of_nvidia_fs(driver: Builder) -> None:
    assert "/usr/src is not the source of nvidia-fs" in driver.build("--source", "/usr/src", status=2)


def test_packed_here_and_installed_where_nothing_can_be_compiled(driver: Builder) -> None:
    driver.build()
    driver.run("cp", "/build/nvidia-fs.ko", f"{driver.modules}/updates/dkms/nvidia-fs.ko")
    driver.run("depmod", "-a", driver.kernel)
    driver.gdsdeploy("kmod", "pack", "--kernel", driver.kernel, "--output", "/build/modules.tar")
    driver.run("sh", "-c", f"rm -r {driver.modules}/updates {driver.modules}/build")
    words = ["kmod", "install", "/build/modules.tar", "--kernel", driver.kernel]
    assert "(new)" in driver.gdsdeploy(*words, "--check").stdout
    result = json.loads(driver.gdsdeploy(*words, "--json").stdout)
    assert result["changed"]
    assert [finding["ok"] for finding in result["audit"]] == [True, True]
    assert driver.gdsdeploy(*words).stdout == "nothing to change\n"
    assert [finding["ok"] for finding in driver.audit()] == [True, True]
    printed = driver.run("modprobe", "--show-depends", "-S", driver.kernel, "nvidia-fs").stdout
    assert [line.split("updates/")[1].strip() for line in printed.splitlines()] == [
        "gdsdeploy/nvidia.ko",
        "gdsdeploy/nvidia-fs.ko",
    ]


# -- Modules signed by the kernel's own sign-file, by ourselves and by the real dkms, with keys of openssl.


if TYPE_CHECKING:
    from tests.kmod.conftest import Builder

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
    from gdsdeploy.host.secure_boot import signing

    folder = tmp_path_factory.mktemp("keys")
    for name in ("owner", "other"):
        signing.make_key(str(folder / f"{name}.key"), str(folder / f"{name}.der"), f"{name} of a fleet", 2)
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
    """A host that builds, with the owner's key where the fleet file has it by default."""
    builder.path("/etc/gdsdeploy-keys").mkdir(parents=True)
    for name, place in (("owner.key", KEY), ("owner.der", CERTIFICATE)):
        shutil.copy(keys / name, builder.path(place))
    shutil.copytree(keys, builder.path("/build/keys"))
    builder.path(KEY).chmod(0o600)
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
    host.run("sh", "-c", f"{pack} {file}")
    host.gdsdeploy(*SIGN, f"{file}.{suffix}")
    assert by_openssl(host.path(f"{file}.{suffix}"), keys / "owner.pem", tmp_path)
    with open_plain(str(host.path(f"{file}.{suffix}"))) as plain:
        assert plain.read().count(b"~Module signature appended~\n") == 1, "one signature is left"
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
    host.run("mv", "/usr/bin/openssl", "/build/openssl")
    output, file = dkms(host)
    assert "openssl not found, can't generate key and certificate." in output
    assert host.run("modinfo", "-F", "signer", file).stdout == ""
    configure(host, Signing())
    assert "install the package openssl" in host.gdsdeploy("kmod", "sign", file, status=1).stderr
    host.run("mv", "/build/openssl", "/usr/bin/openssl")
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
