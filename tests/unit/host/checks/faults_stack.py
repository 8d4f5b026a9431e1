"""Faults of the driver's other halves and of the host's health."""

from __future__ import annotations

from tests.unit.host.checks.changes import EXPECTATION, Change, Document, as_journal, file

LIBCUDA = "/lib/x86_64-linux-gnu/libcuda.so.1"
FIRMWARE = "/lib/firmware/nvidia/[0-9]*"
XIDS = {
    79: "[ 90.1] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=train, GPU has fallen off the bus.",
    48: "[ 90.2] NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', DBE (double bit error)",
    31: "[ 90.3] NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=python, Ch 00000008, MMU Fault",
}
INSTALLED = f"nvidia-current-open/550.163.01, {EXPECTATION.kernel_release}, x86_64: installed"


def kernel_log(line: str) -> Change:
    """The kernel said this too."""

    def change(document: Document) -> None:
        document["commands"]["dmesg"]["stdout"] += line + "\n"
        document["commands"]["journal"]["stdout"] += as_journal(line + "\n")

    return change


def options(text: str) -> Change:
    """One more file in modprobe.d."""

    def change(document: Document) -> None:
        file("/etc/modprobe.d/site.conf", text)(document)
        document["listings"]["/etc/modprobe.d"] = sorted([*document["listings"]["/etc/modprobe.d"], "site.conf"])

    return change


def dkms(*lines: str) -> Change:
    """DKMS is installed, and its status says this."""

    def change(document: Document) -> None:
        run = {"argv": ["dkms", "status"], "status": 0, "stdout": "\n".join(lines) + "\n", "stderr": "", "seconds": 0.1}
        document["commands"]["dkms"] = run
        document["commands"]["dpkg-query"]["stdout"] += "dkms\t3.2.2-1\tall\tii \n"

    return change


def other_firmware(document: Document) -> None:
    document["listings"][FIRMWARE] = ["535.261.03"]
    document["listings"]["/lib/firmware/nvidia/535.261.03/gsp*.bin*"] = ["gsp_tu10x.bin"]


def no_libraries(document: Document) -> None:
    document["commands"]["ldconfig"]["stdout"] = ""


def other_libcuda(document: Document) -> None:
    document["links"][LIBCUDA] = "/opt/cuda/compat/libcuda.so.560.35.03"


def contained(*, devices: list[str], udev: bool = True) -> Change:
    """The same from inside a container of Kubernetes."""

    def change(document: Document) -> None:
        document["environment"]["KUBERNETES_SERVICE_HOST"] = "10.96.0.1"
        document["listings"]["/dev/nvidia*"] = devices
        if not udev:
            document["listings"]["/run/udev"] = {"error": "ENOENT"}

    return change


NODES = ["nvidia-uvm", "nvidia0", "nvidiactl"]
FAULTS: dict[str, tuple[Change, set[str]]] = {
    "libcuda of another driver": (other_libcuda, {"driver.userland"}),
    "no libcuda": (no_libraries, {"driver.userland"}),
    "firmware of another driver": (other_firmware, {"driver.firmware"}),
    "an option that is not in effect": (
        options("options nvidia NVreg_EnableStreamMemOPs=1\n"),
        {"driver.parameters"},
    ),
    "a misspelt option": (options("options nvidia NVreg_EnableStreamMemOps=1\n"), {"driver.parameters"}),
    "the kernel had an oops": (file("/proc/sys/kernel/tainted", "12416\n"), {"kernel.taints"}),
    "a module loaded by force": (file("/proc/sys/kernel/tainted", "2\n"), {"kernel.taints"}),
    "a GPU fell off the bus": (kernel_log(XIDS[79]), {"driver.errors"}),
    "a GPU has memory errors": (kernel_log(XIDS[48] + "\n" + XIDS[31]), {"driver.errors"}),
    "half of a driver was upgraded": (
        kernel_log("[ 9.1] NVRM: API mismatch: the client has the version 560.35.03"),
        {"driver.errors"},
    ),
    "DKMS did not build nvidia-fs": (dkms(INSTALLED, "nvidia-fs/2.19.7: added"), {"packages.dkms"}),
    "another module in place of DKMS's": (
        dkms(INSTALLED + " (WARNING! Diff between built and installed module!)"),
        {"packages.dkms"},
    ),
    "a container without nvidia-fs": (contained(devices=NODES), {"container.view", "nvidia-fs.devices"}),
    "a container without /run/udev": (
        contained(devices=[*NODES, *(f"nvidia-fs{number}" for number in range(16))], udev=False),
        {"container.view"},
    ),
}
