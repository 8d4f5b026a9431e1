"""VM hosts: QEMU machines with a kernel, disks and a network of their own."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import LabUnavailable, ProgramFailed
from gdsdeploy.lab import emulator as emulators
from gdsdeploy.lab import files, guest, process
from gdsdeploy.lab.host import Host, Record

QEMU = emulators.QEMU
MEMORY_MIB, NVME_BYTES = 2048, 2 << 30
#: Bounds of the trials, in seconds: working virtualisation needs one or two.  A kernel says its first word at
#: once, or never.
FIRMWARE_TRIAL, FIRST_WORD, KERNEL_TRIAL = 10.0, 8.0, 25.0
#: What the trial's boot sector prints: mov dx,0x3f8; mov al,'K'; out dx,al; hlt; jmp back to hlt.
_PRINT_K = bytes.fromhex("baf803b04beef4ebfd")
#: Emulated, what newer processors have costs more than it gives, and one CPU needs no locked instructions: a boot took
#: a tenth (on a busy controller) to two fifths less processor time than with two CPUs of model "max".
ACCELERATORS = {
    "kvm": ["-accel", "kvm", "-cpu", "host", "-smp", "2"],
    "tcg": ["-accel", "tcg", "-cpu", "Nehalem", "-smp", "1"],
}


def qemu_argv(host: Host, accelerator: str, root: Path | None = None) -> list[str]:
    """The whole command line of a VM host's machine; ``root``: of :func:`gdsdeploy.lab.emulator.root`."""
    where = host.directory
    disk = f"file={_escape(where / 'disk.qcow2')},if=none,id=root,format=qcow2,cache=unsafe,discard=unmap"
    nvme = f"file={_escape(where / 'nvme.raw')},if=none,id=nvme,format=raw,cache=unsafe,discard=unmap"
    network = f"user,id=net,hostname={host.name},ipv6=off,hostfwd=tcp:127.0.0.1:{host.port}-{guest.GUEST_ADDRESS}:22"
    return [
        *emulators.command(root),
        *("-name", f"gdsdeploy-{host.name}"),
        *("-machine", "q35,sata=off,smbus=off"),
        *ACCELERATORS[accelerator],
        *("-m", str(MEMORY_MIB)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-vga", "none"),
        *("-chardev", f"file,id=console,append=on,path={_escape(host.log)}", "-serial", "chardev:console"),
        *("-drive", disk, "-device", "virtio-blk-pci,drive=root"),
        *("-drive", nvme, "-device", f"nvme,drive=nvme,serial=lab-{host.name}"),
        *("-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile="),
        *("-device", "virtio-rng-pci"),
        *("-fw_cfg", f"name=opt/gdsdeploy/seed,file={_escape(where / 'seed.tar')}"),
    ]


class VmHost(Host):
    """A QEMU machine; ``accelerator`` is "kvm" or "tcg" (decided by :func:`accelerator`).

    emulator: folder with the QEMU that runs it (of :func:`gdsdeploy.lab.emulator.root`); None for this machine's own.
    """

    programs = (QEMU, emulators.LOADER)

    def __init__(
        self, record: Record, directory: Path, ssh_config: Path, accelerator: str, emulator: Path | None = None
    ) -> None:
        super().__init__(record, directory, ssh_config)
        self._accelerator = accelerator
        self.emulator = emulator

    @property
    def runtime(self) -> str:
        return self._accelerator

    @property
    def log(self) -> Path:
        return self.directory / "console.log"

    def create(self, seed: bytes) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        seed_file = self.directory / "seed.tar"
        if not seed_file.is_file():
            self._complete(seed_file, lambda path: _write(path, seed))
        disk = self.directory / "disk.qcow2"
        if not disk.is_file():
            self._complete(disk, self._make_overlay)
        nvme = self.directory / "nvme.raw"
        if not nvme.is_file():
            self._complete(nvme, _make_nvme)

    def start(self) -> None:
        if self.running():
            return
        argv = qemu_argv(self, self._accelerator, self.emulator)
        pid = run.spawn(argv, doing=f"start {self.name}", log=self.directory / "qemu.log")
        self._record_process(pid)
        # QEMU reports a port in use or a locked disk within moments, and then ends.
        time.sleep(0.3)
        if not self.running():
            said = (self.directory / "qemu.log").read_text(errors="replace").strip().splitlines()[-3:]
            raise LabUnavailable(f"{self.name} could not be started: {' '.join(said)}", hint="`gdsdeploy lab list`")

    def _make_overlay(self, path: Path) -> None:
        make_overlay(Path(self.record.base), path)

    def _complete(self, path: Path, make: files.Make) -> None:
        """Have ``make`` write under another name, and rename when it is done."""
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        make(part)
        part.replace(path)


def make_overlay(base: Path, path: Path) -> None:
    """A disk that is as ``base`` until something is written to it; ``base`` must not change from then on."""
    argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(base), str(path)]
    run.run(argv, doing=f"make the disk {path}")


