"""The page of the kernel's messages: ``python -m docs.gen.kernel_messages > docs/kernel-messages.md``."""

from __future__ import annotations

from docs.gen import table_row
from gdsdeploy.host.facts.kernel_messages import NVIDIA, NVIDIA_FS, PEERMEM, Meaning, meanings

HEAD = """\
# Faults in the kernel's log

`python -m docs.gen.kernel_messages > docs/kernel-messages.md` writes this page from
`gdsdeploy/host/data/kernel_messages.json`.

The checks `driver.errors`, `nvidia-fs.errors` and `peermem.errors` look for these messages. `gdsdeploy explain` shows
them beside a direct path.

gdsdeploy reads `journalctl -k -b` and `dmesg` together. A log is complete if it begins with the kernel's first message
(`Linux version …`). If both logs are incomplete and show no fault, the checks answer "could not tell". A fault counts
even in an incomplete log.

*Fault* means that the host needs attention, and the check fails. The other messages are a program's own error, or
have no effect; a check that finds only these passes and names them. An Xid without a row counts as a fault.

Messages of nvidia-fs count from its last load on. Refusals of nvidia-peermem to be loaded don't count once it is
loaded.
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


if __name__ == "__main__":
    print(page(), end="")
