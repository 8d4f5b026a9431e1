"""What every finding of the audit means: ``python -m gdsdeploy.host.audit.meanings > docs/audit.md``."""

from __future__ import annotations

from typing import NamedTuple, Tuple

from ..kmod.findings import ERROR, NOTE, WARNING


class Meaning(NamedTuple):
    """One row of docs/audit.md; ``severities`` are those that the finding may have."""

    id: str
    severities: Tuple[str, ...]
    means: str
    fix: str


MEANINGS = (
    Meaning("missing", (ERROR,), "The kernel has no file of that module.", "Build or install it for this kernel."),
    Meaning(
        "unreadable",
        (ERROR,),
        "The file is truncated, damaged, no kernel module, or compressed in a way that cannot be unpacked here.",
        "Build or install it again; the message says where it is damaged.",
    ),
    Meaning(
        "machine", (ERROR,), "The module is for another architecture than the kernel.", "Build it for this machine."
    ),
    Meaning(
        "vermagic",
        (ERROR, WARNING),
        "The module was built for another kernel or configuration. A warning where only the release differs and the "
        "kernel compares symbol versions: then it loads, as weak-updates do, while all of those agree.",
        "Build it against the headers of this kernel.",
    ),
    Meaning(
        "vermagic-unknown",
        (WARNING,),
        "Neither modules nor headers tell what the kernel expects.",
        "Install the kernel's own modules or its headers.",
    ),
    Meaning(
        "symbol-crc",
        (ERROR,),
        "A symbol that the module imports has another version (CRC) in the kernel, in the module that would be "
        "loaded for it, or in the OFED tree. The kernel says `disagrees about version of symbol`.",
        "Rebuild it against this kernel, this driver and this OFED.",
    ),
    Meaning(
        "symbol-missing",
        (ERROR,),
        "Nothing that this kernel has exports the symbol. The kernel says `Unknown symbol`.",
        "Install the module that exports it, or build against what there is.",
    ),
    Meaning(
        "symbol-unversioned",
        (ERROR,),
        "The module carries no version for a symbol that has one: the stock build of nvidia-fs leaves it so, with "
        "exit status 0. The kernel says `no symbol version for`.",
        "Rebuild it with `gdsdeploy kmod build`.",
    ),
    Meaning(
        "symbol-unknown",
        (WARNING,),
        "Without the kernel's headers nobody knows these symbols' versions: none of the kernel's own modules uses "
        "them.",
        "Install the headers of that kernel, or audit where they are.",
    ),
    Meaning(
        "symbol-namespace",
        (ERROR, WARNING),
        "The module uses symbols of a namespace that it does not import, or that is for other modules only. The "
        "stock build of nvidia-fs turns modpost's error about it into a warning; the kernel refuses the module, "
        "except where its configuration allows it.",
        "Build it from a source that is made for this kernel.",
    ),
    Meaning(
        "gpl-proprietary",
        (ERROR,),
        "GPL-only symbols meet the proprietary driver: the kernel refuses a module that uses both.",
        "Use the open kernel modules of the driver; nvidia-fs needs them from 2.17.5 on.",
    ),
    Meaning(
        "dependency-missing",
        (ERROR,),
        "The module depends on one that the kernel does not have; where only its headers are installed, on one that"
        " their Module.symvers does not name.",
        "Install the package that has it (linux-modules-extra-… on Ubuntu).",
    ),
    Meaning(
        "dependency-file",
        (ERROR,),
        "modprobe would load another file of the driver for this module than for itself.",
        "Remove the one that is not meant, run depmod -a.",
    ),
    Meaning(
        "duplicate",
        (WARNING, ERROR),
        "Several files claim the name: weak-updates, extra, updates/dkms, a second flavour. The audit looks at the "
        "one that modprobe picks by depmod.d, modules.dep and modprobe.d; an error where only the order of a "
        "directory decides.",
        "Remove those that are not meant, run depmod -a.",
    ),
    Meaning(
        "depmod-stale",
        (ERROR,),
        "modules.dep does not know the file that depmod would take now: modprobe loads another one, or none.",
        "Run depmod -a for that kernel.",
    ),
    Meaning(
        "name",
        (WARNING, ERROR),
        "modprobe does not find the module under its own name (Debian's files are called nvidia-current-open and "
        "the like), or modprobe.d sends it to a file that is not there.",
        "Load it by the name in the hint, or repair modprobe.d.",
    ),
    Meaning(
        "driver-version",
        (ERROR,),
        "The driver is not the expected one, or its parts are of different drivers.",
        "Install the expected driver for this kernel; rebuild its modules together.",
    ),
    Meaning(
        "driver-flavour",
        (ERROR,),
        "The driver is the open one where the proprietary is expected, or the reverse.",
        "Install the other flavour's kernel modules.",
    ),
    Meaning(
        "nvidia-fs-version",
        (ERROR,),
        "nvidia-fs is not of the expected version.",
        "Build the expected nvidia-fs for this kernel.",
    ),
    Meaning(
        "driver-tree",
        (ERROR,),
        "nvidia-fs was built against another driver's source than the driver in use, by what the build wrote into "
        "the module or DKMS into its log. Symbol versions do not tell: they are equal from 535 to 550.",
        "Rebuild nvidia-fs against the driver in use.",
    ),
    Meaning(
        "driver-tree-unknown",
        (WARNING,),
        "Nothing records what nvidia-fs was built against.",
        "Build it with `gdsdeploy kmod build nvidia-fs`.",
    ),
    Meaning(
        "page-table",
        (ERROR,),
        "The version of the table of GPU pages that the driver gives to peers changed at driver 580 and is compiled "
        "into nvidia-fs and nvidia-peermem: the module loads, and then every mapping fails with `Incompatible page "
        "table version`.",
        "Rebuild it against the driver in use.",
    ),
    Meaning(
        "vm-io",
        (WARNING,),
        "nvidia-fs before 2.26.6 marks its mappings VM_IO; kernels from 6.6 on were seen to refuse to pin those "
        "(EFAULT).",
        "Take nvidia-fs 2.26.6 or newer, or prove a real transfer on this kernel.",
    ),
    Meaning(
        "late-binding",
        (NOTE,),
        "This nvidia-fs (before 2.17.5) looks up the driver's symbols while it runs: no symbol version protects it.",
        "Take 2.17.5 or newer, with the open driver.",
    ),
    Meaning(
        "peermem-stub",
        (WARNING, ERROR),
        "nvidia-peermem was built without OFED's peer memory symbols: loading it ends with `Invalid argument`. An "
        "error where peermem is expected to work.",
        "Install OFED or DOCA for this kernel, then rebuild it; or use DMA-BUF and do not load it.",
    ),
    Meaning(
        "ofed-missing",
        (ERROR,),
        "nvidia-peermem needs the RDMA core of an OFED tree whose modules this kernel does not have.",
        "Install OFED's or DOCA's modules for this kernel.",
    ),
    Meaning(
        "ofed-tree",
        (WARNING,),
        "nvidia-peermem records that it was built against another OFED tree than this kernel's.",
        "Rebuild it against the OFED that is installed.",
    ),
    Meaning(
        "hooks",
        (NOTE,),
        "Which storage drivers of this kernel have symbols for nvidia-fs, of which version, and what nvidia-fs "
        "looks for. I/O through all others takes the compat path.",
        "–",
    ),
    Meaning(
        "hook-missing",
        (ERROR,),
        "A storage driver that has to let nvidia-fs in (`--storage`) has no symbols for it.",
        "Install OFED's or DOCA's build of that driver for this kernel.",
    ),
    Meaning(
        "hook-abi",
        (WARNING, ERROR),
        "The driver and nvidia-fs speak different versions (v1, v2) of their interface: I/O silently takes the "
        "compat path. An error for drivers named by `--storage`.",
        "Take an nvidia-fs built for this kernel, and an OFED or DOCA release that fits it.",
    ),
    Meaning(
        "hook-half",
        (WARNING, ERROR),
        "The driver exports only one of the two symbols, so nvidia-fs leaves it alone.",
        "Install another build of that driver.",
    ),
    Meaning(
        "hook-gpl",
        (WARNING, ERROR),
        "The driver exports its symbols for nvidia-fs, but not GPL-only: from Linux 6.6 on the kernel does not give "
        "those to who looks them up (`failing symbol_get of non-GPLONLY symbol`), and I/O silently takes the compat "
        "path.",
        "Install a build of that driver that uses EXPORT_SYMBOL_GPL.",
    ),
    Meaning(
        "unsigned",
        (NOTE, ERROR),
        "The module has no signature that counts. An error where the kernel enforces signatures.",
        "Sign it with a key that the kernel has: `gdsdeploy kmod sign`.",
    ),
    Meaning(
        "signature-malformed",
        (ERROR,),
        "What is appended is no signature that can be read: every kernel refuses the module.",
        "Build or copy it again, then sign it.",
    ),
    Meaning(
        "signature-wrong",
        (ERROR,),
        "The module was changed after it was signed, or the signature is of another file.",
        "Build or install it again, then sign it.",
    ),
    Meaning(
        "signature-key",
        (NOTE, ERROR),
        "It is signed by a key that the kernel does not have. An error where signatures are enforced.",
        "Enrol that key, or sign the module with an enrolled one.",
    ),
    Meaning(
        "signature-key-unknown",
        (WARNING,),
        "Whether the kernel has the signer's key cannot be told from here.",
        "Audit as root, where the kernel's image can be read.",
    ),
    Meaning(
        "signature-unverified",
        (NOTE,),
        "It is signed with a key that the kernel has; whether the content is what was signed was not verified.",
        "Audit as root, where the kernel's image can be read.",
    ),
    Meaning(
        "secure-boot-unknown",
        (WARNING,),
        "Whether Secure Boot is on cannot be read, so whether the module may be loaded cannot be told.",
        "Mount efivarfs at /sys/firmware/efi/efivars.",
    ),
)

