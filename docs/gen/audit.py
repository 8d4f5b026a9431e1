"""The page of the audit's findings."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from docs.gen import table_row

TABLE = Path(__file__).parent / "audit_findings.json"


class Meaning(NamedTuple):
    """One row of the page; ``severities`` are those that the finding may have."""

    id: str
    severities: tuple[str, ...]
    means: str
    fix: str


HEAD = """\
# The audit of kernel modules

`gdsdeploy kmod audit [--kernel REL] [--root DIR] [MODULE…]` reports whether module files would load on a kernel, and
whether they are the expected ones. It loads nothing. It starts openssl for signatures, a program that unpacks where
Python and libzstd can't (lz4, zstd), and no other. It needs no root for files that any user can read. Neither the
kernel nor the root folder has to be running. Modules may be compressed (.xz, .gz, .zst), built for x86_64 or aarch64,
and full of debug data. On a host without gdsdeploy, run `gdsdeploy-host.pyz kmod audit`.

If a file that decides can't be read, the finding is `input-unknown`, and the module is never `ok`. A kernel without
modules of its own, as on a machine that only builds, is judged by its headers. A kernel with unreadable ones isn't.

The same code judges

- what `kmod build` built, before it replaces anything
- what DKMS built
- what is packed for other hosts, and what they receive
- which kernels may become the boot default ([the kernel guard](kernels.md#the-kernel-guard))
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

Without headers, the audit takes symbol versions from the imports of the kernel's own modules, except those that it
audits. If none of these modules imports a symbol, its version is unknown, and the audit reports that. The same goes for
what only headers tell: whether a symbol is GPL-only, which matters to proprietary modules, and its namespace. Modules
of an installed archive or of a locked package are exempt: their builder had the headers.

Whether or not a kernel compares symbol versions, it compares the size of `struct module`. It also refuses damaged type
data (BTF); whether intact type data fits the kernel's own isn't audited.

| finding | severity | means | to do |
| --- | --- | --- | --- |
"""


@lru_cache(maxsize=1)
def meanings() -> tuple[Meaning, ...]:
    """What each finding means."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(Meaning(**{**row, "severities": tuple(row["severities"])}) for row in rows)


def page() -> str:
    """Markdown: one table row per finding."""
    return HEAD + "".join(_row(meaning) for meaning in meanings())


def _row(meaning: Meaning) -> str:
    return table_row(f"`{meaning.id}`", " or ".join(meaning.severities), meaning.means, meaning.fix)
