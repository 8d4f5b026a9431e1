"""What a module was built against: recorded in it, logged by DKMS beside it, or not at all; and what follows."""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.kmod.driver import Expected
from gdsdeploy.host.kmod.kernel import Kernel
from tests.unit.host.kmod.kmod_root import P2P, RELEASE, VERSION, Root
from tests.unit.host.kmod.test_kmod_tree import make_tree

DKMS = f"var/lib/dkms/nvidia-fs/2.19.7/{RELEASE}/x86_64"
TREE = "/usr/src/nvidia-current-open-550.163.01"
#: As the stock Makefile says it.
PICKED = "Picking NVIDIA driver sources from NVIDIA_SRC_DIR={}. If that does not meet your expectation, you might ..."


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path)
    root.nvidia()
    return root


def findings_by_id(
    root: Root, module: str = "nvidia-fs", expected: Expected | None = None
) -> dict[str, dict[str, str]]:
    result: dict[str, Any] = audit(Kernel(root.release, str(root.path)), [module], expected)[0]
    return {entry["id"]: entry for entry in result["findings"]}


def stock(root: Root, log: str, build_id: bytes = b"1") -> None:
    """nvidia-fs as DKMS builds it by the stock recipe, with its copy and its log."""
    path = root.nvidia_fs(info=[("version", "2.28.4")], build_id=b"1")
    copy = root.nvidia_fs("../../../../copy.ko", info=[("version", "2.28.4")], build_id=build_id)
    root.etc(f"{DKMS}/log/make.log", f"DKMS make.log\n{log}\nmake: Entering directory\n")
    place = root.path / DKMS / "module" / (path.name + ".xz")
    place.parent.mkdir()
    place.write_bytes(lzma.compress(copy.read_bytes()))


def tree_in(root: Root, version: str = VERSION) -> None:
    make_tree(root.path / TREE.lstrip("/"), version)


def test_a_stock_build_by_dkms_is_known_by_its_log(root: Root) -> None:
    tree_in(root)
    stock(root, PICKED.format(TREE + "/nvidia"))
    assert not {"driver-tree", "driver-tree-unknown"} & set(findings_by_id(root))


def test_a_stock_build_that_took_a_stale_tree_is_found_by_its_log(root: Root) -> None:
    tree_in(root, "535.261.03")
    stock(root, PICKED.format(TREE + "/nvidia-peermem"))
    message = findings_by_id(root)["driver-tree"]["message"]
    assert message == f"was built against driver 535.261.03, not {VERSION} (/{DKMS}/log/make.log)"


def test_the_tree_itself_is_compared_where_it_is_named(root: Root) -> None:
    tree_in(root)
    stock(root, PICKED.format(TREE + "/nvidia"))
    assert (
        "the tree sha256:"
        in findings_by_id(root, expected=Expected(VERSION, "open", "sha256:other"))["driver-tree"]["message"]
    )


@pytest.mark.parametrize(
    ("log", "build_id"),
    [
        (PICKED.format(TREE + "/nvidia"), b"2"),
        ("nothing of the kind", b"1"),
        (PICKED.format("/usr/src/gone/nvidia"), b"1"),
        (PICKED.format("NVIDIA_DRIVER_MISSING"), b"1"),
    ],
    ids=["another build's log", "no such line", "a tree that is gone", "no tree"],
)
def test_a_log_that_does_not_tell(root: Root, log: str, build_id: bytes) -> None:
    tree_in(root)
    stock(root, log, build_id)
    assert "driver-tree-unknown" in findings_by_id(root)


def test_without_dkms_and_without_a_record(root: Root) -> None:
    root.nvidia_fs(info=[("version", "2.28.4")], build_id=b"1")
    assert "driver-tree-unknown" in findings_by_id(root)


OFED = f"usr/src/ofa_kernel/x86_64/{RELEASE}"
PEER = ("ib_register_peer_memory_client", "ib_unregister_peer_memory_client")


def ofed_tree(root: Root, crc: int = 7, folder: str = OFED) -> None:
    lines = [f"0x{crc:08x}\t{name}\tdrivers/infiniband/core/ib_uverbs\tEXPORT_SYMBOL_GPL\t\n" for name in PEER]
    root.etc(f"{folder}/Module.symvers", "".join(lines))


def peermem(root: Root, crc: int = 7) -> None:
    root.module(
        "updates/dkms/nvidia-peermem.ko",
        "nvidia_peermem",
        info=[("version", VERSION)],
        imports={**dict.fromkeys(PEER, crc), **{name: value for name, (value, _) in P2P.items()}},
    )


def test_a_stub_says_what_it_could_be_rebuilt_against(root: Root) -> None:
    root.module("updates/dkms/nvidia-peermem.ko", "nvidia_peermem", info=[("version", VERSION)])
    assert "install OFED or DOCA" in findings_by_id(root, "nvidia-peermem")["peermem-stub"]["hint"]
    ofed_tree(root, folder="usr/src/ofa_kernel/x86_64/6.1.0-50-amd64")
    (root.path / "usr/src/ofa_kernel/default").symlink_to("/usr/src/ofa_kernel/x86_64/6.1.0-50-amd64")
    hint = findings_by_id(root, "nvidia-peermem")["peermem-stub"]["hint"]
    assert f"was made for kernel 6.1.0-50-amd64, not {RELEASE}" in hint
    ofed_tree(root)
    assert findings_by_id(root, "nvidia-peermem")["peermem-stub"]["hint"].startswith("rebuild it against ")


def test_a_peermem_of_ours_says_which_ofed_and_which_tree_it_was_built_against(root: Root) -> None:
    ofed_tree(root)
    root.module("updates/dkms/ib_uverbs.ko", "ib_uverbs", exports=dict.fromkeys(PEER, (7, True)))
    symvers = (root.path / OFED / "Module.symvers").read_bytes()
    right = f"sha256:{hashlib.sha256(symvers).hexdigest()}"

    def ids_of(digest: str) -> set[str]:
        info = [("version", VERSION), ("gdsdeploy_ofed", digest), ("gdsdeploy_tree", "sha256:ab")]
        imports = {**dict.fromkeys(PEER, 7), **{name: value for name, (value, _) in P2P.items()}}
        root.module("updates/dkms/nvidia-peermem.ko", "nvidia_peermem", info=info, imports=imports)
        expected = Expected(VERSION, "open", "sha256:ab" if digest == right else "sha256:cd", peermem=True)
        return {"ofed-tree", "driver-tree"} & set(findings_by_id(root, "nvidia-peermem", expected))

    assert ids_of(right) == set()
    assert ids_of("sha256:other") == {"ofed-tree", "driver-tree"}
