"""VM hosts: QEMU machines with their own kernel, disks and network."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import ProgramFailed
from gdsdeploy.files import folders
from gdslab import emulator as emulators, guest, keyboard, process, records
from gdslab.efi import Uefi, escape as _escape
from gdslab.errors import LabUnavailable
from gdslab.host import HostRecord, LabHost

QEMU = emulators.QEMU
MEMORY_MIB, NVME_BYTES = 2048, 2 << 30
#: Limits of the trial in seconds; working virtualisation needs one or two.  A kernel prints at once, or never.
FIRST_WORD, KERNEL_TRIAL = 8.0, 25.0
#: Under emulation, one old CPU is fastest: a boot took a tenth (on a busy controller) to two fifths less processor time
#: than with two CPUs of model "max".
ACCELERATORS = {
    "kvm": ["-accel", "kvm", "-cpu", "host", "-smp", "2"],
    "tcg": ["-accel", "tcg", "-cpu", "Nehalem", "-smp", "1"],
}
#: GRUB has a driver for AHCI, so it reads the disk there without the BIOS, in half the processor time; hosts have no
#: such driver, and see the disk once.
_GRUBS_DISK = ("-device", "ide-hd,bus=ide.0,drive=root,share-rw=on")
#: What cache=unsafe means to -drive.
_UNSAFE = "cache.direct=off,cache.no-flush=on"
#: Large pages for what glibc's malloc returns: the emulator looks up jumps in tables of a hundred MB.  On one machine,
#: a boot took 8 to 14 percent less processor time.
MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1:glibc.malloc.top_pad=67108864"}


def qemu_argv(host: LabHost, accelerator: str, root: Path | None = None, uefi: Uefi | None = None) -> list[str]:
    """The command line of a VM host's machine; ``root``: from :func:`gdslab.emulator.root`.

    uefi: of a host that boots by UEFI; only there a menu has to be answered, so only they have a monitor.
    """
    folder = host.directory
    disk = f"driver=qcow2,node-name=root,discard=unmap,{_UNSAFE},file.driver=file"
    disk += f",file.filename={_escape(folder / 'disk.qcow2')}"
    nvme = f"file={_escape(folder / 'nvme.raw')},if=none,id=nvme,format=raw,cache=unsafe,discard=unmap"
    network = f"user,id=net,hostname={host.name},ipv6=off,hostfwd=tcp:127.0.0.1:{host.port}-{guest.GUEST_ADDRESS}:22"
    return [
        *emulators.command(root),
        *("-name", f"gdsdeploy-{host.name}"),
        *("-machine", f"q35,sata=off,smbus=off{uefi.machine}" if uefi else "q35,smbus=off"),
        *ACCELERATORS[accelerator],
        *("-m", str(MEMORY_MIB)),
        *("-nodefaults", "-no-user-config", "-display", "none", "-vga", "none"),
        *("-chardev", f"file,id=console,append=on,path={_escape(host.log)}", "-serial", "chardev:console"),
        *(("-qmp", f"unix:{keyboard.SOCKET},server=on,wait=off") if uefi else ()),
        *("-blockdev", disk, "-device", "virtio-blk-pci,drive=root,share-rw=on"),
        *(uefi.argv(folder) if uefi else _GRUBS_DISK),
        *("-drive", nvme, "-device", f"nvme,drive=nvme,serial=lab-{host.name}"),
        *("-netdev", network, "-device", "virtio-net-pci,netdev=net,romfile="),
        *("-device", "virtio-rng-pci"),
        *("-fw_cfg", f"name=opt/gdsdeploy/seed,file={_escape(folder / 'seed.tar')}"),
    ]


class VmHost(LabHost):
    """A QEMU machine; accelerator: "kvm" or "tcg".  emulator: from :func:`gdslab.emulator.root`.

    uefi: None for a BIOS.
    """

    programs = (QEMU, emulators.LOADER)

    def __init__(
        self,
        record: HostRecord,
        directory: Path,
        ssh_config: Path,
        accelerator: str,
        emulator: Path | None = None,
        uefi: Uefi | None = None,
    ) -> None:
        super().__init__(record, directory, ssh_config)
        self._accelerator = accelerator
        self.emulator = emulator
        self.uefi = uefi

    @property
    def runtime(self) -> str:
        return self._accelerator

    def create(self, seed: bytes) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        makers: dict[str, folders.Make] = {
            "seed.tar": lambda path: path.write_bytes(seed),
            "disk.qcow2": self._make_overlay,
            "nvme.raw": _make_nvme,
        }
        if self.uefi is not None:
            makers |= {"esp.raw": self.uefi.make_disk, "VARS.fd": self.uefi.make_variables}
        for name, make in makers.items():
            if not (self.directory / name).is_file():
                part = self.directory / f".{name}.part"
                part.unlink(missing_ok=True)
                make(part)
                part.replace(self.directory / name)

    def start(self) -> None:
        if self.running():
            return
        argv = qemu_argv(self, self._accelerator, self.emulator, self.uefi)
        if self.uefi is not None and self.uefi.tpm:
            self.uefi.start_tpm(self.directory)
        log = self.directory / "qemu.log"
        pid = run.spawn(argv, doing=f"start {self.name}", log=log, cwd=self.directory, env=MALLOC)
        self._record_process(pid)
        # If a port is in use or a disk locked, QEMU prints that and ends at once.
        time.sleep(0.3)
        if not self.running():
            lines = (self.directory / "qemu.log").read_text(errors="replace").strip().splitlines()[-3:]
            raise LabUnavailable(
                f"{self.name} could not be started: {' '.join(lines)}", hint="See the lab's hosts: gdsdeploy lab list"
            )

    def _make_overlay(self, path: Path) -> None:
        """A disk over the base's, which must not change from then on."""
        argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", self.record.base, str(path)]
        run.run(argv, doing=f"make the disk {path}")


