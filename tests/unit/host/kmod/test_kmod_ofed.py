"""Which OFED tree is one kernel's: by what it has and says, and by the module that is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.kmod import ofed
from gdsdeploy.host.kmod.kernel import Kernel
from tests.unit.host.kmod.kmod_root import RELEASE, Root

OTHER = "6.1.0-50-amd64"
CRCS = {"ib_register_peer_memory_client": 0xC0DE0001, "ib_unregister_peer_memory_client": 0xC0DE0002}
CORE = "drivers/infiniband/core/ib_uverbs"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def tree(root: Root, place: str, crcs: dict[str, int] | None = None, declared: str = "") -> Path:
    folder = root.path / place.lstrip("/")
    folder.mkdir(parents=True)
    lines = [
        f"0x{crc:08x}\t{name}\t{CORE}\tEXPORT_SYMBOL\t\n" for name, crc in (CRCS if crcs is None else crcs).items()
    ]
    (folder / "Module.symvers").write_text("".join(lines))
    if declared:
        (folder / "configure.mk.kernel").write_text(f"KSRC=/lib/modules/{declared}/build\nKVERSION={declared}\n")
    return folder


def core(root: Root, crcs: dict[str, int] | None = None) -> None:
    """The RDMA core that is installed for the kernel."""
    exports = {name: (crc, False) for name, crc in (CRCS if crcs is None else crcs).items()}
    root.module("updates/dkms/ib_uverbs.ko", "ib_uverbs", exports=exports)


def search(root: Root) -> ofed.Search:
    return ofed.search(Kernel(RELEASE, str(root.path)))


@pytest.mark.parametrize(
    "place",
    [
        f"/usr/src/ofa_kernel/x86_64/{RELEASE}",
        f"/usr/src/ofa_kernel/{RELEASE}",
        f"/usr/src/ofa_kernel-dkms/x86_64/{RELEASE}",
        f"/var/lib/dkms/mlnx-ofed-kernel/24.10/{RELEASE}/x86_64/module",
        f"/var/lib/dkms/mlnx-ofa_kernel/25.10/{RELEASE}/x86_64/module",
    ],
)
def test_a_tree_whose_place_says_the_kernel(root: Root, place: str) -> None:
    folder = tree(root, place)
    result = ofed.search(Kernel(RELEASE, str(root.path))).tree
    assert result is not None
    assert (result.path, result.kernel_release, result.own) == (str(folder), RELEASE, False)
    assert result.symvers.startswith("sha256:")
    assert result.exports()["ib_register_peer_memory_client"].crc == CRCS["ib_register_peer_memory_client"]


def test_default_is_the_kernel_that_it_leads_to(root: Root) -> None:
    folder = tree(root, f"/usr/src/ofa_kernel/x86_64/{OTHER}")
    (root.path / "usr/src/ofa_kernel/default").symlink_to(f"/usr/src/ofa_kernel/x86_64/{OTHER}")
    result = search(root)
    assert result.tree is None
    assert result.why_not() == f"{folder} was made for kernel {OTHER}, not {RELEASE}"


def test_default_that_says_nothing_needs_the_installed_module(root: Root) -> None:
    tree(root, "/usr/src/ofa_kernel/default")
    assert "doesn't say which kernel it was made for" in search(root).why_not()
    core(root)
    assert search(root).tree is not None


def test_what_configure_wrote_counts_wherever_the_tree_is(root: Root) -> None:
    tree(root, "/usr/src/ofa_kernel/default", declared=RELEASE)
    assert search(root).tree is not None
    tree(root, f"/usr/src/ofa_kernel/{RELEASE}", declared=OTHER)
    result = search(root)
    assert result.tree is not None
    assert result.tree.path.endswith("/default")
    (refused,) = result.refused
    assert refused.endswith(f" was made for kernel {OTHER}, not {RELEASE}")


@pytest.mark.parametrize("name", ["mlnx-ofed-kernel", "mlnx-ofa_kernel"])
def test_the_build_folder_of_dkms(root: Root, name: str) -> None:
    tree(root, f"/var/lib/dkms/{name}/24.10/build", declared=OTHER)
    assert search(root).tree is None
    tree(root, f"/var/lib/dkms/{name}/25.01/build", declared=RELEASE)
    assert search(root).tree is not None


def test_another_build_of_the_installed_module(root: Root) -> None:
    tree(root, f"/usr/src/ofa_kernel/{RELEASE}")
    core(root, {**CRCS, "ib_register_peer_memory_client": 7})
    assert "the ib_uverbs of kernel" in search(root).why_not()
    assert "exports 0x00000007: it is of another build" in search(root).why_not()


def test_the_inbox_module_in_the_place_of_ofeds(root: Root) -> None:
    tree(root, f"/usr/src/ofa_kernel/{RELEASE}")
    core(root, {"ib_something": 1})
    assert f"the ib_uverbs of kernel {RELEASE} does not" in search(root).why_not()


def test_a_tree_without_peer_memory(root: Root) -> None:
    tree(root, f"/usr/src/ofa_kernel/{RELEASE}", {"ib_register_peer_memory_client": 1})
    assert search(root).why_not().endswith("doesn't export ib_register_peer_memory_client")


def test_a_kernel_that_exports_them_itself_comes_first(root: Root) -> None:
    tree(root, f"/usr/src/ofa_kernel/{RELEASE}")
    build = root.path / "usr/src" / f"linux-headers-{RELEASE}" / "Module.symvers"
    build.write_text(build.read_text() + "".join(f"0x00000001\t{name}\t{CORE}\tEXPORT_SYMBOL\t\n" for name in CRCS))
    result = search(root).tree
    assert result is not None
    assert result.own is True


def test_nothing_at_all_and_rubbish(root: Root) -> None:
    assert search(root).why_not() == (
        "neither the kernel nor an OFED or DOCA tree exports ib_register_peer_memory_client"
    )
    folder = tree(root, f"/usr/src/ofa_kernel/{RELEASE}")
    (folder / "Module.symvers").write_text("rubbish\n")
    assert "cannot be read" in search(root).why_not()
