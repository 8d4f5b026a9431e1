"""Faults of kernel, driver, nvidia-fs, packages, boot and cufile.json."""

from __future__ import annotations

from tests.unit.host.checks.changes import (
    EXPECTATION,
    LOADED,
    Change,
    absent,
    appended,
    crc,
    edited,
    file,
    in_module,
    logged,
    no_libcufile,
    not_exported,
    nouveau_allowed,
    opened,
    output,
    package,
    provenance,
    rebuilt,
    tree,
    units,
    unloaded,
    without_crcs,
)

NVFS = ("nvidia-fs.loaded-version", "nvidia-fs.loaded-file", "nvidia-fs.driver-tree", "nvidia-fs.devices")
#: fault → (what makes it, checks that have to fail; others may only become unknown)
FAULTS: dict[str, tuple[Change, set[str]]] = {
    "another release": (file("/etc/os-release", "ID=debian\nVERSION_ID=12\n"), {"os.release"}),
    "another machine": (lambda document: document["host"]["uname"].update(machine="aarch64"), {"os.release"}),
    "another default at boot": (
        file("/boot/grub/grubenv", "saved_entry=gnulinux-gone\n"),
        set(),
    ),
    "nvidia not loaded": (
        unloaded("nvidia"),
        {"driver.loaded-version", "driver.flavour", "driver.loaded-file", "nvidia-fs.driver-tree"},
    ),
    "another driver runs": (
        edited("/proc/driver/nvidia/version", EXPECTATION.driver_version, "535.261.03"),
        {"driver.loaded-version", "driver.userland", "driver.firmware", "nvidia-fs.driver-tree"},
    ),
    "proprietary driver": (
        edited("/proc/driver/nvidia/version", "Open Kernel Module", "Kernel Module"),
        {"driver.flavour", "nvidia-fs.driver-tree", "stack.compatible"},
    ),
    "driver replaced on disk": (rebuilt("nvidia"), {"driver.loaded-file"}),
    "driver for another kernel": (
        in_module("nvidia", vermagic="6.12.117+deb13-amd64 SMP preempt mod_unload modversions "),
        {"driver.built-for-kernel"},
    ),
    "nouveau loaded": (appended("/proc/modules", "nouveau 1 0 - Live 0x0\n"), {"nouveau.absent"}),
    "nouveau allowed": (nouveau_allowed, {"nouveau.absent"}),
    "nvidia-fs not loaded": (unloaded("nvidia_fs"), set(NVFS)),
    "another nvidia-fs": (file("/sys/module/nvidia_fs/version", "2.17.5\n"), {"nvidia-fs.loaded-version"}),
    "nvidia-fs replaced on disk": (rebuilt("nvidia_fs"), {"nvidia-fs.loaded-file"}),
    "nvidia-fs for another kernel": (
        in_module("nvidia_fs", vermagic="6.1.0-50-amd64 SMP "),
        {"nvidia-fs.built-for-kernel"},
    ),
    "one symbol version differs": (crc("nvidia_p2p_get_pages"), {"nvidia-fs.symbol-versions"}),
    "one symbol is not exported": (not_exported("nvidia_p2p_put_pages"), {"nvidia-fs.symbol-versions"}),
    "no symbol versions": (without_crcs, {"nvidia-fs.symbol-versions"}),
    "built against another driver": (
        provenance(driver="535.261.03", tree="sha256:00"),
        {"nvidia-fs.driver-tree"},
    ),
    "built against the other flavour": (provenance(flavour="proprietary"), {"nvidia-fs.driver-tree"}),
    "built in another tree": (tree("sha256:00"), {"nvidia-fs.driver-tree"}),
    "not built by us": (in_module("nvidia_fs", provenance={}), {"nvidia-fs.driver-tree"}),
    "a device node lacks": (
        lambda document: document["listings"]["/dev/nvidia*"].remove("nvidia-fs7"),
        {"nvidia-fs.devices"},
    ),
    "a package was upgraded": (package("libcufile0", "2.0-1", "ii"), {"packages.locked-versions", "packages.drift"}),
    "a package is half-configured": (
        package("gds-tools", EXPECTATION.packages["gds-tools"], "hF"),
        {"packages.locked-versions"},
    ),
    "nothing loads nvidia-fs at boot": (file("/etc/modules-load.d/gdsdeploy.conf", "nvidia\n"), {"boot.autoload"}),
    "the wrong order at boot": (file("/etc/modules-load.d/gdsdeploy.conf", "nvidia-fs\nnvidia\n"), {"boot.autoload"}),
    "nvidia-fs forbidden": (appended("/etc/modprobe.d/gdsdeploy.conf", "blacklist nvidia-fs\n"), {"boot.autoload"}),
    "loading failed at boot": (units("ActiveState=active", "ActiveState=failed"), {"boot.autoload"}),
    "no libcufile": (no_libcufile, {"cufile.library"}),
    "another libcufile": (
        output("cufile-open", "libcufile.so.1.9.1", "libcufile.so.1.15.1"),
        {"cufile.library", "stack.compatible"},
    ),
    "cufile.json edited": (appended("/etc/cufile.json", "// by hand\n"), {"cufile.rendered"}),
    "cufile.json gone": (absent("files", "/etc/cufile.json"), {"cufile.rendered"}),
    "cufile.json refused": (opened("1.9.1 wrong-type"), {"cufile.accepted", "storage.path:/mnt/nvme"}),
    "a value without effect": (
        logged("properties.use_compat_mode : true", "properties.per_buffer_cache_size_kb : 64"),
        {"cufile.effective"},
    ),
    "gdscheck sees a GPU problem that isn't one": (
        lambda document: document["listings"].update({"gdscheck": []}),
        {"gdscheck.agrees"},
    ),
    "a mount delivers half": (
        lambda document: document["load"].update({"/mnt/nvme": {**LOADED, "rate": 500_000_000}}),
        {"storage.load:/mnt/nvme"},
    ),
    "not mounted": (edited("/proc/self/mountinfo", " /mnt/nvme ", " /mnt/other "), {"storage.path:/mnt/nvme"}),
}