def accelerator(cache: Path, kernel: Path) -> str:
    """How to run VM hosts here: "kvm" where it works, else "tcg" (software emulation).

    /dev/kvm may open and still hang a kernel, so ``kernel`` is tried.  The verdict holds until the controller reboots.
    GDSDEPLOY_LAB_ACCEL overrides it.
    """
    forced = os.environ.get("GDSDEPLOY_LAB_ACCEL")
    if forced:
        if forced not in ACCELERATORS:
            raise LabUnavailable(f"GDSDEPLOY_LAB_ACCEL is {forced!r}; use kvm or tcg")
        return forced
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    with folders.hold_lock(cache / "accelerator.lock", what="the trial of KVM"):
        earlier = records.read_json(cache / "accelerator.json") or {}
        boot = process.boot_id()
        if earlier.get("boot") == boot:
            return str(earlier["accelerator"])
        with console.step("Trying KVM") as step:
            verdict = "kvm" if _kernel_trial(kernel) else "tcg"
            step.failure = "" if verdict == "kvm" else "it doesn't work here"
        records.write_json(cache / "accelerator.json", {"boot": boot, "accelerator": verdict})
    return verdict


def _kernel_trial(kernel: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-kvm-") as folder:
        return _panics(Path(folder), kernel)


def _panics(folder: Path, kernel: Path) -> bool:
    """Whether a machine starts ``kernel`` in time, which then panics, because it has no root file system."""
    signs = [(b"Linux version", FIRST_WORD), (b"Kernel panic - not syncing: VFS", KERNEL_TRIAL)]
    output, log = folder / "console", folder / "log"
    output.touch()
    argv = [QEMU, "-machine", "q35", *ACCELERATORS["kvm"], "-m", "512", "-nodefaults", "-no-user-config"]
    argv += ["-display", "none", "-vga", "none", "-no-reboot", "-serial", f"file:{output}"]
    argv += ["-kernel", str(kernel), "-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1"]
    try:
        pid = run.spawn(argv, doing="try KVM", log=log)
    except ProgramFailed:
        return False
    machine = process.identify(pid)
    if machine is None:
        return False
    begin = time.monotonic()
    try:
        for sign, patience in signs:
            while True:
                ended = not process.alive(machine)
                if sign in output.read_bytes():
                    break
                if ended or time.monotonic() > begin + patience:
                    return False
                time.sleep(0.1)
        return True
    finally:
        process.stop(machine, grace=1.0)


def _make_nvme(path: Path) -> None:
    """The NVMe disk: one ext4 file system over the whole device."""
    with path.open("wb") as stream:
        stream.truncate(NVME_BYTES)
    argv = [run.which("mke2fs"), "-q", "-t", "ext4", "-L", guest.NVME_LABEL, "-E", "nodiscard", str(path)]
    run.run(argv, doing="make the NVMe disk's file system")
