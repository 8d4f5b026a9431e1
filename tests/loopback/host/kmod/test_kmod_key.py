"""The key of a build: equal for what may stand for one another, and only for that; and what a bare host can tell."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from gdsdeploy.host.__main__ import main
from gdsdeploy.host.archive import key, pack
from gdsdeploy.host.archive.key import INGREDIENTS, NONE, key_of, ofed_digest
from gdsdeploy.host.archive.provenance import Builder, public_pem
from gdsdeploy.host.errors import AuditError, ElfError, PackError
from gdsdeploy.host.kmod.kernel import Kernel
from tests.unit.host.kmod.kmod_elf import signed_by
from tests.unit.host.kmod.kmod_root import RELEASE, TREE, VERSION, Root

GOOD = dict.fromkeys(INGREDIENTS, "x")
CORE = {"ib_register_peer_memory_client": (0x11, True), "ib_unregister_peer_memory_client": (0x12, True)}


def kernel(root: Root) -> Kernel:
    return Kernel(RELEASE, str(root.path))


def build_root(folder: Path) -> Root:
    root = Root(folder)
    root.nvidia(imports={"kfree": 0xAAAA0001})
    root.nvidia_fs()
    return root


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    root = build_root(tmp_path / "builder")
    pack.pack(kernel(root), (), str(tmp_path / "a.tar"))
    return tmp_path / "a.tar"


@pytest.fixture
def host(tmp_path: Path) -> Root:
    """Without headers and compiler; depmod has run there."""
    root = Root(tmp_path / "host")
    root.remove_headers()
    root.depmod()
    return root


@pytest.mark.parametrize("name", INGREDIENTS)
def test_every_ingredient_counts(name: str) -> None:
    assert key_of({**GOOD, name: "y"}) != key_of(GOOD) == key_of(dict(reversed(GOOD.items())))


def test_the_manifest_has_every_ingredient(archive: Path) -> None:
    result = pack.read_manifest(str(archive))["key"]
    assert result == {
        "kernel_release": RELEASE,
        "symvers": result["symvers"],
        "arch": "x86_64",
        "driver_version": VERSION,
        "driver_flavour": "open",
        "driver_tree": TREE,
        "nvidia_fs_source": "sha256:" + "cd" * 32,
        "compiler": result["compiler"],
        "ofed": NONE,
        "signer": NONE,
    }
    assert result["symvers"].startswith("sha256:")
    assert set(result) == set(INGREDIENTS)


def test_who_signs_is_part_of_the_key(tmp_path: Path) -> None:
    keys = set()
    for number, owners in enumerate((("one", "one"), ("two", "two"), ("one", "two"))):
        root = Root(tmp_path / str(number))
        root.nvidia(imports={"kfree": 0xAAAA0001}, signature=signed_by(owners[0]))
        root.nvidia_fs(signature=signed_by(owners[1]))
        keys.add(pack.pack(kernel(root), (), str(tmp_path / "a.tar"))["key"]["signer"])
    assert len(keys) == 3
    assert NONE not in keys


def test_an_ofed_is_the_same_by_its_tree_and_by_its_modules(tmp_path: Path) -> None:
    source, target = Root(tmp_path / "source"), Root(tmp_path / "target")
    tree = source.path / "usr/src/ofa_kernel/x86_64" / RELEASE
    tree.mkdir(parents=True)
    lines = [
        f"0x{crc:08x}\t{name}\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL_GPL\t\n"
        for name, (crc, _) in CORE.items()
    ]
    (tree / "Module.symvers").write_text("".join(lines) + "0x00000013\tother\tdrivers/net/mlx5\tEXPORT_SYMBOL\t\n")
    target.module("updates/dkms/ib_core.ko", "ib_core", exports=CORE)
    assert ofed_digest(kernel(source)) == ofed_digest(kernel(target)) != NONE
    target.module("updates/dkms/ib_core.ko", "ib_core", exports={**CORE, "ib_unregister_peer_memory_client": (1, True)})
    assert ofed_digest(kernel(source)) != ofed_digest(kernel(target)) != NONE


def test_the_kernels_own_rdma_core_is_no_ofed(tmp_path: Path) -> None:
    root = Root(tmp_path / "r")
    root.module(
        "kernel/drivers/infiniband/core/ib_core.ko", "ib_core", info=[("intree", "Y")], exports={"ib_x": (1, True)}
    )
    assert ofed_digest(kernel(root)) == NONE


def test_modules_of_another_ofed_are_refused(archive: Path, host: Root) -> None:
    host.module("updates/dkms/ib_core.ko", "ib_core", exports=CORE)
    host.depmod()
    with pytest.raises(PackError, match="they were built with no OFED, and this kernel has OFED sha256:"):
        pack.install(str(archive), kernel(host))
    assert not (host.modules / "updates/gdsdeploy").exists()


def test_modules_for_another_build_of_the_kernel_are_refused(archive: Path, host: Root) -> None:
    versions = {"kfree": 0xAAAA0001, "_printk": 0xAAAA0002, "gpl_thing": 0xAAAA0003}
    host.module("kernel/fs/own.ko", "own", info=[("intree", "Y"), ("version", "rebuilt")], imports=versions)
    with pytest.raises(PackError, match="they were built for another build of kernel " + re.escape(RELEASE)):
        pack.install(str(archive), kernel(host))
    assert not (host.modules / "updates/gdsdeploy").exists()


def test_modules_for_another_architecture_are_refused(archive: Path, host: Root) -> None:
    result = pack.read_manifest(str(archive))
    assert key.objections(kernel(host), {**result, "key": {**result["key"], "arch": "aarch64"}}) == [
        "they are for aarch64, and this kernel is for x86_64"
    ]


def test_what_is_not_a_module_is_not_packed(tmp_path: Path) -> None:
    """Above all no key."""
    root = build_root(tmp_path / "r")
    secret = tmp_path / "signing_key.priv"
    secret.write_text("-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises((AuditError, ElfError)):
        pack.pack(kernel(root), ["nvidia", str(secret)], str(tmp_path / "a.tar"))
    assert not (tmp_path / "a.tar").exists()
    secret.rename(root.modules / "updates/dkms/signing_key.priv")
    pack.pack(kernel(root), (), str(tmp_path / "a.tar"))
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == ["manifest.json", "modules/nvidia-fs.ko", "modules/nvidia.ko"]


def test_install_by_hand_verifies_who_built_it(host: Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed, public = tmp_path / "signed.tar", tmp_path / "build1.pub"
    pack.pack(kernel(build_root(tmp_path / "builder")), (), str(signed), Builder("build1", b"1" * 32))
    public.write_text(public_pem(b"1" * 32))
    argv = ["kmod", "install", "--kernel", RELEASE, "--root", str(host.path), str(signed)]
    for more, words in (
        (["--builder", "build1"], "--builder and --builder-key are given together"),
        (["--builder", "gpu7", "--builder-key", str(public)], "signed as 'urn:gdsdeploy:builder:build1', not by gpu7"),
        (["--builder", "build1", "--builder-key", str(signed)], "not an Ed25519 key"),
        (["--builder", "build1", "--builder-key", f"{public}x"], "build1.pubx: No such file"),
    ):
        assert main([*argv, *more]) == 2
        assert words in capsys.readouterr().err
    assert signed.exists()
    assert not (host.modules / "updates/gdsdeploy").exists()
    assert main([*argv, "--builder", "build1", "--builder-key", str(public)]) == 0
    assert (host.modules / "updates/gdsdeploy/nvidia.ko").exists()


def test_what_a_bare_host_cannot_tell(host: Root, archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["kmod", "key", "--kernel", RELEASE, "--root", str(host.path), "--json"]
    assert main(argv) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["key"] is None
    assert {"symvers", "compiler", "nvidia_fs_source"} <= set(result["unknown"])
    assert result["told"]["ofed"] == NONE
    assert result["told"]["kernel_build"] == pack.read_manifest(str(archive))["kernel_build"]
    assert result["installed"] is None
    pack.install(str(archive), kernel(host))
    assert main(argv) == 0
    assert json.loads(capsys.readouterr().out)["installed"] == key_of(pack.read_manifest(str(archive))["key"])
    assert main(argv[:-1]) == 0
    assert "no key: " in capsys.readouterr().out


def test_archives_from_before_builds_had_keys_are_taken(archive: Path, host: Root, tmp_path: Path) -> None:
    old = tmp_path / "old.tar"
    with tarfile.open(archive) as source, tarfile.open(old, "w") as copy:
        for entry in source:
            data = source.extractfile(entry).read()  # type: ignore[union-attr]
            if entry.name == "manifest.json":
                value = json.loads(data)
                del value["key"]
                data = json.dumps(value).encode()
            entry.size = len(data)
            copy.addfile(entry, io.BytesIO(data))
    assert pack.install(str(old), kernel(host))["changed"]
