"""Archives of modules: what goes in, what a host takes; and the key of a build, equal for what may stand for it."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.__main__ import main
from gdsdeploy.host.archive import key, pack as packing
from gdsdeploy.host.archive.key import INGREDIENTS, NONE, host_ingredients, key_of, ofed_digest
from gdsdeploy.host.archive.provenance import Builder, public_pem
from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.errors import AuditError, ElfError, PackError
from gdsdeploy.host.kmod.kernel import Kernel, read_dependencies
from tests.unit.host.kmod.kmod_elf import signed_by
from tests.unit.host.kmod.kmod_root import KERNEL_EXPORTS, P2P, RELEASE, TREE, VERSION, Root

FOLDER = "updates/gdsdeploy"
GOOD = dict.fromkeys(INGREDIENTS, "x")
CORE = {"ib_register_peer_memory_client": (0x11, True), "ib_unregister_peer_memory_client": (0x12, True)}


def kernel(root: Root) -> Kernel:
    return Kernel(RELEASE, str(root.path))


def tree_of(root: Root) -> dict[str, bytes]:
    """Without the record that modules.dep is due: it stays where depmod fails again while files are put back."""
    files = (path for path in root.path.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): path.read_bytes() for path in files if path.name != "derived.json"}


@pytest.fixture
def builder(tmp_path: Path) -> Root:
    root = Root(tmp_path / "builder")
    # What no module of the kernel uses cannot be looked up on a host without headers.
    imports = {name: KERNEL_EXPORTS[name] for name in ("kfree", "rare_thing")}
    root.nvidia(imports={**imports, "drm_open": 0xD0})
    root.nvidia_fs()
    return root


@pytest.fixture
def archive(builder: Root, tmp_path: Path) -> Path:
    path = tmp_path / "modules.tar"
    packing.pack(kernel(builder), (), str(path))
    return path


@pytest.fixture
def host(tmp_path: Path) -> Root:
    """Another host with the same kernel and neither headers nor compiler; depmod has run there."""
    root = Root(tmp_path / "host")
    root.remove_headers()
    root.depmod()
    return root


def rewrite(archive: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Write the archive again with its members changed by ``change``."""
    with tarfile.open(archive) as old:
        members = {entry.name: old.extractfile(entry).read() for entry in old}  # type: ignore[union-attr]
    change(members)
    with tarfile.open(archive, "w") as new:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            new.addfile(entry, io.BytesIO(data))
    return archive


