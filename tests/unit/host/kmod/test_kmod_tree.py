from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.errors import TreeError
from gdsdeploy.host.kmod import files

LICENSES = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}


def make_tree(
    folder: Path, version: str = "550.163.01", flavour: str = "open", dkms: str = "nvidia", unit: str = "nv.c"
) -> Path:
    """The files by which a driver's source is known, at the places that Debian's and NVIDIA's packages have them."""
    for name, text in {
        "Kbuild": f'ccflags-y += -D__KERNEL__ -DMODULE -DNVRM\nccflags-y += -DNV_VERSION_STRING=\\"{version}\\"\n',
        "conftest.sh": "#!/bin/sh\n",
        "dkms.conf": f'PACKAGE_NAME="{dkms}"\nPACKAGE_VERSION="{version}"\n',
        "common/inc/nv.h": "#define NV\n",
        "nvidia/nv-p2p.h": "#define NVIDIA_P2P_PAGE_TABLE_VERSION 0x00010002\n",
        f"nvidia/{unit}": f'MODULE_LICENSE("{LICENSES[flavour]}");\n',
        "nvidia-peermem/nv-p2p.h": "#define NVIDIA_P2P_PAGE_TABLE_VERSION 0x00010002\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """/usr/src of a host on which much was installed over the years."""
    make_tree(tmp_path / "nvidia-current-550.163.01", flavour="proprietary", dkms="nvidia-current")
    make_tree(tmp_path / "nvidia-current-open-550.163.01", dkms="nvidia-current-open")
    make_tree(
        tmp_path / "nvidia-tesla-535-535.274.02", "535.274.02", "proprietary", "nvidia-tesla-535", "nv-frontend.c"
    )
    make_tree(tmp_path / "nvidia-srv-570.133.20", "570.133.20", "open", "nvidia-srv")
    (tmp_path / "nvidia-fs-2.19.7").mkdir()
    (tmp_path / "nvidia-fs-2.19.7" / "nvfs-core.c").write_text('MODULE_LICENSE("GPL v2");\n')
    (tmp_path / "nvidia-580.1").mkdir()
    (tmp_path / "linux-headers-6.12").mkdir()
    return tmp_path


def test_trees_are_known_by_what_is_in_them(sources: Path) -> None:
    result = [
        (Path(entry.path).name, entry.version, entry.flavour, entry.dkms_name)
        for entry in files.find_trees(str(sources))
    ]
    assert result == [
        ("nvidia-current-550.163.01", "550.163.01", "proprietary", "nvidia-current"),
        ("nvidia-current-open-550.163.01", "550.163.01", "open", "nvidia-current-open"),
        ("nvidia-srv-570.133.20", "570.133.20", "open", "nvidia-srv"),
        ("nvidia-tesla-535-535.274.02", "535.274.02", "proprietary", "nvidia-tesla-535"),
    ]


def test_its_modules_are_the_folders_that_name_their_parts(tmp_path: Path) -> None:
    """The driver's other folders, and a Kbuild file of another name, are no module."""
    for name in ("nvidia-uvm/nvidia-uvm.Kbuild", "nvidia/nvidia.Kbuild", "nvidia-drm/other.Kbuild"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (source,) = files.identify(str(make_tree(tmp_path)))
    assert source.modules() == ["nvidia", "nvidia-uvm"]


def test_the_folders_name_does_not_matter(tmp_path: Path) -> None:
    make_tree(tmp_path / "nvidia-535.1", "550.163.01")
    assert [entry.version for entry in files.find_trees(str(tmp_path))] == ["550.163.01"]


def test_an_unpacked_installer_has_both_flavours(tmp_path: Path) -> None:
    make_tree(tmp_path / "NVIDIA-Linux" / "kernel", flavour="proprietary")
    make_tree(tmp_path / "NVIDIA-Linux" / "kernel-open")
    result = files.find_trees(str(tmp_path))
    assert [entry.flavour for entry in result] == ["proprietary", "open"]
    assert files.expect(str(tmp_path / "NVIDIA-Linux"), "550.163.01", "open").path.endswith("kernel-open")
    with pytest.raises(TreeError, match=r"kernel-open is 550\.163\.01 \(open\)"):
        files.expect(str(tmp_path / "NVIDIA-Linux"), "550.163.01")


def test_one_tree_under_two_names_is_one(sources: Path) -> None:
    (sources / "nvidia-550.163.01").symlink_to("nvidia-current-open-550.163.01")
    assert len(files.find_trees(str(sources))) == 4


def test_selecting_one(sources: Path) -> None:
    chosen = files.select(files.find_trees(str(sources)), "550.163.01", "open")
    assert chosen.path.endswith("/nvidia-current-open-550.163.01")
    assert chosen.headers.endswith("/nvidia-current-open-550.163.01/nvidia")


def test_none_fits_and_all_are_listed(sources: Path) -> None:
    with pytest.raises(TreeError) as caught:
        files.select(files.find_trees(str(sources)), "580.65.06", "open")
    for name in ("nvidia-current-550.163.01", "nvidia-srv-570.133.20", "nvidia-tesla-535-535.274.02"):
        assert name in caught.value.message
    assert "there is no source tree of driver 580.65.06 (open)" in caught.value.message
    with pytest.raises(TreeError, match="none at all"):
        files.select([], "1", "open")


def test_several_fit_and_all_are_listed(sources: Path) -> None:
    make_tree(sources / "nvidia-550.163.01")
    with pytest.raises(TreeError) as caught:
        files.select(files.find_trees(str(sources)), "550.163.01", "open")
    assert "there are 2 source trees" in caught.value.message
    assert "/nvidia-550.163.01 is" in caught.value.message
    assert "/nvidia-current-open-550.163.01 is" in caught.value.message
    assert "535" not in caught.value.message


def test_a_named_tree_has_to_be_the_one_asked_for(sources: Path) -> None:
    with pytest.raises(TreeError, match=r"is not the source of driver 550\.163\.01 \(open\)"):
        files.expect(str(sources / "nvidia-current-550.163.01"), "550.163.01", "open")
    with pytest.raises(TreeError, match="is not a driver source tree"):
        files.expect(str(sources / "nvidia-fs-2.19.7"))


def test_the_digest_changes_with_what_is_compiled_and_with_nothing_else(sources: Path) -> None:
    folder = sources / "nvidia-current-open-550.163.01"
    chosen = files.expect(str(folder))
    before = files.digest(chosen)
    assert before.startswith("sha256:")
    (folder / "nvidia" / "nv-kernel.o_binary").write_bytes(b"x" * 1000)
    (folder / "nvidia" / "nv-p2p.o").write_bytes(b"x")
    (folder / "nvidia" / "nvidia.mod.c").write_bytes(b"x")
    (folder / "Module.symvers").write_text("")
    (folder / "dkms.conf").write_text("# changed by someone\n")
    assert files.digest(chosen) == before
    for name in ("nvidia/nv-p2p.h", "common/inc/nv.h", "conftest.sh", "Kbuild", "nvidia/nv.c"):
        text = (folder / name).read_text()
        (folder / name).write_text(text + "\n")
        assert files.digest(chosen) != before, name
        (folder / name).write_text(text)
    (folder / "nvidia" / "new.h").write_text("")
    assert files.digest(chosen) != before


def test_equal_headers_in_two_drivers_still_give_two_digests(sources: Path) -> None:
    """nv-p2p.h is the same, byte for byte, in Debian's 535 and 550, open and proprietary."""
    digests = {files.digest(entry) for entry in files.find_trees(str(sources))}
    assert len(digests) == 4