HEAD = """\
# The audit of kernel modules

`python -m gdsdeploy.host.audit.meanings` makes this page from the register of findings; a test compares both.

`gdsdeploy kmod audit [--kernel REL] [--root DIR] [MODULE…]` reports whether module files would load on a kernel, and
whether they are the expected ones. It loads nothing. It starts no program, except zstd where Python has no zstd. It
needs no root for files that any user can read. Neither the kernel nor the root folder has to be running. Modules may be
compressed (.xz, .gz, .zst), built for x86_64 or aarch64, and full of debug data. On a host without gdsdeploy, run
`gdsdeploy-host.pyz kmod audit`.

The same code judges

- what `kmod build` built, before it replaces anything
- what DKMS built
- what is packed for other hosts, and what they receive
- which kernels may become the boot default ([the kernel guard](kernel-guard.md))
- what is loaded, and what the next boot will load (`modules.running` and `modules.next-boot` of [validate](checks.md))

With `--driver-version`, `--driver-flavour`, `--driver-tree`, `--peermem` and `--storage DRIVER`, the audit also
compares the modules with what a host must have. On provisioned hosts, the lock defines this.

A module is `FAILED` if a finding has the outcome `error`. Otherwise it is `could not tell` if a finding has the outcome
`unknown`, and `ok` if none has. The [exit codes](exit-codes.md) follow from that. `--json` prints a list with one
object for each module. `outcome` is `error`, `unknown`, `warning` or, for a note, `ok`:

```json
[{"module": "nvidia_fs", "file": "/lib/modules/…/updates/dkms/nvidia-fs.ko.xz", "ok": false,
  "findings": [{"id": "symbol-crc", "severity": "error", "outcome": "error", "message": "…", "hint": "…"}]}]
```

The audit compares the versions of symbols with

- the kernel's Module.symvers (its headers, or `symvers` beside its modules)
- the modules on disk that would be loaded
- OFED's tree of that kernel

Without headers, the audit takes symbol versions from the imports of the kernel's own modules. If none of these modules
imports a symbol, its version is unknown, and the audit reports that.

| finding | severity | means | to do |
| --- | --- | --- | --- |
"""


def page() -> str:
    """Markdown: one table row per finding."""
    return HEAD + "".join(_row(item) for item in MEANINGS)


def _row(item: Meaning) -> str:
    cells = (f"`{item.id}`", " or ".join(item.severities), item.means, item.fix)
    return "| {} |\n".format(" | ".join(cell.replace("|", "\\|") for cell in cells))


if __name__ == "__main__":
    print(page(), end="")
