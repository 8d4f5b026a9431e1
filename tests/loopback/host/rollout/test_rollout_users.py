"""Who uses the GPUs: real processes with open, mapped and deleted files; made-up tables of modules and mounts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdsdeploy.host.apply import gpu
from gdsdeploy.host.rollout import reload
from gdsdeploy.host.rollout.reload import NVIDIA, Stack

#: Opens a file, says so, and stays until its input ends.
USER = """
import sys
opened = open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""
MODULES = """\
nvidia_fs 262144 0 - Live 0x0000000000000000 (OE)
nvidia_uvm 3530752 0 - Live 0x0000000000000000 (OE)
nvidia_drm 131072 {drm} - Live 0x0000000000000000 (OE)
nvidia_modeset 1638400 1 nvidia_drm, Live 0x0000000000000000 (OE)
nvidia 14376960 {count} nvidia_fs,nvidia_uvm,{more}nvidia_modeset, Live 0x0000000000000000 (OE)
drm 774144 1 nvidia_drm, Live 0x0000000000000000
"""


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def user(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    write(tmp_path, "gpu0", "")
    argv = [sys.executable, "-c", USER, str(tmp_path / "gpu0")]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.communicate()


def test_open_files_are_found_also_when_deleted(user: subprocess.Popen[str], tmp_path: Path) -> None:
    name = str(tmp_path / "gpu0")
    users = gpu.open_files("/", [str(tmp_path / "gpu")])
    assert [(user["pid"], user["files"]) for user in users] == [(user.pid, [name])]
    assert users[0]["program"].startswith("python")
    (tmp_path / "gpu0").unlink()
    assert gpu.open_files("/", [str(tmp_path / "gpu")])[0]["files"] == [name]
    user.communicate()
    assert gpu.open_files("/", [str(tmp_path / "gpu")]) == []


def test_mapped_files_are_found_although_they_are_closed(tmp_path: Path) -> None:
    """A program is mapped while it runs, and nobody has it open."""
    mapped = tmp_path / "gpu 1"
    shutil.copy2("/bin/sleep", mapped)
    with subprocess.Popen([mapped, "60"]) as process:
        users = gpu.open_files("/", [str(tmp_path / "gpu")])
        process.kill()
    assert [(user["pid"], user["files"]) for user in users] == [(process.pid, [str(mapped)])]


def table(root: Path, drm: int = 0, count: int = 3, more: str = "") -> None:
    write(root, "proc/modules", MODULES.format(drm=drm, count=count, more=more))


def test_modules_are_listed_as_they_can_be_unloaded(tmp_path: Path) -> None:
    table(tmp_path)
    modules = gpu.modules(str(tmp_path))
    assert [row["name"] for row in modules] == ["nvidia_fs", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia"]
    assert modules[-1] == {"name": "nvidia", "references": 3, "users": ["nvidia_fs", "nvidia_uvm", "nvidia_modeset"]}


def test_nobody_uses_them(tmp_path: Path) -> None:
    table(tmp_path)
    assert reload.stack_use(NVIDIA, str(tmp_path)) == reload.Use([], [])


def test_references_of_nobody_known_and_modules_of_others_are_users(tmp_path: Path) -> None:
    table(tmp_path, drm=1, count=4, more="gdrdrv,")
    assert reload.stack_use(NVIDIA, str(tmp_path)).foreign == [
        "nvidia_drm has 1 references that belong to no module",
        "nvidia is used by gdrdrv",
    ]


def test_a_process_with_a_device_is_a_user_and_its_service_is_named(tmp_path: Path) -> None:
    table(tmp_path)
    (tmp_path / "proc/77/fd").mkdir(parents=True)
    (tmp_path / "proc/77/fd/3").symlink_to("/dev/nvidia0")
    write(tmp_path, "proc/77/comm", "python3\n")
    write(tmp_path, "proc/77/cgroup", "0::/system.slice/docker.service/payload\n")
    assert reload.stack_use(NVIDIA, str(tmp_path)).foreign == [
        "python3 (process 77, of docker.service) has /dev/nvidia0 open"
    ]


def test_a_service_of_the_stack_is_stopped_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = "nvidia-persistenced.service"
    monkeypatch.setattr(reload, "is_active", lambda name: name == unit)
    table(tmp_path, count=4)
    (tmp_path / "proc/77/fd").mkdir(parents=True)
    (tmp_path / "proc/77/fd/3").symlink_to("/dev/nvidia0")
    write(tmp_path, "proc/77/cgroup", f"0::/system.slice/{unit}\n")
    assert reload.stack_use(NVIDIA, str(tmp_path)) == reload.Use([], [unit])


def test_services_stop_before_what_they_stand_on(tmp_path: Path) -> None:
    order = NVIDIA.services
    assert order.index(reload.PEERMEM_UNIT) < order.index("nvidia-persistenced.service")
    assert order.index("nvidia-dcgm.service") < order.index("nvidia-fabricmanager.service")
    assert order[-1] == "nvidia-persistenced.service"


def test_mig_instances_are_not_thrown_away(tmp_path: Path) -> None:
    table(tmp_path)
    (tmp_path / "proc/driver/nvidia/capabilities/gpu0/mig/gi3/ci0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/capabilities/gpu1/mig").mkdir(parents=True)
    assert reload.stack_use(NVIDIA, str(tmp_path)).foreign == ["gpu0 has MIG instances, which an exchange would delete"]


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("0::/system.slice/nvidia-persistenced.service\n", "nvidia-persistenced.service"),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/run-1.service/x\n", "run-1.service"),
        ("11:devices:/system.slice/a.service\n1:name=systemd:/system.slice/a.service\n0::/\n", "a.service"),
        ("0::/user.slice/session-1.scope\n", ""),
        ("", ""),
    ],
)
def test_the_unit_of_a_process(tmp_path: Path, text: str, unit: str) -> None:
    write(tmp_path, "proc/5/cgroup", text)
    assert reload.unit_of(5, str(tmp_path)) == unit


def test_mounts_of_drivers_that_nvidia_fs_is_registered_with(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia-fs/modules", "nvme: 1\nlnet: 1\nwekafsio: 1\n")
    lines = [
        "1 0 259:1 / /mnt/nvme rw - ext4 /dev/nvme0n1 rw",
        "2 0 8:1 / / rw - ext4 /dev/sda1 rw",
        "3 0 0:50 / /lustre rw - lustre 10.0.0.1@o2ib:/scratch rw",
        "4 0 0:51 / /home rw - nfs4 server:/home rw",
        "5 0 0:52 / /fsx rw - fuse.fsx_lustre 10.0.0.2@tcp:/fsx rw",
        "damaged",
    ]
    write(tmp_path, "proc/self/mountinfo", "\n".join(lines))
    assert [(mount["module"], mount["target"]) for mount in gpu.mounts(str(tmp_path))] == [
        ("nvme", "/mnt/nvme"),
        ("lnet", "/lustre"),
        ("lnet", "/fsx"),
    ]
    (tmp_path / "proc/driver/nvidia-fs/modules").unlink()
    assert gpu.mounts(str(tmp_path)) == []


def test_other_modules_can_stand_for_the_stack(tmp_path: Path) -> None:
    table(tmp_path)
    other = Stack(("nvidia_drm", "drm"), ("/dev/dri",), ())
    assert reload.stack_use(other, str(tmp_path)).foreign == []
