from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.audit.audit import audit, has_errors, is_undecided
from gdsdeploy.host.errors import KernelError
from gdsdeploy.host.kmod.driver import Expected
from gdsdeploy.host.kmod.kernel import Export, Kernel, releases
from tests.unit.host import cases, expect
from tests.unit.host.kmod.kmod_elf import SIGNATURE
from tests.unit.host.kmod.kmod_root import KERNEL_EXPORTS, P2P, PROVENANCE, RELEASE, TREE, VERSION, Root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def look(root: Root, *modules: str, expected: Expected | None = None) -> dict[str, dict[str, Any]]:
    results = audit(Kernel(root.release, str(root.path)), modules, expected)
    return {result["module"]: result for result in results}


def ids(result: dict[str, Any]) -> list[str]:
    """Without what the versions of these tests have in common: no signature, an nvidia-fs of before 2.26.6."""
    outcome = [entry for entry in result["findings"] if entry["id"] not in ("unsigned", "vm-io")]
    return [f"{entry['severity']} {entry['id']}" for entry in outcome]


def one(result: dict[str, Any], ident: str) -> dict[str, str]:
    outcome = [entry for entry in result["findings"] if entry["id"] == ident]
    assert len(outcome) == 1, result
    assert outcome[0]["hint"]
    entry: dict[str, str] = outcome[0]
    return entry


CASES = cases.load("kmod/audit")
Step = dict[str, Any]


def build(root: Root, steps: list[dict[str, Any]]) -> None:
    """Do what a case says of its root, in order."""
    for (what, options), *_ in (list(step.items()) for step in steps):
        if what == "file":
            for path, text in options.items():
                root.etc(path, text)
        elif what == "remove":
            root.remove_headers()
        else:
            if options.get("signature"):
                options = {**options, "signature": SIGNATURE}
            getattr(root, what)(**options)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, tmp_path: Path) -> None:
    steps: list[Step] = CASES[name] if isinstance(CASES[name], list) else [CASES[name]]
    root = Root(tmp_path, **steps[0].get("kernel", {}))
    for number, step in enumerate(steps, 1):
        assert set(step) <= {"kernel", "root", "audit", "expected", "results"}
        assert step["results"]
        build(root, step.get("root", []))
        results = look(root, *step.get("audit", []), expected=Expected(**step.get("expected", {})))
        found = {
            module: {**result, "ids": ids(result), "findings": {entry["id"]: entry for entry in result["findings"]}}
            for module, result in results.items()
        }
        for difference in expect.differences(step["results"], found, name):
            pytest.fail(f"tests/cases/kmod/audit.yml: look {number}: {difference}", pytrace=False)
        entries = [entry for result in results.values() for entry in result["findings"]]
        assert all(entry["hint"] for entry in entries if entry["severity"] != "note"), found


def test_a_right_stack_has_nothing_to_object_to(root: Root) -> None:
    root.nvidia(signature=SIGNATURE)
    root.nvidia_fs(signature=SIGNATURE, info=[("version", "2.28.4"), *PROVENANCE])
    expected = Expected(VERSION, "open", TREE)
    results = audit(Kernel(RELEASE, str(root.path)), (), expected)
    assert results == [
        {"module": "nvidia", "file": f"/lib/modules/{RELEASE}/updates/dkms/nvidia.ko", "ok": True, "findings": []},
        {
            "module": "nvidia_fs",
            "file": f"/lib/modules/{RELEASE}/updates/dkms/nvidia-fs.ko",
            "ok": True,
            "findings": [],
        },
    ]
    assert not has_errors(results)
    assert not is_undecided(results)


def test_nvidia_fs_that_records_nothing_is_not_passed(root: Root) -> None:
    root.nvidia()
    root.nvidia_fs(info=[("version", "2.19.7")])
    results = audit(Kernel(RELEASE, str(root.path)))
    assert [result["ok"] for result in results] == [True, None]
    assert ids(results[1]) == ["warning driver-tree-unknown"]
    assert is_undecided(results)
    assert not has_errors(results)


def test_without_headers_no_more_modules_are_read_than_needed(root: Root) -> None:
    root.remove_headers()
    broken = root.modules / "kernel/zlib/zlib.ko"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no module")
    root.nvidia(imports={"kfree": KERNEL_EXPORTS["kfree"]}, depends="")
    assert look(root)["nvidia"]["ok"] is True
    root.nvidia(imports={"unseen": 1}, depends="")
    assert ids(look(root)["nvidia"]) == ["warning input-unknown", "warning symbol-unknown"]


def test_an_out_of_tree_module_below_kernel_does_not_speak_for_the_kernel(root: Root) -> None:
    imports: dict[str, int | None] = {f"symbol_{number}": 1 for number in range(50)}
    root.module("kernel/fs/nvidia-fs/other.ko", "other", vermagic="6.1.0 SMP mod_unload modversions ", imports=imports)
    assert Kernel(RELEASE, str(root.path)).vermagic() == root.vermagic


def test_a_driver_that_is_to_come_counts_instead_of_the_installed_one(root: Root) -> None:
    root.nvidia(info=[("version", "535.1")], exports={"nvidia_p2p_get_pages": (1, True)})
    root.nvidia_fs()
    extra = {name: Export(crc, "nvidia", gpl) for name, (crc, gpl) in P2P.items()}
    kernel = Kernel(RELEASE, str(root.path))
    assert audit(kernel, ["nvidia-fs"])[0]["ok"] is False
    assert audit(kernel, ["nvidia-fs"], None, extra)[0]["ok"] is True