def edit_manifest(archive: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    def edit(members: dict[str, bytes]) -> None:
        value = json.loads(members["manifest.json"])
        change(value)
        members["manifest.json"] = json.dumps(value).encode()

    return rewrite(archive, edit)


def refusal(archive: Path, host: Root) -> str:
    before = tree_of(host)
    with pytest.raises(PackError) as caught:
        packing.install(str(archive), kernel(host))
    assert tree_of(host) == before
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_manifest_says_what_it_was_built_from(builder: Root, tmp_path: Path) -> None:
    manifest = packing.pack(kernel(builder), (), str(tmp_path / "a.tar"))
    assert manifest["kernel_release"] == RELEASE
    assert manifest["vermagic"] == builder.vermagic
    assert manifest["symvers"].startswith("sha256:")
    assert manifest["driver"] == {"version": VERSION, "flavour": "open", "tree": TREE}
    assert manifest["nvidia_fs"]["version"] == "2.19.7"
    assert [entry["name"] for entry in manifest["modules"]] == ["nvidia", "nvidia_fs"]
    assert manifest["modules"][0]["size"] == (builder.modules / "updates/dkms/nvidia.ko").stat().st_size


def test_the_same_modules_give_the_same_bytes(builder: Root, archive: Path, tmp_path: Path) -> None:
    os.utime(builder.modules / "updates/dkms/nvidia.ko", (1, 1))
    packing.pack(kernel(builder), ["nvidia-fs", "nvidia"], str(tmp_path / "b.tar"))
    assert (tmp_path / "b.tar").read_bytes() == archive.read_bytes()


@pytest.mark.parametrize("fault", ["crc", "unknown"])
def test_what_does_not_pass_its_audit_is_not_packed(builder: Root, tmp_path: Path, fault: str) -> None:
    if fault == "crc":
        builder.nvidia_fs(imports={"nvidia_p2p_get_pages": 1})
    else:
        builder.nvidia_fs(info=[("version", "2.19.7")])
    with pytest.raises(AuditError, match=r"refusing to pack: nvidia_fs: \[(symbol-crc|driver-tree-unknown)\]"):
        packing.pack(kernel(builder), (), str(tmp_path / "a.tar"))
    assert list(tmp_path.glob("a.tar*")) == []


def test_an_archive_that_cannot_be_written(builder: Root, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="cannot write"):
        packing.pack(kernel(builder), (), str(tmp_path / "missing" / "a.tar"))


def test_install_places_verifies_and_indexes(archive: Path, host: Root) -> None:
    result = packing.install(str(archive), kernel(host))
    assert result["changed"]
    assert result["modules"] == ["nvidia", "nvidia_fs"]
    assert [entry["ok"] for entry in result["audit"]] == [True, True]
    assert sorted(entry.name for entry in (host.modules / FOLDER).iterdir()) == [
        "manifest.json",
        "nvidia-fs.ko",
        "nvidia.ko",
    ]
    dependencies = read_dependencies((host.modules / "modules.dep").read_text())
    assert dependencies[f"{FOLDER}/nvidia-fs.ko"] == [f"{FOLDER}/nvidia.ko", "kernel/drivers/gpu/drm/drm.ko"]
    assert [entry.name for entry in (host.path / "lib/modules").iterdir()] == [RELEASE]
    assert (host.modules / FOLDER).stat().st_mode & 0o777 == 0o755


def test_a_second_install_changes_nothing_and_runs_no_depmod(
    archive: Path, host: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing.install(str(archive), kernel(host))
    before = tree_of(host)
    monkeypatch.setattr(process, "run", lambda *_: pytest.fail("a program was started"))
    result = packing.install(str(archive), kernel(host))
    assert (result["changed"], result["changes"]) == (False, [])
    assert tree_of(host) == before


def test_check_changes_nothing_and_says_what_would(archive: Path, host: Root) -> None:
    before = tree_of(host)
    result = packing.install(str(archive), kernel(host), check=True)
    assert result["changed"]
    assert any("nvidia-fs.ko (new)" in entry for entry in result["changes"])
    assert tree_of(host) == before


def test_an_index_that_lost_the_modules_is_made_again(archive: Path, host: Root) -> None:
    packing.install(str(archive), kernel(host))
    (host.modules / "modules.dep").write_text("kernel/fs/own.ko:\n")
    result = packing.install(str(archive), kernel(host))
    assert any("not in modules.dep" in entry for entry in result["changes"])
    assert f"{FOLDER}/nvidia.ko" in (host.modules / "modules.dep").read_text()


def test_a_new_set_replaces_the_old_one_whole(builder: Root, archive: Path, host: Root) -> None:
    builder.module("updates/dkms/nvidia-uvm.ko", "nvidia_uvm", info=[("version", VERSION)])
    packing.pack(kernel(builder), ["nvidia", "nvidia-uvm"], str(archive))
    packing.install(str(archive), kernel(host))
    packing.pack(kernel(builder), ["nvidia", "nvidia-fs"], str(archive))
    result = packing.install(str(archive), kernel(host))
    assert any("nvidia-uvm.ko (removed)" in entry for entry in result["changes"])
    assert not (host.modules / FOLDER / "nvidia-uvm.ko").exists()


def test_leftovers_of_dkms_are_named_and_lose(archive: Path, host: Root) -> None:
    host.nvidia_fs(info=[("version", "2.13"), ("gdsdeploy_driver", "535.1")])
    result = packing.install(str(archive), kernel(host))
    assert result["notes"] == [
        f"{host.modules}/updates/dkms/nvidia-fs.ko is another nvidia_fs; updates/gdsdeploy is preferred by depmod.d"
    ]
    dependencies = read_dependencies((host.modules / "modules.dep").read_text())
    assert f"{FOLDER}/nvidia-fs.ko" in dependencies
    assert "updates/dkms/nvidia-fs.ko" not in dependencies
    outcome = {entry["module"]: entry for entry in audit(kernel(host))}["nvidia_fs"]
    assert outcome["file"].endswith(f"{FOLDER}/nvidia-fs.ko")
    assert [entry["id"] for entry in outcome["findings"] if entry["severity"] != "note"] == ["duplicate", "vm-io"]


def test_installed_modules_stay_vouched_for_on_the_kernel_they_were_packed_for(archive: Path, host: Root) -> None:
    packing.install(str(archive), kernel(host))
    assert [entry["ok"] for entry in audit(kernel(host))] == [True, True]
    (host.modules / FOLDER / "manifest.json").rename(host.path / "manifest.json")
    assert [entry["ok"] for entry in audit(kernel(host))] == [None, True]
    (host.path / "manifest.json").rename(host.modules / FOLDER / "manifest.json")
    host.module("kernel/fs/own.ko", "own", info=[("intree", "Y"), ("version", "another build")], imports={"kfree": 5})
    assert [entry["ok"] for entry in audit(kernel(host))] == [False, None]


def test_a_changed_module_is_not_vouched_for(archive: Path, host: Root) -> None:
    packing.install(str(archive), kernel(host))
    host.nvidia(f"{FOLDER}/nvidia.ko", imports={"unseen": 1}, depends="")
    assert [entry["ok"] for entry in audit(kernel(host))] == [None, True]


def test_the_audit_on_the_host_refuses_another_build_of_the_kernel(archive: Path, host: Root) -> None:
    versions: dict[str, int | None] = dict(KERNEL_EXPORTS)
    host.module("kernel/fs/own.ko", "own", info=[("intree", "Y")], imports={**versions, "kfree": 0xBAD})
    before = tree_of(host)
    with pytest.raises(AuditError, match=r"refusing to install: nvidia: \[symbol-crc\]"):
        packing.install(str(archive), kernel(host))
    assert tree_of(host) == before


def test_an_archive_for_another_kernel(archive: Path, host: Root) -> None:
    edit_manifest(archive, lambda value: value.update(kernel_release="6.1.0"))
    assert f"was packed for kernel 6.1.0, not {RELEASE}" in refusal(archive, host)


def test_a_truncated_archive(archive: Path, host: Root) -> None:
    data = archive.read_bytes()
    for size in (0, 100, 600, len(data) // 2):
        archive.write_bytes(data[:size])
        assert str(archive) in refusal(archive, host)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda members: members.update({"../../etc/cron.d/x": b"bad"}), "which its manifest doesn't list"),
        (lambda members: members.pop("modules/nvidia-fs.ko"), "doesn't have modules/nvidia-fs.ko"),
        (
            lambda members: members.update({"modules/nvidia.ko": b"\0" + members["modules/nvidia.ko"][1:]}),
            "doesn't have its manifest's sha256",
        ),
    ],
)
def test_members_other_than_the_manifests(
    archive: Path, host: Root, change: Callable[[dict[str, bytes]], None], words: str
) -> None:
    assert words in refusal(rewrite(archive, change), host)


