"""The page of the kernel's messages."""

from __future__ import annotations

from docs.gen import table_row
from gdsdeploy.host.subjects.kernel import NVIDIA, NVIDIA_FS, PEERMEM, Meaning, meanings

HEAD = """\
# Faults in the kernel's log

The checks `driver.errors`, `nvidia-fs.errors` and `peermem.errors` look for these messages since the boot, in both
`journalctl -k -b` and `dmesg`. `gdsdeploy explain` shows them beside a direct path.

*Fault* means that the host needs attention, and the check fails. An Xid without a row is a fault, too. The other
messages are a program's own error, or have no effect. A check that finds only these passes and lists them.

A log is complete if it begins with the kernel's first message (`Linux version …`). If neither log is complete and
neither shows a fault, the check answers "could not tell".

Messages of nvidia-fs count since it was last loaded. Failures to load nvidia-peermem don't count once it is loaded.
"""
TITLES = {NVIDIA: "The driver", NVIDIA_FS: "nvidia-fs", PEERMEM: "nvidia-peermem"}
COLUMNS = "\n| message | fault | cause | what happened | what to do |\n| --- | --- | --- | --- | --- |\n"


def page() -> str:
    """Markdown: a table for each module, in the order of the file."""
    parts = [HEAD]
    for module, title in TITLES.items():
        parts.append(f"\n## {title}\n{COLUMNS}")
        parts += [_row(row) for row in meanings() if row.module == module]
    return "".join(parts)


def _row(row: Meaning) -> str:
    name = row.id.replace("xid-", "Xid ") if row.id.startswith("xid-") else f"`{row.id}`"
    return table_row(name, "yes" if row.fault else "no", row.cause, row.what, row.fix)
