from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.audit.audit import audit, has_errors, is_undecided
from gdsdeploy.host.errors import KernelError
from gdsdeploy.host.kmod.driver import Expected
from gdsdeploy.host.kmod.kernel import Export, Kernel, releases
from tests.unit.host.kmod.kmod_elf import SIGNATURE
from tests.unit.host.kmod.kmod_root import KERNEL_EXPORTS, P2P, PROVENANCE, RELEASE, TREE, VERSION, Root

IMPORTS = {name: crc for name, (crc, _) in P2P.items()}


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


def test_other_symbol_versions_than_the_drivers(root: Root) -> None:
    root.nvidia(exports={**P2P, "nvidia_p2p_put_pages": (0x1, True)})
    root.nvidia_fs()
    result = look(root)["nvidia_fs"]
    assert result["ok"] is False
    assert ids(result) == ["error symbol-crc"]
    message = one(result, "symbol-crc")["message"]
    assert "updates/dkms/nvidia.ko" in message
    assert "nvidia_p2p_put_pages (0x642487ac, exported 0x00000001)" in message
    assert "nvidia_p2p_get_pages" not in message


def test_other_symbol_versions_than_the_kernels(root: Root) -> None:
    root.nvidia(imports={"kfree": 1})
    assert "vmlinux's symbols: kfree" in one(look(root)["nvidia"], "symbol-crc")["message"]


def test_another_struct_module_is_seen_in_module_layout(root: Root) -> None:
    root.module("updates/a.ko", "a", imports={"module_layout": 5})
    assert "module_layout" in one(look(root, "a")["a"], "symbol-crc")["message"]


def test_the_stock_build_without_versions_of_the_drivers_symbols(root: Root) -> None:
    root.nvidia()
    root.nvidia_fs(imports=dict.fromkeys(P2P), depends="")
    result = look(root)["nvidia_fs"]
    assert result["ok"] is False
    assert "nvidia_p2p_get_pages of nvidia" in one(result, "symbol-unversioned")["message"]


def test_no_driver_for_this_kernel(root: Root) -> None:
    root.nvidia_fs()
    result = look(root, "nvidia-fs")["nvidia_fs"]
    assert result["ok"] is False
    assert "nvidia_p2p_get_pages" in one(result, "symbol-missing")["message"]
    assert "depends on module nvidia" in one(result, "dependency-missing")["message"]


def test_a_module_that_is_not_there(root: Root) -> None:
    assert (
        one(look(root, "nvidia-fs")["nvidia_fs"], "missing")["message"] == f"kernel {RELEASE} has no module nvidia_fs"
    )


def test_weak_imports_need_no_exporter(root: Root) -> None:
    root.module("updates/a.ko", "a", imports={"nobody": None}, weak=["nobody"])
    assert look(root, "a")["a"]["ok"] is True


@pytest.mark.parametrize(
    ("vermagic", "expected"),
    [
        ("6.1.0-50-amd64 SMP preempt mod_unload modversions ", "warning vermagic"),
        ("6.12.94+deb13-amd64 SMP preempt_rt mod_unload modversions ", "error vermagic"),
        ("6.12.94+deb13-amd64 SMP mod_unload modversions ", "error vermagic"),
    ],
)
def test_vermagic(root: Root, vermagic: str, expected: str) -> None:
    root.nvidia(vermagic=vermagic)
    assert ids(look(root)["nvidia"]) == [expected]


def test_without_symbol_versions_the_release_itself_has_to_agree(tmp_path: Path) -> None:
    root = Root(tmp_path, "7.2.12", "7.2.12 SMP mod_unload ")
    root.nvidia(vermagic="7.2.11 SMP mod_unload ", layout="flags")
    assert ids(look(root)["nvidia"]) == ["error vermagic"]


def test_a_kernel_without_symbol_versions_needs_none(tmp_path: Path) -> None:
    root = Root(tmp_path, "7.2.12", "7.2.12 SMP mod_unload ")
    root.nvidia(layout="flags")
    root.nvidia_fs()
    assert [result["ok"] for result in look(root).values()] == [True, True]


def test_modules_for_another_machine(root: Root) -> None:
    root.nvidia(machine=183)
    assert "is for aarch64, the kernel for x86_64" in one(look(root)["nvidia"], "machine")["message"]


