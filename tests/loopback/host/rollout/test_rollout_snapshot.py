"""What a snapshot has, what a comparison finds, and that the files are those that provision writes."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import __main__ as program
from gdsdeploy.host.apply import written
from gdsdeploy.host.apply.packages import state
from gdsdeploy.host.errors import RolloutError
from gdsdeploy.host.rollout import snapshot
from tests.unit.host.kmod.kmod_root import EXPECTED, RELEASE, Root

ROOT = Path(__file__).parents[4]
STATUS = """Package: {name}
Status: {status}
Maintainer: nobody <nobody@archive.example>
Architecture: {architecture}
Multi-Arch: same
Version: {version}
Description: imitated

"""
SORTED = (
    ("hold ok installed", "libcufile0", "amd64", "1.9.1-1"),
    ("install ok installed", "nvidia-smi", "amd64", "550-1"),
)


def dpkg(root: Root, *packages: tuple[str, str, str, str]) -> None:
    """A database of dpkg's with (status, name, architecture, version)."""
    folder = root.path / "var/lib/dpkg"
    for name in ("updates", "info"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    rows = [STATUS.format(status=s, name=n, architecture=a, version=v) for s, n, a, v in packages]
    (folder / "status").write_text("".join(rows))


@pytest.fixture
def host(tmp_path: Path) -> Root:
    """A root folder with a kernel, NVIDIA's modules as DKMS leaves them, dpkg's database and files of provision's."""
    root = Root(tmp_path)
    root.nvidia()
    root.nvidia_fs()
    root.depmod()
    dpkg(root, *SORTED)
    root.etc("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
    root.etc("var/lib/gdsdeploy/installed", "libcufile0\n")
    root.etc("var/lib/gdsdeploy/held", "libcufile0\nnvidia-smi\n")
    root.etc("var/lib/gdsdeploy/removed", "decode=1 manual held\nlibcuda1=1 manual moved\n")
    root.etc("etc/cufile.json", "{}\n")
    root.etc("etc/gdsdeploy/expectation.json", EXPECTED.to_json())
    root.etc("etc/dkms/nvidia-fs.conf", "# Rendered by gdsdeploy; changes here are overwritten.\nPACKAGE_NAME=x\n")
    root.etc("etc/dkms/other.conf", "PACKAGE_NAME=other\n")
    root.etc("etc/apt/keyrings/gdsdeploy-0.gpg", "key")
    return root


def take(host: Root, *names: str) -> dict[str, Any]:
    # What crosses the wire is JSON.
    value: dict[str, Any] = json.loads(json.dumps(snapshot.take(names, str(host.path))))
    return value


def test_a_snapshot_says_what_a_rollback_has_to_bring_back(host: Root) -> None:
    document = take(host, "cuda-drivers")
    assert document["boot_id"] == "11111111-2222-3333-4444-555555555555"
    assert document["packages"] == {
        "cuda-drivers": {"version": "", "held": False},
        "libcufile0": {"version": "1.9.1-1", "held": True},
        "nvidia-smi": {"version": "550-1", "held": False},
    }
    assert document["provision"] == {
        "installed": ["libcufile0"],
        "held": ["libcufile0", "nvidia-smi"],
        "removed": ["decode"],
    }
    assert document["boot"]["problem"].endswith("grub.cfg is missing or can't be read")
    modules = document["kernels"][RELEASE]
    assert modules["chosen"] == {"nvidia": "updates/dkms/nvidia.ko", "nvidia_fs": "updates/dkms/nvidia-fs.ko"}
    content = (host.modules / "updates/dkms/nvidia.ko").read_bytes()
    assert modules["files"]["updates/dkms/nvidia.ko"] == hashlib.sha256(content).hexdigest()
    assert set(modules["files"]) == set(modules["chosen"].values()), "and no module of the kernel's own"
    files = {path for path, file in document["files"].items() if file}
    assert files == {
        "/etc/cufile.json", "/etc/gdsdeploy/expectation.json", "/etc/dkms/nvidia-fs.conf",
        "/etc/apt/keyrings/gdsdeploy-0.gpg",
    }  # fmt: skip
    assert document["files"]["/etc/cufile.json"]["sha256"] == hashlib.sha256(b"{}\n").hexdigest()
    assert "/etc/modprobe.d/gdsdeploy.conf" in document["files"], "what is not there is said as well"
    assert "/etc/dkms/other.conf" not in document["files"]


def test_a_snapshot_changes_nothing(host: Root) -> None:
    before = {path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in host.path.rglob("*")}
    take(host)
    assert {path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in host.path.rglob("*")} == before


def upgrade(host: Root) -> None:
    dpkg(host, ("install ok installed", "libcufile0", "amd64", "1.15.1-1"), SORTED[1])


def swap_module(host: Root) -> None:
    host.nvidia(info=[("version", "580.1")])


def second_module(host: Root) -> None:
    host.nvidia("kernel/drivers/video/nvidia.ko")


def write_pins(host: Root) -> None:
    host.etc("etc/apt/preferences.d/00-gdsdeploy.pref", "Package: *\n")


def chmod(host: Root) -> None:
    (host.path / "etc/cufile.json").chmod(0o600)


def drop_recipe(host: Root) -> None:
    (host.path / "etc/dkms/nvidia-fs.conf").unlink()


def new_kernel(host: Root) -> None:
    (host.path / "lib/modules/9.9.9/kernel/fs").mkdir(parents=True)


def forget_held(host: Root) -> None:
    host.etc("var/lib/gdsdeploy/held", "libcufile0\n")


def one_more_left(host: Root) -> None:
    host.etc("var/lib/gdsdeploy/removed", "decode=1 manual\nlibnvidia-gl=1 manual\n")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (upgrade, {("package", "libcufile0"), ("hold", "libcufile0")}),
        (swap_module, {("module", f"{RELEASE}/updates/dkms/nvidia.ko")}),
        (second_module, {("module", f"{RELEASE}/kernel/drivers/video/nvidia.ko")}),
        (write_pins, {("file", "/etc/apt/preferences.d/00-gdsdeploy.pref")}),
        (chmod, {("file", "/etc/cufile.json")}),
        (drop_recipe, {("file", "/etc/dkms/nvidia-fs.conf")}),
        (new_kernel, {("kernel", "9.9.9")}),
        (forget_held, {("provision", "held")}),
        (one_more_left, {("provision", "removed")}),
    ],
)
def test_a_comparison_finds(host: Root, change: Callable[[Root], None], expected: set[tuple[str, str]]) -> None:
    was = take(host)
    assert snapshot.differences(was, take(host)) == []
    change(host)
    differences = snapshot.differences(was, take(host, *was["packages"]))
    assert {(row["what"], row["name"]) for row in differences} == expected
    assert all(row["was"] != row["is"] and row["name"] in row["says"] for row in differences)


