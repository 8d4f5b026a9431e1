"""What a host's evidence says about a fleet file, and what it leaves open."""

from __future__ import annotations

import json

import pytest

from gdsdeploy.errors import HostUnfit
from gdsdeploy.host.paths import SECURE_BOOT
from gdsdeploy.proposal.observe import ObservedMount
from tests.unit.host.explain.capable_host import capable, with_gpu
from tests.unit.proposal.observed_hosts import bare, gpu, observed, of_system, with_files, with_packages, with_rdma

OPEN_580 = [("nvidia-dkms-580-open", "580.95.05-0ubuntu1"), ("nvidia-fabricmanager-580", "580.95.05-1")]


def test_an_ubuntu_host_with_nvidias_driver() -> None:
    host = observed("gpu1", with_packages(gpu(), OPEN_580))
    kind = host.kind
    assert (kind.os, kind.arch, kind.kernel, kind.container) == ("ubuntu-24.04", "x86_64", "generic", False)
    assert (kind.driver, kind.flavour, host.driver, host.driver_runs) == ("580", "open", "580.95.05", True)
    assert (kind.gpu, host.gpus, host.models) == ("hopper", 1, ("NVIDIA H100 80GB HBM3",))
    assert (kind.mode, kind.rdma) == ("compat", "none")
    assert host.driver_packaged is True
    assert host.companions == ("fabricmanager",)
    assert "cuda-toolkit-13-0-config-common" not in host.cuda


def test_a_fabric_manager_with_nvlsm_is_nvlink5() -> None:
    """As a profile with Blackwell GPUs has to say it: the file that init writes is loaded without an edit."""
    packages = [*OPEN_580, ("nvlsm", "2025.06.10-1"), ("nvidia-imex-580", "580.95.05-1")]
    assert observed("gpu1", with_packages(gpu(), packages)).companions == ("nvlink5", "imex")
    blackwell = json.loads(json.dumps(gpu()).replace("NVIDIA H100 80GB HBM3", "NVIDIA B200"))
    host = observed("gpu1", with_packages(blackwell, OPEN_580))
    assert (host.kind.gpu, host.companions) == ("blackwell", ("nvlink5",))


def test_a_companion_of_another_version_is_none() -> None:
    """Its package would have to move to the driver's version, which nobody asked for."""
    packages = [OPEN_580[0], ("nvidia-fabricmanager-580", "580.82.07-1"), ("nvidia-imex", "580.95.059-1")]
    assert observed("gpu1", with_packages(gpu(), packages)).companions == ()


def test_a_driver_without_a_package_is_a_run_files() -> None:
    document = gpu(driver="570.172.08", flavour="proprietary")
    host = observed("gpu1", document)
    assert (host.kind.driver, host.kind.flavour, host.driver_packaged) == ("570", "proprietary", False)
    no_list = gpu()
    no_list["commands"]["dpkg-query"]["status"] = 2
    unclear = observed("gpu1", no_list)
    assert unclear.driver_packaged is None
    assert any(note.startswith("packages: ") for note in unclear.notes)


def test_a_bare_host_has_no_driver_and_no_mode() -> None:
    host = observed("gpu1", bare())
    assert (host.kind.driver, host.kind.mode, host.kind.rdma, host.driver_runs) == ("", "", "", False)
    assert host.mode_reason == "no driver runs"
    assert host.secure_boot is False
    assert host.gpus == 0
    (mount,) = host.mounts
    assert (mount.mount, mount.filesystem, mount.direct) == ("/mnt/nvme", "ext4", False)
    assert "not loaded" in mount.reason


def test_a_driver_that_is_installed_and_does_not_run() -> None:
    document = gpu()
    del document["files"]["/proc/driver/nvidia/version"]
    document["files"]["/proc/driver/nvidia/version"] = {"error": "ENOENT"}
    path = "/lib/modules/6.11.0-26-generic/updates/dkms/nvidia.ko"
    record = {
        "name": "nvidia", "version": "580.95.05", "srcversion": "", "build_id": "", "vermagic": "6.11.0-26-generic",
        "depends": [], "provenance": {}, "imports": {}, "exports": {},
    }  # fmt: skip
    document["commands"]["modprobe:nvidia"] = {"argv": [], "status": 0, "stderr": "", "stdout": f"insmod {path}\n"}
    for license_text, flavour in (("Dual MIT/GPL", "open"), ("NVIDIA", "proprietary"), ("?", "")):
        document["modules"][path] = {**record, "license": license_text}
        host = observed("gpu1", document)
        assert (host.kind.driver, host.kind.flavour, host.driver_runs, host.kind.mode) == ("580", flavour, False, "")