@pytest.mark.parametrize("name", ["../x.ko", "/etc/x.ko", "a/b.ko", ".ko", ".x.ko", "x.txt", "", "..", "x.ko/"])
def test_paths_that_lead_out(archive: Path, host: Root, name: str) -> None:
    edit_manifest(archive, lambda value: value["modules"][0].update(file=name))
    assert "an invalid list of modules" in refusal(archive, host)


def test_a_link_in_the_place_of_a_module(archive: Path, host: Root) -> None:
    with tarfile.open(archive) as old:
        manifest = old.extractfile("manifest.json").read()  # type: ignore[union-attr]
    with tarfile.open(archive, "w") as new:
        entry = tarfile.TarInfo("manifest.json")
        entry.size = len(manifest)
        new.addfile(entry, io.BytesIO(manifest))
        link = tarfile.TarInfo("modules/nvidia.ko")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        new.addfile(link)
    assert "modules/nvidia.ko is neither a file nor a folder" in refusal(archive, host)


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(format=2),
        lambda value: value.update(modules={}),
        lambda value: value.update(modules=[]),
        lambda value: value.pop("vermagic"),
        lambda value: value.update(driver="odd"),
        lambda value: value["modules"][0].update(size=-1),
        lambda value: value["modules"][0].update(size="1"),
        lambda value: value["modules"].append("x"),
    ],
)
def test_a_manifest_of_another_shape(archive: Path, host: Root, change: Callable[[dict[str, Any]], None]) -> None:
    assert "its manifest" in refusal(edit_manifest(archive, change), host)


