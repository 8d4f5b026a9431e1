"""Facts of real hosts, and what single files of them mean."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.explain import path_of
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.facts.driver import driver_facts, nvidia_fs_facts
from gdsdeploy.host.facts.kernel import boot_facts, kernel_facts, os_facts
from gdsdeploy.host.facts.packages import package_facts
from gdsdeploy.host.facts.pci import addresses, pci_facts
from gdsdeploy.host.paths import SECURE_BOOT, SETUP_MODE, SHIM_STATE

EVIDENCE = Path(__file__).parents[3] / "evidence"
BARE = json.loads((EVIDENCE / "hosts" / "lab-vm-bare.json").read_text())


@pytest.fixture
def bare() -> dict[str, Any]:
    return copy.deepcopy(BARE)


def test_a_debian_kernel() -> None:
    facts = facts_from(BARE)
    assert facts.os.name == "debian-13"
    assert facts.os.machine == "x86_64"
    assert facts.kernel.release == "6.12.117+deb13-amd64"
    assert facts.kernel.option("PCI_P2PDMA") == "n"
    assert facts.kernel.option("MODVERSIONS") == "y"
    assert facts.kernel.option("NO_SUCH_OPTION") == "n"
    assert facts.kernel.secure_boot is False
    assert facts.kernel.lockdown == "none"
    assert not isinstance(facts.kernel.modules, Unknown)
    assert {"nvme", "nvme_core"} <= facts.kernel.modules
    assert "nouveau" not in facts.kernel.modules


def test_a_file_system_on_an_nvme_disk() -> None:
    facts = facts_from(BARE)
    assert not isinstance(facts.storage.mounts, Unknown)
    mount = facts.storage.mounts["/mnt/nvme"]
    assert (mount.source, mount.filesystem, mount.option("data")) == ("/dev/nvme0n1", "ext4", "ordered")
    device = mount.device
    assert device is not None
    assert not isinstance(device, Unknown)
    assert (device.name, device.kind, device.transport, device.udev_usage) == ("nvme0n1", "nvme", "pcie", "filesystem")
    assert device.integrity is False
    functions = facts.pci.functions
    assert not isinstance(functions, Unknown)
    disk = next(function for function in functions if function.address == device.pci_address)
    assert (disk.kind, disk.driver) == (0x010802, "nvme")
    assert facts.pci.gpus == ()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ID=ubuntu\nVERSION_ID="24.04"\n', "ubuntu-24.04"),
        ('ID=\'rhel\'\nVERSION_ID="9.4"\nX="unclosed\n', "rhel-9"),
        ('ID="rocky"\nVERSION_ID="9.6"\n', "rocky-9"),
        ('ID="almalinux"\nVERSION_ID="10"\n', "almalinux-10"),
        ("ID=debian\nVERSION_ID=12\n", "debian-12"),
        ("PRETTY_NAME=x\n", None),
    ],
)
def test_names_of_operating_systems(text: str, name: str | None) -> None:
    os_name = os_facts(Document({"files": {"/etc/os-release": text}})).name
    assert os_name == name if name else isinstance(os_name, Unknown)


REAL_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \nGCC version: x\n"
)


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        (REAL_OPEN, "580.159.04", "open"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Fri Jun\n", "535.261.03", "proprietary"),
    ],
)
def test_version_and_flavour_of_the_driver(text: str, version: str, flavour: str) -> None:
    facts = driver_facts(Document({"files": {"/proc/driver/nvidia/version": text}}))
    assert (facts.version, facts.flavour) == (version, flavour)


def test_a_driver_that_does_not_run_and_one_that_is_not_understood() -> None:
    facts = driver_facts(Document({"files": {"/proc/driver/nvidia/version": {"error": "ENOENT"}}}))
    assert (facts.version, facts.flavour) == (None, None)
    facts = driver_facts(Document({"files": {"/proc/driver/nvidia/version": "something else\n"}}))
    assert isinstance(facts.version, Unknown)
    assert isinstance(facts.flavour, Unknown)


def test_parameters_of_a_real_driver() -> None:
    text = (EVIDENCE / "h200" / "nvidia-proc-and-smi.txt").read_text()
    params = text[text.index("ResmanDebugLevel") : text.index("Model:")]
    facts = driver_facts(Document({"files": {"/proc/driver/nvidia/params": params}}))
    assert not isinstance(facts.params, Unknown)
    assert facts.params is not None
    assert (facts.params["RegistryDwords"], facts.params["EnableResizableBar"]) == ("", "0")


def test_devices_and_registered_stacks_of_nvidia_fs() -> None:
    files = {
        "devcount": "16\n",
        "modules": "nvme: 1\nlnet: 2\n",
        "bridges": "0000:17:00.0\n",
        "version": "version: 2.28\n",
    }
    document = {
        "files": {f"/proc/driver/nvidia-fs/{name}": text for name, text in files.items()},
        "listings": {"/dev/nvidia*": ["nvidia-fs0", "nvidia-fs10", "nvidia-fs2", "nvidia-fsx", "nvidia0", "nvidiactl"]},
    }
    facts = nvidia_fs_facts(Document(document))
    assert (facts.devices, facts.device_count) == ((0, 2, 10), 16)
    assert (facts.registered, facts.bridges) == (("nvme", "lnet"), ("0000:17:00.0",))
    assert isinstance(
        nvidia_fs_facts(Document({"files": {"/proc/driver/nvidia-fs/devcount": "many"}})).device_count, Unknown
    )


def modules_document(**files: Any) -> dict[str, Any]:
    return {"files": {"/proc/modules": "nvidia_fs 1 2 - Live 0x0\n", **files}}


def test_loaded_is_known_from_either_side() -> None:
    version = "/sys/module/nvidia_fs/version"
    for document, loaded in (
        (modules_document(), True),
        ({"files": {"/proc/modules": "nvme 1 2\n", version: {"error": "ENOENT"}}}, False),
        ({"files": {"/proc/modules": "nvme 1 2\n", version: "2.28.4\n"}}, True),
        ({"files": {"/proc/modules": {"error": "ENOENT"}, version: {"error": "ENOENT"}}}, False),
    ):
        assert nvidia_fs_facts(Document(document)).module.loaded is loaded
    for document in ({"files": {"/proc/modules": "nvme 1 2\n"}}, {"files": {version: {"error": "ENOENT"}}}, {}):
        assert isinstance(nvidia_fs_facts(Document(document)).module.loaded, Unknown)


def test_debian_calls_the_driver_by_another_name() -> None:
    facts = facts_from(BARE)
    assert facts.driver.module.file is None
    assert BARE["commands"]["modprobe:nvidia"]["stdout"].startswith("install modprobe -i nvidia-current-open")


def autoloaded(**fragments: str) -> object:
    folders = ("/etc", "/run", "/usr/local/lib", "/usr/lib")
    listings: dict[str, list[str]] = {f"{folder}/modules-load.d": [] for folder in folders}
    files = {}
    for name, text in fragments.items():
        folder, _, base = name.partition("__")
        path = {"etc": "/etc", "lib": "/usr/lib"}[folder] + "/modules-load.d"
        listings[path].append(base + ".conf")
        files[f"{path}/{base}.conf"] = text
    return boot_facts(Document({"listings": listings, "files": files})).autoloaded


def test_modules_are_loaded_in_the_order_of_the_fragments_names() -> None:
    assert autoloaded(lib__z="nvidia-fs\n", etc__a="# x\n;y\n\nnvidia\n") == ("nvidia", "nvidia_fs")
    assert autoloaded(lib__a="nouveau\n", etc__a="nvidia\n") == ("nvidia",), "a name in /etc hides the same in /usr/lib"


def test_a_fragment_that_was_not_read_leaves_the_order_unknown(bare: dict[str, Any]) -> None:
    assert not isinstance(boot_facts(Document(bare)).autoloaded, Unknown)
    del bare["files"]["/etc/modules-load.d/gdsdeploy.conf"]
    assert isinstance(boot_facts(Document(bare)).autoloaded, Unknown)


def test_modules_are_forbidden_in_fragments_and_on_the_command_line(bare: dict[str, Any]) -> None:
    forbidden = boot_facts(Document(bare)).forbidden
    assert not isinstance(forbidden, Unknown)
    assert "nouveau" in forbidden
    bare["files"]["/etc/modprobe.d/gdsdeploy.conf"] = (
        "install nvidia-fs /bin/true\n# blacklist x\ninstall y modprobe z\n"
    )
    bare["files"]["/proc/cmdline"] = "root=/dev/vda1 modprobe.blacklist=nouveau,nvidia-drm\n"
    forbidden = boot_facts(Document(bare)).forbidden
    assert not isinstance(forbidden, Unknown)
    assert set(forbidden) & {"nvidia_fs", "nouveau", "nvidia_drm", "x", "y"} == {"nvidia_fs", "nouveau", "nvidia_drm"}
    del bare["files"]["/proc/cmdline"]
    assert isinstance(boot_facts(Document(bare)).forbidden, Unknown)


OTHER = "6.12.94+deb13-amd64"


def grub(document: dict[str, Any], environment: str = "", default: str = "") -> object:
    lines = document["excerpts"]["/boot/grub/grub.cfg"]["lines"]
    release = BARE["host"]["uname"]["release"]
    menu = next(line for line in lines if "with Linux" in line).replace(release, OTHER)
    place = next(number for number, line in enumerate(lines) if "with Linux" in line)
    document["excerpts"]["/boot/grub/grub.cfg"]["lines"] = [
        *[line.replace("${saved_entry}", default or "${saved_entry}") for line in lines[:place]],
        menu,
        f"\t\tlinux\t/boot/vmlinuz-{OTHER} root=x",
        "\t}",
        *lines[place:],
    ]
    document["files"]["/boot/grub/grubenv"] = f"# GRUB Environment Block\n{environment}\n####"
    return boot_facts(Document(document)).default_kernel


def test_the_kernel_of_the_next_boot(bare: dict[str, Any]) -> None:
    uuid = "b1c7f0a4-6d53-4a0e-9b52-0f6a6d1c0001"
    release = BARE["host"]["uname"]["release"]
    for environment, default, kernel in (
        ("", "", release),
        (f"saved_entry=gnulinux-advanced-{uuid}>gnulinux-{OTHER}-advanced-{uuid}", "", OTHER),
        ("saved_entry=1>0", "", OTHER),
        ("saved_entry=0\nnext_entry=1>0", "", OTHER),
        (f"saved_entry=Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux {OTHER}", "", OTHER),
        ("saved_entry=0", "1>0", OTHER),
        ("saved_entry=1", "", OTHER),
    ):
        assert grub(copy.deepcopy(bare), environment, default) == kernel, (environment, default)


def test_a_default_that_cannot_be_followed_is_unknown(bare: dict[str, Any]) -> None:
    assert isinstance(grub(copy.deepcopy(bare), "saved_entry=gone"), Unknown)
    assert isinstance(grub(copy.deepcopy(bare), "", "${other}"), Unknown)
    bare["excerpts"]["/boot/grub/grub.cfg"] = {"error": "EACCES"}
    assert isinstance(boot_facts(Document(bare)).default_kernel, Unknown)
    bare["excerpts"] |= {f"/boot/{name}/grub.cfg": {"error": "ENOENT"} for name in ("grub", "grub2")}
    assert boot_facts(Document(bare)).default_kernel is None


@pytest.mark.parametrize(
    ("environment", "default", "kernel"),
    [
        ("saved_entry=m-5.14.0-427.el9.x86_64", "${saved_entry}", "5.14.0-427.el9.x86_64"),
        ("saved_entry=gone", "${saved_entry}", "5.14.0-570.el9.x86_64"),
        ("saved_entry=m-5.14.0-570.el9.x86_64", "1", "5.14.0-427.el9.x86_64"),
        ("next_entry=m-5.14.0-427.el9.x86_64", "${saved_entry}", "5.14.0-427.el9.x86_64"),
    ],
)
def test_the_kernel_of_the_next_boot_by_entries_of_its_own(
    bare: dict[str, Any], environment: str, default: str, kernel: str
) -> None:
    folder, excerpts = "/boot/loader/entries", bare["excerpts"]
    excerpts["/boot/grub/grub.cfg"] = {"error": "ENOENT"}
    head = ['   set default="${next_entry}"', f'   set default="{default}"']
    excerpts["/boot/grub2/grub.cfg"] = {"pattern": "", "lines": [*head, "menuentry 'UEFI Firmware Settings' {", "}"]}
    bare["files"]["/boot/grub2/grubenv"] = f"# GRUB Environment Block\n{environment}\n####"
    releases = ("5.14.0-427.el9.x86_64", "5.14.0-570.el9.x86_64", "0-rescue-m")
    bare["listings"][folder] = [f"m-{release}.conf" for release in releases]
    for release in releases:
        lines = [f"title Linux ({release})", f"version {release}", f"linux /vmlinuz-{release}"]
        excerpts[f"{folder}/m-{release}.conf"] = {"pattern": "", "lines": lines}
    assert boot_facts(Document(bare)).default_kernel == kernel
    excerpts[f"{folder}/m-{releases[0]}.conf"] = {"error": "EACCES"}
    assert isinstance(boot_facts(Document(bare)).default_kernel, Unknown)


def test_packages_of_every_status() -> None:
    text = "a\t1\tamd64\tii \na\t1\ti386\tii \nb\t2:1-1\tall\tiF \nc\t3\tamd64\trc \nodd line\n"
    run = {"argv": [], "status": 0, "stdout": text, "stderr": "", "seconds": 0}
    installed = package_facts(Document({"commands": {"dpkg-query": run}})).installed
    assert not isinstance(installed, Unknown)
    assert [(package.architecture, package.status) for package in installed["a"]] == [("amd64", "ii"), ("i386", "ii")]
    assert installed["b"][0].status == "iF"
    assert isinstance(package_facts(Document({"commands": {"dpkg-query": {**run, "status": 2}}})).installed, Unknown)
    assert not isinstance(package_facts(Document({"commands": {"rpm": run}})).installed, Unknown)


def test_a_gpu_and_its_bars() -> None:
    folder = "/sys/bus/pci/devices/0000:00:06.0"
    bars = [("c0000000", "c0ffffff"), ("4000000000", "7fffffffff"), ("0", "0")]
    files = {
        "vendor": "0x10de\n",
        "device": "0x2335\n",
        "class": "0x030200\n",
        "numa_node": "-1\n",
        "resource": "".join(f"0x{begin:>016} 0x{end:>016} 0x0000000000040200\n" for begin, end in bars),
    }
    document: dict[str, Any] = {
        "listings": {"/sys/bus/pci/devices": ["0000:00:06.0"]},
        "files": {f"{folder}/{key}": value for key, value in files.items()},
        "links": {
            folder: "../../../devices/pci0000:00/0000:00:01.0/0000:00:06.0",
            f"{folder}/driver": "../../../../bus/pci/drivers/nvidia",
            f"{folder}/iommu_group": {"error": "ENOENT"},
        },
    }
    gpus = pci_facts(Document(document)).gpus
    assert not isinstance(gpus, Unknown)
    assert gpus[0].bars == {0: 1 << 24, 1: 1 << 38}
    assert (gpus[0].driver, gpus[0].iommu, gpus[0].bridges) == ("nvidia", False, ("0000:00:01.0",))
    del document["files"][f"{folder}/class"]
    assert isinstance(pci_facts(Document(document)).gpus, Unknown), "one function less may be one GPU less"


def test_addresses_in_a_path() -> None:
    assert addresses("/sys/devices/pci0000:00/0000:00:1c.0/10000:e1:00.0/nvme/nvme0") == (
        "0000:00:1c.0",
        "10000:e1:00.0",
    )


def test_secure_boot_as_the_firmware_has_it() -> None:
    place = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    efi = {"/sys/firmware/efi": ["efivars"]}
    for value, secure in (("0600000001", True), ("0600000000", False), ({"error": "ENOENT"}, False)):
        assert kernel_facts(Document({"listings": efi, "binaries": {place: value}})).secure_boot is secure
    assert isinstance(kernel_facts(Document({"listings": efi})).secure_boot, Unknown)


@pytest.mark.parametrize(
    ("secure_boot", "setup_mode", "shim", "state"),
    [
        ("01", "00", None, "on"), ("00", "00", None, "off"), ("00", "01", None, "setup-mode"),
        ("01", "00", "01", "shim-off"), ("01", "00", "00", "on"),
    ],
)  # fmt: skip
def test_why_secure_boot_does_not_count(secure_boot: str, setup_mode: str, shim: str | None, state: str) -> None:
    binaries: dict[str, Any] = {SECURE_BOOT: f"06000000{secure_boot}", SETUP_MODE: f"06000000{setup_mode}"}
    binaries[SHIM_STATE] = {"error": "ENOENT"} if shim is None else f"06000000{shim}"
    document = Document({"listings": {"/sys/firmware/efi": ["efivars"]}, "binaries": binaries})
    assert kernel_facts(document).secure_boot_state == state
    assert kernel_facts(document).secure_boot is (state == "on")


@pytest.mark.parametrize(
    ("name", "library"), [("h100-libcufile-1.15.1", "1.15.1.6"), ("h100-libcufile-1.20.0", "1.20.0.107")]
)
def test_a_real_gpu(name: str, library: str) -> None:
    facts = facts_from(json.loads((EVIDENCE / "hosts" / f"{name}.json").read_text()))
    assert (facts.driver.version, facts.driver.flavour, facts.driver.gpus) == ("580.159.04", "open", ("0000:00:06.0",))
    assert facts.driver.module.loaded is True
    assert isinstance(facts.driver.module.file, Unknown), "modprobe is not installed there"
    gpus = facts.pci.gpus
    assert not isinstance(gpus, Unknown)
    assert [(gpu.address, gpu.driver, gpu.iommu) for gpu in gpus] == [("0000:00:06.0", "nvidia", False)]
    assert max(gpus[0].bars.values()) == 128 << 30, "BAR1 holds the whole memory"
    assert facts.nvidia_fs.module.loaded is False
    assert facts.cufile.acceptance == "accepted"
    opened, logged = facts.cufile.opened, facts.gdscheck.logged
    assert not isinstance(opened, Unknown)
    assert (opened.error, opened.hung) == (0, False)
    assert not isinstance(logged, Unknown)
    assert logged is not None
    assert (logged.release, logged.verdict, len(logged.gpus)) == (library, "compat", 1)
    assert facts.kernel.option("PCI_P2PDMA") == "n"
    assert facts.gdscheck.installed is False


def test_a_real_gpu_without_a_udev_database() -> None:
    facts = facts_from(json.loads((EVIDENCE / "hosts" / "h100-libcufile-1.20.0.json").read_text()))
    assert not isinstance(facts.storage.mounts, Unknown)
    path = path_of(facts, facts.storage.mounts["/"])
    assert (path.path, path.gpu) == ("broken", True)
    assert "5027" in path.causes[0].what
