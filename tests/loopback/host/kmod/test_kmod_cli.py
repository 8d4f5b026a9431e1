from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdsdeploy.host.__main__ import main
from tests.unit.host.kmod.kmod_root import RELEASE, VERSION, Root
from tests.unit.host.kmod.test_kmod_tree import make_tree


def kmod(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["kmod", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = Root(tmp_path / "root")
    root.nvidia()
    root.nvidia_fs()
    return root


def test_audit_of_a_right_stack(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = kmod(capsys, "audit", "--kernel", RELEASE, "--root", root.path)
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == f"nvidia: ok (/lib/modules/{RELEASE}/updates/dkms/nvidia.ko)"


def test_audit_says_what_is_wrong_and_what_to_do(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    root.nvidia_fs(imports={"nvidia_p2p_get_pages": 1})
    status, out, _ = kmod(capsys, "audit", "--kernel", RELEASE, "--root", root.path, "nvidia-fs")
    assert status == 1
    assert out.startswith("nvidia_fs: FAILED (")
    assert "  error [symbol-crc] was built against other versions" in out
    assert "    hint: rebuild it" in out


def test_audit_that_cannot_tell_everything(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    root.nvidia_fs(info=[])
    status, out, _ = kmod(capsys, "audit", "--kernel", RELEASE, "--root", root.path, "--json")
    assert status == 3
    assert [entry["ok"] for entry in json.loads(out)] == [True, None]


def test_audit_against_the_lock(root: Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", "--kernel", RELEASE, "--root", root.path]
    assert kmod(capsys, *words, "--driver-version", VERSION, "--driver-flavour", "open")[0] == 0
    assert kmod(capsys, *words, "--driver-version", "1.2")[0] == 1
    folder = make_tree(tmp_path / "nvidia-1")
    assert "[driver-tree]" in kmod(capsys, *words, "--driver-tree", folder)[1]


def test_pack_install_and_remove(root: Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--kernel", RELEASE, "--root", root.path]
    archive = tmp_path / "modules.tar"
    status, out, _ = kmod(capsys, "pack", *place, "--output", archive)
    assert (status, out) == (0, f"packed nvidia, nvidia_fs for kernel {RELEASE}\n")
    root.lists()
    status, out, _ = kmod(capsys, "install", archive, *place, "--check")
    assert status == 0
    assert out.count("would install: ") == 4
    assert out.count("note: ") == 2
    assert json.loads(kmod(capsys, "install", archive, *place, "--json")[1])["changed"]
    assert "would install" not in kmod(capsys, "install", archive, *place)[1]
    assert kmod(capsys, "remove", *place)[1].count("remove: ") == 2
    assert kmod(capsys, "remove", *place)[1] == "nothing to change\n"


def test_remove_for_a_kernel_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `gdsdeploy remove` asks on a host whose provisioning ended before it had the kernel."""
    place = ["--kernel", RELEASE, "--root", tmp_path]
    assert kmod(capsys, "remove", *place)[:2] == (0, "nothing to change\n")
    left = tmp_path / f"etc/depmod.d/gdsdeploy-{RELEASE}.conf"
    left.parent.mkdir(parents=True)
    left.write_text("override nvidia\n")
    assert json.loads(kmod(capsys, "remove", *place, "--check", "--json")[1])["changed"]
    assert left.exists()
    assert json.loads(kmod(capsys, "remove", *place, "--json")[1])["changes"] == [str(left)]
    assert not left.exists()
    assert kmod(capsys, "remove", "--kernel", "../x", "--root", tmp_path)[0] == 2


def test_trees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tree(tmp_path / "nvidia-550")
    make_tree(tmp_path / "nvidia-535", "535.1", "proprietary")
    status, out, _ = kmod(capsys, "trees", "--sources", tmp_path)
    assert (status, len(out.splitlines())) == (0, 2)
    result = json.loads(kmod(capsys, "trees", "--sources", tmp_path, "--driver-version", "550.163.01", "--json")[1])
    assert [entry["path"] for entry in result] == [str(tmp_path / "nvidia-550")]
    assert result[0]["digest"].startswith("sha256:")
    assert kmod(capsys, "trees", "--sources", tmp_path / "empty")[1] == "no driver source tree\n"


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["audit", "--kernel", "9.9"], "has no modules"),
        (["audit", "--kernel", "../x"], "is not a kernel release"),
        (["audit", "--kernel", RELEASE, "--driver-tree", "/nowhere"], "is not a driver source tree"),
        (["pack", "--kernel", "9.9", "--output", "/x"], "has no modules"),
        (["install", "/nowhere.tar", "--kernel", RELEASE], "/nowhere.tar: cannot be read"),
        (["trees", "--driver-version", "0.0"], "there is no source tree of driver 0.0 (open)"),
        (
            ["build", "--kernel", "9", "--source", "/x", "--driver-version", "1", "--output", "/x", "nvidia-fs", "no"],
            "is neither NAME=VALUE",
        ),
        (
            ["build", "nvidia-fs", "--kernel", "9.9", "--source", "/x", "--driver-version", "1", "--output", "/x"],
            "there is no source tree of driver 1 (open)",
        ),
    ],
)
def test_bad_input_is_one_line_on_stderr(
    root: Root, words: list[str], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] in ("audit", "pack", "install"):
        words = [*words, "--root", str(root.path)]
    status, out, err = kmod(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert output in err


def test_a_kernel_without_nvidias_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Root(tmp_path)
    assert "has none of NVIDIA's modules" in kmod(capsys, "audit", "--kernel", RELEASE, "--root", root.path)[2]