def test_what_is_no_archive(tmp_path: Path, host: Root) -> None:
    path = tmp_path / "x.tar"
    path.write_text("this is text\n" * 100)
    assert "is not an archive of modules" in refusal(path, host)
    path.unlink()
    assert "No such file" in refusal(path, host)


def test_a_full_disk_leaves_the_old_set(
    builder: Root, archive: Path, host: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing.install(str(archive), kernel(host))
    builder.nvidia(info=[("version", VERSION), ("srcversion", "NEW")])
    packing.pack(kernel(builder), (), str(archive))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        message = refusal(archive, host)
    assert "No space left on device" in message
    assert packing.install(str(archive), kernel(host))["changed"]


@pytest.mark.parametrize(
    ("files", "owner", "ours"),
    [
        (["nvidia.ko", "manifest.json"], 0, True),
        ([], 0, True),
        (["nvidia.ko", "notes.txt"], 0, False),
        (["nvidia.ko"], 12, False),
    ],
)
def test_only_what_a_killed_run_left_is_swept(
    files: list[str], owner: int, ours: bool, archive: Path, host: Root
) -> None:
    folder = host.modules.parent / ".gdsdeploy-abcd1234"
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    os.chown(folder, owner, 0)
    link = folder.with_name(".gdsdeploy-wxyz1234")
    link.symlink_to(folder.name)
    paths = [one.path for one in packing.differences(str(archive), kernel(host))]
    assert [path for path in paths if "/.gdsdeploy-" in path] == ([str(folder)] if ours else [])
    packing.install(str(archive), kernel(host))
    assert (folder.exists(), link.is_symlink()) == (not ours, True)


def test_all_of_the_archive_wins_over_other_copies_in_updates(archive: Path, host: Root) -> None:
    (host.path / "etc/depmod.d").mkdir(parents=True)
    (host.path / "etc/depmod.d/a.conf").write_text("search updates/a updates built-in\n")
    host.nvidia("updates/a/nvidia.ko", info=[("version", "550.1")])
    host.nvidia_fs("updates/a/nvidia-fs.ko", info=[("version", "2.1")])
    packing.install(str(archive), kernel(host))
    listed = read_dependencies((host.modules / "modules.dep").read_text())
    assert {file for file in listed if "nvidia" in file} == {f"{FOLDER}/nvidia.ko", f"{FOLDER}/nvidia-fs.ko"}
    assert not packing.install(str(archive), kernel(host))["changed"]


def test_an_archive_that_depmod_takes_half_of_is_not_installed(archive: Path, host: Root) -> None:
    (host.path / "etc/depmod.d").mkdir(parents=True)
    (host.path / "etc/depmod.d/site.conf").write_text("override nvidia-fs * updates/dkms\n")
    host.nvidia_fs(info=[("version", "2.1")])
    host.depmod()
    assert refusal(archive, host) == f"depmod doesn't take nvidia-fs.ko from {FOLDER} for kernel {RELEASE}"


def test_a_failing_depmod_puts_the_old_set_back(
    builder: Root, archive: Path, host: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing.install(str(archive), kernel(host))
    builder.nvidia(info=[("version", VERSION), ("srcversion", "NEW")])
    packing.pack(kernel(builder), (), str(archive))
    with monkeypatch.context() as patch:
        patch.setattr(process, "run", lambda *_: process.Output(1, "", "depmod: ERROR: no space\n"))
        message = refusal(archive, host)
    assert "depmod failed" in message


def test_a_failing_depmod_leaves_nothing_of_a_first_install(
    archive: Path, host: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "run", lambda *_: process.Output(1, "", "depmod: ERROR: no space\n"))
    assert "depmod failed" in refusal(archive, host)


def test_remove_takes_away_all_of_it_and_then_nothing(archive: Path, host: Root) -> None:
    before = tree_of(host)
    packing.install(str(archive), kernel(host))
    assert packing.remove_from(RELEASE, str(host.path), check=True)["changed"]
    assert (host.modules / FOLDER).is_dir()
    assert packing.remove_from(RELEASE, str(host.path))["changed"]
    after = tree_of(host)
    assert set(after) == set(before)
    assert "gdsdeploy" not in (host.modules / "modules.dep").read_text()
    nothing = {"changed": False, "changes": [], "notes": [], "modules": [], "audit": []}
    assert packing.remove_from(RELEASE, str(host.path)) == nothing


def test_the_drivers_symbols_are_checked_even_when_vouched_for(builder: Root, archive: Path, host: Root) -> None:
    packing.pack(kernel(builder), ["nvidia-fs"], str(archive))
    host.nvidia(exports={"nvidia_p2p_get_pages": P2P["nvidia_p2p_get_pages"]})
    with pytest.raises(AuditError, match="nothing on this host exports nvidia_p2p_put_pages"):
        packing.install(str(archive), kernel(host))


@pytest.mark.parametrize("name", INGREDIENTS)
def test_every_ingredient_counts(name: str) -> None:
    assert key_of({**GOOD, name: "y"}) != key_of(GOOD) == key_of(dict(reversed(GOOD.items())))


def test_the_manifest_has_every_ingredient(archive: Path) -> None:
    result = packing.read_manifest(str(archive))["key"]
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
        keys.add(packing.pack(kernel(root), (), str(tmp_path / "a.tar"))["key"]["signer"])
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
        packing.install(str(archive), kernel(host))
    assert not (host.modules / "updates/gdsdeploy").exists()


def test_modules_for_another_build_of_the_kernel_are_refused(archive: Path, host: Root) -> None:
    versions = {"kfree": 0xAAAA0001, "_printk": 0xAAAA0002, "gpl_thing": 0xAAAA0003}
    host.module("kernel/fs/own.ko", "own", info=[("intree", "Y"), ("version", "rebuilt")], imports=versions)
    with pytest.raises(PackError, match="they were built for another build of kernel " + re.escape(RELEASE)):
        packing.install(str(archive), kernel(host))
    assert not (host.modules / "updates/gdsdeploy").exists()


def test_modules_for_another_architecture_are_refused(archive: Path, host: Root) -> None:
    result = packing.read_manifest(str(archive))
    assert key.objections(kernel(host), {**result, "key": {**result["key"], "arch": "aarch64"}}) == [
        "they are for aarch64, and this kernel is for x86_64"
    ]


def test_what_is_not_a_module_is_not_packed(builder: Root, tmp_path: Path) -> None:
    """Above all no key."""
    secret = tmp_path / "signing_key.priv"
    secret.write_text("-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises((AuditError, ElfError)):
        packing.pack(kernel(builder), ["nvidia", str(secret)], str(tmp_path / "a.tar"))
    assert not (tmp_path / "a.tar").exists()
    secret.rename(builder.modules / "updates/dkms/signing_key.priv")
    packing.pack(kernel(builder), (), str(tmp_path / "a.tar"))
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == ["manifest.json", "modules/nvidia-fs.ko", "modules/nvidia.ko"]


def test_install_by_hand_verifies_who_built_it(
    builder: Root, host: Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed, public = tmp_path / "signed.tar", tmp_path / "build1.pub"
    packing.pack(kernel(builder), (), str(signed), Builder("build1", b"1" * 32))
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


def test_what_a_bare_host_tells_of_builds_that_fit_it(host: Root, archive: Path) -> None:
    told = host_ingredients(kernel(host), "x86_64")
    assert (told["arch"], told["ofed"]) == ("x86_64", NONE)
    assert told["kernel_build"] == packing.read_manifest(str(archive))["kernel_build"]