def accelerator(cache: Path, kernel: Path | None) -> str | None:
    """How to run VM hosts here: "kvm" where it works, else "tcg" (software emulation).

    /dev/kvm may open, and even make a machine, and yet hang a kernel at its first instructions; so machines are
    started: one whose boot sector prints a letter, then one with ``kernel``.  With ``kernel`` None only the first
    is tried, and None is returned when that leaves the question open.  The verdict is kept for this boot of the
    controller.  GDSDEPLOY_LAB_ACCEL decides instead where it is set.
    """
    forced = os.environ.get("GDSDEPLOY_LAB_ACCEL")
    if forced:
        if forced not in ACCELERATORS:
            raise LabUnavailable(f"GDSDEPLOY_LAB_ACCEL is {forced!r}; it can be kvm or tcg")
        return forced
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    with files.locked(cache / "accelerator.lock", what="the trial of KVM"):
        known = files.read_json(cache / "accelerator.json") or {}
        boot = process.boot_id()
        if known.get("boot") == boot:
            return str(known["accelerator"])
        if kernel is None:
            with console.step("Trying KVM"):
                if _firmware_trial():
                    return None
            verdict = "tcg"
        else:
            with console.step("Trying KVM with the hosts' kernel"):
                verdict = "kvm" if _kernel_trial(kernel) else "tcg"
        files.write_json(cache / "accelerator.json", {"boot": boot, "accelerator": verdict})
    return verdict


def _firmware_trial() -> bool:
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-kvm-") as folder:
        disk = Path(folder) / "disk"
        # The firmware boots from no disk as small as one sector.
        disk.write_bytes((_PRINT_K.ljust(510, b"\0") + b"\x55\xaa").ljust(1 << 20, b"\0"))
        options = ["-drive", f"file={_escape(disk)},format=raw"]
        return _boots(Path(folder), options, [(b"K", FIRMWARE_TRIAL)])


def _kernel_trial(kernel: Path) -> bool:
    # Without a root file system a kernel that got through its own start ends by saying so.
    options = ["-kernel", str(kernel), "-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1"]
    signs = [(b"Linux version", FIRST_WORD), (b"Kernel panic - not syncing: VFS", KERNEL_TRIAL)]
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-kvm-") as folder:
        return _boots(Path(folder), options, signs)


def _boots(folder: Path, options: list[str], signs: Sequence[tuple[bytes, float]]) -> bool:
    """Whether a machine with ``options`` prints each of ``signs`` within the seconds beside it."""
    output, log = folder / "console", folder / "log"
    output.touch()
    argv = [QEMU, "-machine", "q35", *ACCELERATORS["kvm"], "-m", "512", "-nodefaults", "-no-user-config"]
    argv += ["-display", "none", "-vga", "none", "-no-reboot", "-serial", f"file:{output}", *options]
    try:
        pid = run.spawn(argv, doing="try KVM", log=log)
    except ProgramFailed:
        return False
    machine = process.identify(pid)
    begin = time.monotonic()
    waiting = list(signs)
    try:
        while waiting and machine:
            ended = not process.alive(machine)
            sign, patience = waiting[0]
            if sign in output.read_bytes():
                waiting.pop(0)
            elif ended or time.monotonic() > begin + patience:
                return False
            else:
                time.sleep(0.1)
        return not waiting
    finally:
        if machine:
            process.stop(machine, grace=1.0)


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _make_nvme(path: Path) -> None:
    """The NVMe disk's content: one ext4 file system over the whole device."""
    with path.open("wb") as stream:
        stream.truncate(NVME_BYTES)
    argv = [run.which("mke2fs"), "-q", "-t", "ext4", "-L", guest.NVME_LABEL, "-E", "nodiscard", str(path)]
    run.run(argv, doing="make the NVMe disk's file system")


def _escape(path: Path) -> str:
    """``path`` as QEMU's comma-separated options want it."""
    return str(path).replace(",", ",,")