def test_the_kernel_that_boots_and_the_one_that_runs_are_compared(host: Root) -> None:
    was = take(host)
    now = copy.deepcopy(was)
    now["kernel"], now["boot"]["default"], now["boot"]["next"], now["boot_id"] = "9.9.9", "9.9.9", "8.8.8", "another"
    differences = {(row["what"], row["name"]) for row in snapshot.differences(was, now)}
    assert differences == {("boot", "default"), ("kernel", "running")}, "what passes with each boot is no difference"


@pytest.mark.parametrize("document", [[], {}, {"version": 2, "packages": {}}, {"version": 1}])
def test_what_is_no_snapshot_is_refused(document: Any) -> None:
    with pytest.raises(RolloutError, match="isn't a snapshot of version 1"):
        snapshot.differences(document, {})


def test_the_command_compares_with_a_file(host: Root, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "snapshot.json"
    assert program.main(["rollout", "snapshot", "--root", str(host.path), "--packages", "libc6,bash", "--json"]) == 0
    saved.write_text(capsys.readouterr().out)
    words = ["rollout", "compare", "--root", str(host.path), "--with", str(saved)]
    assert program.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"same": True, "differences": []}
    write_pins(host)
    assert program.main(words) == 0
    path = "/etc/apt/preferences.d/00-gdsdeploy.pref"
    assert capsys.readouterr().out.startswith(f"file {path}: was not there, is 0644 ")
    saved.write_text("{")
    assert program.main([*words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "usage"


#: Files that resources only read or that are of the package manager's own making, and folders.
NOT_WRITTEN = {
    *("/etc/os-release", "/etc/apt/sources.list", "/etc/systemd/system"),
    *("/etc/dnf/dnf.conf", "/etc/dnf/plugins/*", "/etc/dnf/plugins/versionlock.conf"),
    *(
        "/etc/apt/sources.list.d",
        "/etc/dkms",
        "/etc/dnf/modules.d",
        "/etc/gdsdeploy",
        # Of an image, which no rollout touches.
        "/etc/machine-id",
        "/etc/selinux/config",
    ),
}


def test_every_file_that_a_resource_writes_in_etc_is_looked_at() -> None:
    paths: set[str] = set()
    resources = (path for path in (ROOT / "gdsdeploy/host/apply").rglob("*.py") if path.name != "written.py")
    for path in resources:
        constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        paths |= {text for text in constants if isinstance(text, str) and re.fullmatch(r"/etc/[\w./-]+[^/]", text)}
    assert len(paths) > 15
    assert {path for path in paths if not written.is_known(path)} == NOT_WRITTEN


def test_what_a_snapshot_looks_at_is_known_and_nothing_else(host: Root) -> None:
    for path in ("etc/depmod.d/gdsdeploy-6.1.conf", "etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-0", "etc/gdsdeploy/x.json"):
        host.etc(path, "x")
    paths = written.paths(str(host.path))
    assert [path for path in paths if not written.is_known(path)] == []
    others = (
        *("/etc/shadow", "/etc/gdsdeploy", "/etc/gdsdeploy/", "/etc/gdsdeploy/../shadow", "/etc/gdsdeploy/a/b"),
        *("/etc/gdsdeploy/..", "//etc/cufile.json", "etc/cufile.json", "/etc/./cufile.json", "/etc/dkms/a/b.conf"),
        *("/etc/apt/keyrings/other.gpg", "/var/lib/gdsdeploy", "/var/lib/gdsdeploy/before.json", ""),
    )
    for path in others:
        assert not written.is_known(path), path


def test_packages_of_another_architecture_do_not_hide_the_hosts_own(host: Root) -> None:
    own = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    dpkg(
        host,
        ("install ok installed", "libcufile0", own, "2"),
        ("install ok installed", "libcufile0", "i386", "1"),
        ("deinstall ok config-files", "nvidia-smi", own, "550-1"),
    )
    packages = take(host)["packages"]
    assert (packages["libcufile0"]["version"], packages["nvidia-smi"]["version"]) == ("2", "")


def test_rpm_may_have_several_versions_of_a_kernel() -> None:
    packages = [state.Package("kernel-core", "x86_64", version, "ii ") for version in ("5.14.0-570", "5.14.0-427")]
    assert state.versions(["kernel-core", "dkms"], packages) == {
        "dkms": {"version": "", "held": False},
        "kernel-core": {"version": "5.14.0-427 5.14.0-570", "held": False},
    }


def test_what_package_manager_a_host_has(host: Root, tmp_path: Path) -> None:
    assert state.manager(str(host.path)) == "dpkg"
    other = tmp_path / "other"
    assert (state.manager(str(other)), state.read_packages(str(other))) == ("", [])
    (other / "usr/lib/sysimage/rpm").mkdir(parents=True)
    assert state.manager(str(other)) == "rpm"


def test_the_package_of_the_other_family_does_not_make_a_host_its(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/sysimage/rpm").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").touch()
    assert state.manager(str(tmp_path)) == "rpm", "EPEL has dpkg"
    (tmp_path / "var/lib/dpkg/status").write_text("Package: dpkg\n")
    assert state.manager(str(tmp_path)) == "dpkg", "Debian has rpm"
