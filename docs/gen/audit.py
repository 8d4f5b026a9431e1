"""The page of the audit's findings: ``python -m docs.gen.audit > docs/audit.md``."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from docs.gen import table_row
from gdsdeploy.host import data


class Meaning(NamedTuple):
    """One row of the page; ``severities`` are those that the finding may have."""

    id: str
    severities: tuple[str, ...]
    means: str
    fix: str


HEAD = """\
# The audit of kernel modules

`python -m docs.gen.audit > docs/audit.md` writes this page from `gdsdeploy/host/data/audit_findings.json`.

`gdsdeploy kmod audit [--kernel REL] [--root DIR] [MODULE…]` checks module files: whether they would load on a kernel,
and whether they are the expected ones. It loads nothing. It needs no root for files that anyone can read. It starts
only the zstd program, and only if Python has no zstd. The kernel doesn't have to run, and neither does the system in
the root folder. Modules may be compressed (.xz, .gz, .zst), built for x86_64 or aarch64, and contain debug data.
`gdsdeploy-host.pyz kmod audit` does the same on a host without gdsdeploy.

The same code also judges:

- What `kmod build` and DKMS built, before it replaces anything.
- What is packed for other hosts, and what they receive.
- Which kernels may become the boot default ([the kernel guard](kernel-guard.md)).
- The loaded modules and those of the next boot (`modules.running` and `modules.next-boot` of [validate](checks.md)).

`--driver-version`, `--driver-flavour`, `--driver-tree`, `--peermem` and `--storage DRIVER` compare the modules with
what a host must have. On provisioned hosts the lock provides these values.

A module is `FAILED` if one of its findings has the outcome `error`. Otherwise it is `could not tell` if one has the
outcome `unknown`, and `ok` if none has. [Exit codes](exit-codes.md) follow from that. `--json` prints a list with one
object per module. `outcome` is `error`, `unknown`, `warning` or, for a note, `ok`:

```json
[{"module": "nvidia_fs", "file": "/lib/modules/…/updates/dkms/nvidia-fs.ko.xz", "ok": false,
  "findings": [{"id": "symbol-crc", "severity": "error", "outcome": "error", "message": "…", "hint": "…"}]}]
```

Versions of symbols are compared with three sources: the kernel's Module.symvers (in its headers, or `symvers` beside
its modules), the modules on disk that would be loaded, and the OFED tree of that kernel. Without headers, the
versions come from what the kernel's own modules import. If none of them imports a symbol, the audit reports that it
can't tell.

| finding | severity | means | to do |
| --- | --- | --- | --- |
"""


@lru_cache(maxsize=1)
def meanings() -> tuple[Meaning, ...]:
    """What each finding means."""
    return data.rows("audit_findings", Meaning)


def page() -> str:
    """Markdown: one table row per finding."""
    return HEAD + "".join(_row(meaning) for meaning in meanings())


def _row(meaning: Meaning) -> str:
    return table_row(f"`{meaning.id}`", " or ".join(meaning.severities), meaning.means, meaning.fix)


if __name__ == "__main__":
    print(page(), end="")
