"""The lab's hosts are what they say they are."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gdslab as labs
from gdslab import Lab, LabHost, lifecycle, nspawn, qemu, standin, state
from gdslab.errors import LabUnavailable
from tests.naming import unique

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]


def out(host: LabHost, script: str, ok: tuple[int, ...] = (0,)) -> str:
    return host.ssh(["sh", "-c", script], ok=ok).stdout.strip()


def boot_id(host: LabHost) -> str:
    return out(host, "cat /proc/sys/kernel/random/boot_id")


def test_vm_is_a_host_of_its_own(vm: LabHost, light: LabHost) -> None:
    for host in (vm, light):
        assert out(host, "hostname") == host.name
        assert out(host, "id -un; sudo id -un").split() == ["admin", "root"]
    assert out(vm, "cat /etc/machine-id") != out(light, "cat /etc/machine-id")
    assert len(out(vm, "cat /etc/machine-id")) == 32
    keys = [out(host, "cut -d' ' -f2 /etc/ssh/ssh_host_ed25519_key.pub") for host in (vm, light)]
    assert keys[0] != keys[1]
    assert out(vm, "ls /etc/ssh/ssh_host_*_key").splitlines() == ["/etc/ssh/ssh_host_ed25519_key"]


def test_kernel_that_the_archive_lacks_is_one_error(lab: Lab) -> None:
    with pytest.raises(LabUnavailable) as caught:
        standin.build(lab.release, standin.Kernel("6.12.0+deb13-amd64", "6.12.0-0"))
    assert "linux-headers-6.12.0+deb13-amd64" in caught.value.message
    assert not list(state.cache_directory().glob("standin-6.12.0+deb13-amd64*"))


def test_second_up_changes_nothing(lab: Lab, vm: LabHost, light: LabHost) -> None:
    before = [(host.name, host.process(), boot_id(host)) for host in lab.hosts()]
    files_before = {path: path.read_bytes() for path in lab.directory.glob("*") if path.is_file()}
    begin = time.monotonic()
    again = labs.up(lab.name, vms=1, lights=1)
    assert time.monotonic() - begin < 5
    assert [(host.name, host.process(), boot_id(host)) for host in again.hosts()] == before
    assert {path: path.read_bytes() for path in lab.directory.glob("*") if path.is_file()} == files_before


def test_the_trial_of_kvm_recognises_a_machine_that_works(
    lab: Lab, vm: LabHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With emulation in KVM's place: it surely works, though slowly."""
    monkeypatch.setitem(qemu.ACCELERATORS, "kvm", qemu.ACCELERATORS["tcg"])
    monkeypatch.setattr(qemu, "FIRST_WORD", 60.0)
    monkeypatch.setattr(qemu, "KERNEL_TRIAL", 120.0)
    kernel = Path(vm.record.base).with_name("vmlinuz")
    assert qemu._kernel_trial(kernel)
    monkeypatch.setattr(qemu, "FIRST_WORD", 0.5)
    assert not qemu._kernel_trial(kernel), "a kernel that gets nowhere in time is no success"


def traces(lab: Lab) -> dict[str, list[str]]:
    """All that a lab has on this machine, outside its cache."""
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    where = str(lab.directory)
    return {
        "processes": [line for line in listed.splitlines() if where in line],
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if where in line],
        "control groups": [
            str(path)
            for root in ("", "unified")
            for path in Path("/sys/fs/cgroup", root).glob(f"gdsdeploy-{lab.name}-*")
        ],
        "files": [str(path) for path in (lab.directory, lab.directory.with_name(f".{lab.name}.lock")) if path.exists()],
    }


@pytest.mark.parametrize("runtime", ["systemd-nspawn", "namespace"])
def test_down_leaves_nothing(lab: Lab, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_LAB_LIGHT", runtime)
    second = labs.up(unique(f"test-{runtime[:4]}"), vms=0, lights=1)
    (host,) = second.hosts()
    assert host.runtime == runtime
    assert out(host, "cat /proc/1/comm") == ("systemd" if runtime == "systemd-nspawn" else "sshd")
    assert out(host, "sudo apt-get update >/dev/null && hostname") == "build1"
    assert out(host, "command -v cc gcc make dkms", ok=(0, 1, 127)) == "", "a bare host has no compiler"
    assert host.port not in [other.port for other in lab.hosts()]
    assert len(traces(second)["processes"]) >= 1
    if runtime == "systemd-nspawn" and not nspawn.SYSTEMD_BOOTED.is_dir():
        assert [Path(group).name for group in traces(second)["control groups"]] == [
            f"gdsdeploy-{second.name}-{host.name}"
        ]
    assert traces(second)["mounts"] == [], "mounts are the host's own, never the controller's"
    labs.down(second)
    assert traces(second) == {"processes": [], "mounts": [], "control groups": [], "files": []}
    assert all(other.running() for other in lab.hosts())


def test_host_that_was_started_but_not_recorded_is_found(lab: Lab) -> None:
    second = labs.up(unique("test-lost"), vms=0, lights=1)
    (host,) = second.hosts()
    (host.directory / "process.json").unlink()
    assert host.running()
    labs.down(second)
    assert traces(second) == {"processes": [], "mounts": [], "control groups": [], "files": []}


def test_stopped_host_is_started_again_with_all_it_had(lab: Lab, light: LabHost) -> None:
    out(light, "echo kept > kept; sudo touch /etc/kept")
    light.stop()
    assert not light.running()
    lifecycle.up(lab.name, vms=1, lights=1)
    assert out(light, "cat kept; ls /etc/kept").split() == ["kept", "/etc/kept"]


def test_interrupted_base_is_discarded_with_all_that_made_it(lab: Lab, tmp_path: Path) -> None:
    """Kill the making of a base system in the middle, by Ctrl-C to its process group, as a terminal does."""
    program = (
        "import sys; from pathlib import Path; from gdslab import archive, guest, images, recipe\n"
        "made = recipe.debian(guest.release('trixie'), archive.controller_archive(), 'light')\n"
        "images.base(Path(sys.argv[1]), made)\n"
    )
    cache = tmp_path / "cache"
    making = subprocess.Popen(
        [sys.executable, "-c", program, str(cache)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list(cache.glob("*.tmp-*/root/etc")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert list(cache.glob("*.tmp-*/root/etc")), "the base was never begun"
    os.killpg(making.pid, 2)
    assert making.wait(60) != 0
    assert list(cache.iterdir()) == []
    listed = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(cache) not in listed
    assert str(cache) not in Path("/proc/self/mounts").read_text()


def test_two_runs_of_the_tests_at_once_do_not_disturb_each_other() -> None:
    """Both start a light host, serve and lock repositories, and use /var/tmp and locks in /run."""
    modules = ["tests/lab/test_rollout_host_light.py", "tests/pins/test_apt_lists.py"]
    argv = [sys.executable, "-m", "tests.contained", sys.executable, "-m", "pytest", "-q", *modules]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    runs = [
        subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    for output, run in [(run.communicate(timeout=1200)[0], run) for run in runs]:
        assert run.returncode == 0, output