def test_a_stub_peermem_matters_where_peermem_is_wanted(root: Root) -> None:
    root.nvidia()
    root.module("updates/dkms/nvidia-peermem.ko", "nvidia_peermem", license="Dual BSD/GPL", info=[("version", VERSION)])
    assert ids(look(root)["nvidia_peermem"]) == ["warning peermem-stub"]
    assert ids(look(root, expected=Expected(peermem=True))["nvidia_peermem"]) == ["error peermem-stub"]


def test_a_real_peermem_is_no_stub(root: Root) -> None:
    root.nvidia()
    root.module("extra/ib_core.ko", "ib_core", exports={"ib_register_peer_memory_client": (7, True)})
    root.module(
        "updates/dkms/nvidia-peermem.ko",
        "nvidia_peermem",
        depends="ib_core",
        info=[("version", VERSION)],
        imports={"ib_register_peer_memory_client": 7},
    )
    assert look(root, expected=Expected(peermem=True))["nvidia_peermem"]["ok"] is True


def test_parts_of_another_driver(root: Root) -> None:
    root.nvidia()
    root.module("updates/dkms/nvidia-uvm.ko", "nvidia_uvm", license="Dual MIT/GPL", info=[("version", "535.1")])
    assert "is of driver 535.1, nvidia.ko of 550.163.01" in one(look(root)["nvidia_uvm"], "driver-version")["message"]


def test_gpl_only_symbols_and_the_proprietary_driver(root: Root) -> None:
    root.nvidia(license="NVIDIA", exports={name: (crc, False) for name, (crc, _) in P2P.items()})
    info = [("version", "2.19.7"), *((key, "proprietary" if "flavour" in key else value) for key, value in PROVENANCE)]
    root.nvidia_fs(info=info)
    results = look(root)
    assert results["nvidia"]["ok"] is True
    message = one(results["nvidia_fs"], "gpl-proprietary")["message"]
    assert "gpl_thing" in message
    assert "of the proprietary module nvidia" in message


def test_a_proprietary_module_may_not_use_gpl_only_symbols(root: Root) -> None:
    root.nvidia(license="NVIDIA", imports={"gpl_thing": KERNEL_EXPORTS["gpl_thing"]})
    assert "imports GPL-only symbols: gpl_thing" in one(look(root)["nvidia"], "gpl-proprietary")["message"]


def test_equal_versions_of_another_driver_are_told_apart_by_what_the_build_recorded(root: Root) -> None:
    root.nvidia()
    other = [("gdsdeploy_driver", "535.261.03"), ("gdsdeploy_flavour", "open"), ("gdsdeploy_tree", "sha256:ee")]
    root.nvidia_fs(info=other)
    result = look(root)["nvidia_fs"]
    assert ids(result) == ["error driver-tree"]
    assert one(result, "driver-tree")["message"] == "was built against driver 535.261.03, not 550.163.01"


@pytest.mark.parametrize(
    ("expected", "output"),
    [
        (Expected("575.1"), "driver 550.163.01, not 575.1"),
        (Expected(VERSION, "proprietary"), "the open flavour, not proprietary"),
        (Expected(VERSION, "open", "sha256:other"), f"the tree {TREE}, not sha256:other"),
    ],
)
def test_nvidia_fs_against_the_lock(root: Root, expected: Expected, output: str) -> None:
    root.nvidia()
    root.nvidia_fs()
    assert output in one(look(root, expected=expected)["nvidia_fs"], "driver-tree")["message"]


def test_the_driver_against_the_lock(root: Root) -> None:
    root.nvidia()
    result = look(root, expected=Expected("575.1", "proprietary"))["nvidia"]
    assert ids(result) == ["error driver-version", "error driver-flavour"]


def test_nvidia_fs_that_records_nothing_is_not_passed(root: Root) -> None:
    root.nvidia()
    root.nvidia_fs(info=[("version", "2.19.7")])
    results = audit(Kernel(RELEASE, str(root.path)))
    assert [result["ok"] for result in results] == [True, None]
    assert ids(results[1]) == ["warning driver-tree-unknown"]
    assert is_undecided(results)
    assert not has_errors(results)


