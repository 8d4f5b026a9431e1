"""The page of the kernel's messages."""

from __future__ import annotations

import re

from docs.gen import table_row
from gdsdeploy.host.subjects.kernel import NVIDIA, NVIDIA_FS, PEERMEM, Meaning, meanings

HEAD = """\
# Faults in the kernel's log

The checks `driver.errors`, `nvidia-fs.errors` and `peermem.errors` look for these messages since the boot, in both
`journalctl -k -b` and `dmesg`. `gdsdeploy explain` shows them beside a direct path.

*Fault* means that the host needs attention, and the check fails. The other messages are a program's own error, or have
no effect. A check that finds only these passes and lists them. An Xid counts by what NVIDIA's catalog says to do about
its number. Of a number without a row, the check answers "could not tell".

A log is complete if it begins with the kernel's first message (`Linux version …`). If neither log is complete and
neither shows a fault, the check answers "could not tell".

A fault that was mended is over:

- An Xid, once the driver says that its GPU needs nothing: by an Xid 154 "to 0x0 (None)", or as `GPU Recovery Action` of
  `nvidia-smi -q`, from driver 565 on. After a reset the driver prints no Xid 154, so the check asks nvidia-smi.
- Other messages of the driver and of nvidia-fs, once the module is loaded again. Failures to load nvidia-peermem, once
  it is loaded.
- What the table marks with *boot*, at the next boot.
"""
TITLES = {NVIDIA: "The driver", NVIDIA_FS: "nvidia-fs", PEERMEM: "nvidia-peermem"}
COLUMNS = "\n| message | fault | cause | what happened | what to do | over | source |\n" + "| --- " * 7 + "|\n"


def page() -> str:
    """Markdown: a table for each module, in the order of the file."""
    parts = [HEAD]
    for module, title in TITLES.items():
        parts.append(f"\n## {title}\n{COLUMNS}")
        parts += [_row(row) for row in meanings() if row.module == module]
    return "".join(parts)


def _row(row: Meaning) -> str:
    numbers = re.findall(r"\d+", row.pattern.partition("): ")[2].partition(r"\b")[0])
    name = f"Xid {', '.join(numbers)}" if row.id.startswith("xid-") and numbers else f"`{row.id}`"
    return table_row(name, "yes" if row.fault else "no", row.cause, row.what, row.fix, row.over, row.source)