def test_a_missing_part_of_the_kernel(root: Root) -> None:
    (root.modules / "kernel/drivers/gpu/drm/drm.ko").unlink()
    root.nvidia()
    assert "depends on module drm" in one(look(root)["nvidia"], "dependency-missing")["message"]
    root.etc(f"lib/modules/{RELEASE}/modules.builtin", "kernel/drivers/gpu/drm/drm.ko\n")
    assert look(root)["nvidia"]["ok"] is True


def test_headers_without_their_kernel_say_which_modules_it_has(root: Root) -> None:
    for file in ("fs/own.ko", "drivers/gpu/drm/drm.ko"):
        (root.modules / "kernel" / file).unlink()
    root.nvidia()
    assert "error dependency-missing" not in ids(look(root)["nvidia"])
    root.nvidia(depends="drm,video")
    assert "depends on module video" in one(look(root)["nvidia"], "dependency-missing")["message"]


def test_a_truncated_module(root: Root) -> None:
    path = root.nvidia()
    path.write_bytes(path.read_bytes()[:-100])
    root.nvidia_fs()
    results = look(root)
    assert "is truncated" in one(results["nvidia"], "unreadable")["message"]
    assert "symbol-missing" in " ".join(ids(results["nvidia_fs"]))


def test_unsigned_where_only_signed_modules_load(root: Root) -> None:
    root.nvidia()
    assert one(look(root)["nvidia"], "unsigned")["severity"] == "note"
    config = f"usr/src/linux-headers-{RELEASE}/.config"
    root.etc(config, "CONFIG_MODULE_SIG=y\nCONFIG_MODULE_SIG_FORCE=y\n")
    assert one(look(root)["nvidia"], "unsigned")["severity"] == "error"
    root.nvidia(signature=SIGNATURE)
    assert [entry["id"] for entry in look(root)["nvidia"]["findings"]] == ["signature-unknown"]


def test_a_file_outside_the_kernels_folder(root: Root, tmp_path: Path) -> None:
    root.nvidia()
    path = root.nvidia_fs("../../../../elsewhere/nvidia-fs.ko").resolve()
    results = look(root, str(path))
    assert results["nvidia_fs"]["ok"] is True
    assert results["nvidia_fs"]["file"] == str(path)


def test_a_named_file_takes_the_place_of_the_installed_one(root: Root) -> None:
    root.nvidia(exports={})
    root.nvidia_fs()
    path = root.nvidia("../../../../elsewhere/nvidia.ko").resolve()
    assert look(root, "nvidia-fs")["nvidia_fs"]["ok"] is False
    assert look(root, "nvidia-fs", str(path))["nvidia_fs"]["ok"] is True


def test_compressed_modules(root: Root) -> None:
    for path in (root.nvidia(), root.nvidia_fs()):
        path.with_name(path.name + ".xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()
    assert [result["ok"] for result in look(root).values()] == [True, True]


def test_a_weak_update_is_followed_inside_the_root(root: Root) -> None:
    root.nvidia("../6.12.90/extra/nvidia.ko")
    (root.modules / "weak-updates").mkdir()
    (root.modules / "weak-updates/nvidia.ko").symlink_to("/lib/modules/6.12.90/extra/nvidia.ko")
    assert look(root)["nvidia"]["ok"] is True


def test_a_release_that_is_not_there_or_no_release(root: Root) -> None:
    with pytest.raises(KernelError) as caught:
        Kernel("9.9", str(root.path))
    assert RELEASE in caught.value.hint
    with pytest.raises(KernelError, match="is not a kernel release"):
        Kernel("../../etc", str(root.path))
    assert releases(str(root.path)) == [RELEASE]


def test_damaged_symvers_of_the_headers(root: Root) -> None:
    root.nvidia()
    root.etc(f"usr/src/linux-headers-{RELEASE}/Module.symvers", "nonsense\n")
    with pytest.raises(KernelError, match=r"Module\.symvers:1: "):
        look(root)


def test_vermagic_from_headers_alone(root: Root) -> None:
    for path in (root.modules / "kernel").rglob("*.ko"):
        path.unlink()
    folder = f"usr/src/linux-headers-{RELEASE}"
    root.etc(f"{folder}/include/generated/utsrelease.h", f'#define UTS_RELEASE "{RELEASE}"\n')
    names = ("SMP", "PREEMPT_BUILD", "MODULE_UNLOAD", "MODVERSIONS")
    root.etc(f"{folder}/.config", "".join(f"CONFIG_{name}=y\n" for name in names) + "# CONFIG_PREEMPT_RT is not set\n")
    assert Kernel(RELEASE, str(root.path)).vermagic() == root.vermagic


def test_a_kernel_that_says_nothing_is_not_passed(root: Root) -> None:
    for path in (root.modules / "kernel").rglob("*.ko"):
        path.unlink()
    root.remove_headers()
    root.nvidia(imports={}, depends="")
    result = look(root)["nvidia"]
    assert result["ok"] is None
    assert "warning vermagic-unknown" in ids(result)