def test_an_nvidia_fs_of_before_linking(root: Root) -> None:
    root.nvidia()
    root.nvidia_fs(imports={"kfree": KERNEL_EXPORTS["kfree"]}, depends="")
    assert "note late-binding" in ids(look(root)["nvidia_fs"])


def test_without_headers_the_kernels_own_modules_bear_witness(root: Root) -> None:
    root.remove_headers()
    root.nvidia(imports={"kfree": KERNEL_EXPORTS["kfree"]}, depends="")
    assert look(root)["nvidia"]["ok"] is True
    root.nvidia(imports={"kfree": 1}, depends="")
    assert ids(look(root)["nvidia"]) == ["error symbol-crc"]


@pytest.mark.parametrize("file", ["kernel/drivers/gpu/drm/a.ko", "kernel/net/z.ko"])
def test_without_headers_a_module_of_the_kernel_cannot_vouch_for_itself(root: Root, file: str) -> None:
    """The audit may read it before or after the others."""
    root.remove_headers()
    root.module(file, "changed", info=[("intree", "Y")], imports={"kfree": 1})
    assert ids(look(root, Path(file).stem)["changed"]) == ["error symbol-crc"]
    assert look(root, Path(file).stem, "own")["changed"]["ok"] is None, "no other module vouches for it"


def test_without_headers_no_more_modules_are_read_than_needed(root: Root) -> None:
    root.remove_headers()
    broken = root.modules / "kernel/zlib/zlib.ko"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no module")
    root.nvidia(imports={"kfree": KERNEL_EXPORTS["kfree"]}, depends="")
    assert look(root)["nvidia"]["ok"] is True
    root.nvidia(imports={"unseen": 1}, depends="")
    assert ids(look(root)["nvidia"]) == ["warning input-unknown", "warning symbol-unknown"]


def test_without_headers_what_nobody_bears_witness_to_is_not_passed(root: Root) -> None:
    root.remove_headers()
    root.nvidia(imports={"unseen": 1}, depends="")
    result = look(root)["nvidia"]
    assert result["ok"] is None
    assert ids(result) == ["warning symbol-unknown"]


def test_without_headers_a_symbol_of_the_driver_is_missing_all_the_same(root: Root) -> None:
    root.remove_headers()
    root.nvidia(exports={})
    root.nvidia_fs()
    assert "nvidia_p2p_get_pages" in one(look(root)["nvidia_fs"], "symbol-missing")["message"]


def test_a_module_that_took_the_place_of_the_kernels_own_counts(root: Root) -> None:
    root.nvidia()
    root.module("updates/drm.ko", "drm", exports={"drm_open": (0xEE, False)})
    message = one(look(root)["nvidia"], "symbol-crc")["message"]
    assert "updates/drm.ko" in message


def test_a_module_on_disk_that_is_not_declared_a_dependency(root: Root) -> None:
    root.module("extra/ofed.ko", "ofed", exports={"ofed_thing": (5, False)})
    root.module("updates/a.ko", "a", imports={"ofed_thing": None})
    assert "ofed_thing of ofed" in one(look(root, "a")["a"], "symbol-unversioned")["message"]


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


def test_several_files_and_which_is_loaded(root: Root) -> None:
    root.nvidia("kernel/extra/nvidia.ko")
    root.nvidia()
    result = look(root)["nvidia"]
    assert result["file"].endswith("updates/dkms/nvidia.ko")
    assert ids(result) == ["warning duplicate"]
    assert "updates/dkms/nvidia.ko is loaded, not kernel/extra/nvidia.ko" in one(result, "duplicate")["message"]


def test_several_files_of_equal_rank_are_an_error(root: Root) -> None:
    root.nvidia("updates/other/nvidia.ko")
    root.nvidia()
    result = look(root)["nvidia"]
    assert ids(result) == ["error duplicate"]
    assert "nothing that chooses between them" in one(result, "duplicate")["message"]


def test_an_index_that_does_not_know_the_file(root: Root) -> None:
    root.nvidia()
    root.etc(f"lib/modules/{RELEASE}/modules.dep", "kernel/fs/own.ko:\n")
    assert f"depmod -a {RELEASE}" in one(look(root)["nvidia"], "depmod-stale")["hint"]