def test_direct_paths_that_the_evidence_shows() -> None:
    host = observed("gpu1", of_system(with_gpu(capable()), "debian-13", "6.12.94+deb13-amd64"))
    assert host.kind.mode == "nvidia-fs"
    assert host.mounts == (ObservedMount("/mnt/nvme", "ext4", direct=True),)


def test_mounts_of_the_system_and_of_other_storage_are_left_out() -> None:
    document = of_system(with_gpu(capable()), "debian-13", "6.12.94+deb13-amd64")
    lines = document["files"]["/proc/self/mountinfo"].splitlines(keepends=True)
    nvme = next(line for line in lines if " /mnt/nvme " in line)
    points = ("/", "/boot/efi", "/var/lib/docker", "/home", "/opt/data")
    lines += [nvme.replace(" /mnt/nvme ", f" {point} ") for point in points]
    lines.append("90 27 0:50 / /tcp rw - nfs4 10.0.0.1:/x rw,proto=tcp\n")
    lines.append("91 27 0:51 / /usb rw - ext4 /dev/sdb1 rw\n")
    document["files"]["/proc/self/mountinfo"] = "".join(lines)
    mounts = {mount.mount: mount for mount in observed("gpu1", document).mounts}
    assert list(mounts) == ["/mnt/nvme", "/opt/data", "/tcp"]
    assert mounts["/tcp"].reason == "/tcp is mounted with proto=tcp"


def test_adapters_count_where_they_have_rdma() -> None:
    document = with_rdma()
    host = observed("gpu1", document)
    assert (host.nics, host.nic_driver) == (4, "mlx5_core")


def test_no_host_makes_the_file_too_large_for_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdsdeploy.proposal.observe._MOST_DEVICES", 1)
    monkeypatch.setattr("gdsdeploy.proposal.observe._MOST_MOUNTS", 2)
    document = with_rdma()
    document["files"]["/proc/self/mountinfo"] += "".join(
        f"{number} 27 0:50 / /tcp{number} rw - nfs4 10.0.0.1:/x rw,proto=tcp\n" for number in range(90, 93)
    )
    host = observed("gpu1", document)
    assert (host.gpus, host.nics) == (None, None)
    assert "GPUs: 2, more than a fleet file can count" in host.notes
    assert len(host.mounts) == 2
    assert "mounts: 3, of which 2 are shown" in host.notes


def test_secure_boot_and_a_container() -> None:
    document = gpu()
    document["listings"]["/sys/firmware/efi"] = ["efivars"]
    document["binaries"][SECURE_BOOT] = "0600000001"
    document["files"]["/run/systemd/container"] = "systemd-nspawn"
    mounts = document["files"]["/proc/self/mountinfo"]
    document["files"]["/proc/self/mountinfo"] = mounts.replace("254:0 / / rw", "0:99 / / rw")
    host = observed("gpu1", document)
    assert (host.secure_boot, host.kind.container, host.kind.kernel) == (True, True, "")


def test_a_rocky_host() -> None:
    document = with_packages(
        gpu("rocky-9.5", "5.14.0-503.40.1.el9_5.x86_64"), [("kmod-nvidia-open-dkms", "3:580.95.05-1.el9")]
    )
    host = observed("gpu1", document)
    assert (host.kind.os, host.kind.kernel, host.driver_packaged) == ("rocky-9", "kernel", True)
    assert host.kind.repositories == ("rocky", "epel", "nvidia")


def test_a_kernel_that_is_none_of_the_systems() -> None:
    host = observed("gpu1", gpu(release="6.18.44-fc-v657-gpu"))
    assert host.kind.kernel == ""
    assert "its kernel 6.18.44-fc-v657-gpu has no flavour that ubuntu-24.04 offers" in host.notes


@pytest.mark.parametrize(
    ("os_release", "machine", "words"),
    [
        ('ID=plan9\nVERSION_ID="4"\n', "x86_64", "'plan9-4' is not known"),
        ('ID="rocky"\nVERSION_ID="8.10"\n', "x86_64", "rocky-8 isn't supported: its Python is 3.6"),
        ("", "x86_64", "its operating system isn't known: /etc/os-release has no ID"),
        ('ID=debian\nVERSION_ID="13"\n', "riscv64", "the machine is 'riscv64'"),
    ],
)
def test_a_system_that_no_profile_can_name(os_release: str, machine: str, words: str) -> None:
    document = with_files(gpu(), {"/etc/os-release": os_release})
    document["host"]["uname"]["machine"] = machine
    with pytest.raises(HostUnfit) as error:
        observed("gpu1", document)
    assert error.value.message.startswith("gpu1: ")
    assert words in error.value.message