def test_debians_file_names(root: Root) -> None:
    root.nvidia("updates/dkms/nvidia-current-open.ko")
    root.nvidia_fs()
    results = look(root)
    assert [result["ok"] for result in results.values()] == [True, True]
    assert ids(results["nvidia"]) == ["warning name"]
    root.etc("etc/modprobe.d/nvidia.conf", "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n")
    assert ids(look(root)["nvidia"]) == []


def test_both_flavours_side_by_side(root: Root) -> None:
    root.nvidia("updates/dkms/nvidia-current-open.ko")
    root.nvidia("updates/dkms/nvidia-current.ko", license="NVIDIA")
    assert ids(look(root)["nvidia"]) == ["error duplicate", "warning name"]
    root.etc("etc/modprobe.d/nvidia.conf", "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n")
    result = look(root)["nvidia"]
    assert result["file"].endswith("nvidia-current-open.ko")
    assert ids(result) == ["warning duplicate"]


def test_modprobe_would_take_the_other_flavour_for_nvidia_fs(root: Root) -> None:
    """depmod resolves nvidia-fs by symbols and knows nothing of the names that modprobe.d maps."""
    root.nvidia("updates/dkms/nvidia-current-open.ko")
    root.nvidia("updates/dkms/nvidia-current.ko", license="NVIDIA")
    root.nvidia_fs()
    root.etc("etc/modprobe.d/nvidia.conf", "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n")
    files = [f"updates/dkms/{name}.ko:" for name in ("nvidia-current-open", "nvidia-current")]
    dep = "\n".join([*files, "updates/dkms/nvidia-fs.ko: updates/dkms/nvidia-current.ko", ""])
    root.etc(f"lib/modules/{RELEASE}/modules.dep", dep)
    message = one(look(root)["nvidia_fs"], "dependency-file")["message"]
    assert "would load updates/dkms/nvidia-current.ko for nvidia, not updates/dkms/nvidia-current-open.ko" in message


def test_a_mapped_name_without_its_file(root: Root) -> None:
    root.nvidia()
    root.etc("etc/modprobe.d/nvidia.conf", "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n")
    assert ids(look(root)["nvidia"]) == ["error name"]


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
    assert [entry["id"] for entry in look(root)["nvidia"]["findings"]] == ["signature-unverified"]


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


def in_namespace(root: Root, space: str) -> None:
    """The kernel's headers say that kfree is for those who import ``space``."""
    path = f"usr/src/linux-headers-{RELEASE}/Module.symvers"
    text = (root.path / path).read_text()
    assert "\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n" in text
    root.etc(
        path, text.replace("\tkfree\tvmlinux\tEXPORT_SYMBOL\t\n", f"\tkfree\tvmlinux\tEXPORT_SYMBOL_GPL\t{space}\n")
    )


@pytest.mark.parametrize(
    ("space", "imported", "name", "right"),
    [
        ("DMA_BUF", [], "a", False),
        ("DMA_BUF", ["DMA_BUF"], "a", True),
        ("DMA_BUF", ["OTHER", "DMA_BUF"], "a", True),
        ("module:kvm,a-*", [], "a_b", True),
        ("module:kvm,a-*", [], "b", False),
    ],
)
def test_symbols_of_a_namespace(root: Root, space: str, imported: list[str], name: str, right: bool) -> None:
    in_namespace(root, space)
    info = [("import_ns", entry) for entry in imported]
    root.module(f"updates/{name}.ko", name, imports={"kfree": KERNEL_EXPORTS["kfree"]}, info=info)
    assert ids(look(root, name)[name]) == ([] if right else ["error symbol-namespace"])


def test_a_kernel_that_lets_modules_use_any_namespace(root: Root) -> None:
    in_namespace(root, "DMA_BUF")
    config = "CONFIG_MODVERSIONS=y\nCONFIG_MODULE_ALLOW_MISSING_NAMESPACE_IMPORTS=y\n"
    root.etc(f"usr/src/linux-headers-{RELEASE}/.config", config)
    root.module("updates/a.ko", "a", imports={"kfree": KERNEL_EXPORTS["kfree"]})
    assert "namespace DMA_BUF without importing it: kfree" in one(look(root, "a")["a"], "symbol-namespace")["message"]
    assert ids(look(root, "a")["a"]) == ["warning symbol-namespace"]
