"""What the gate of a host wrote down in this boot, which one ``cat`` in the login reads: no Python starts there.  Pure.

The record is data from the host: its size, its nesting and its shape are bounded as those of every answer.
"""

from __future__ import annotations

from typing import Any

from gdsdeploy.host.gate import gate
from gdsdeploy.host.io import jsontext
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.endpoint import VALUES, Answer, Endpoint, Files, malformed

QUESTION = "cat gate.json"
_NEVER = "the gate has not judged this host yet"


def document(host: Endpoint, text: str) -> dict[str, Any]:
    """``boot_id`` of the running boot, and the newest ``record`` or None; raises HostUnfit.

    text: of the files of FILES that are there, one after the other.
    """
    boot_id, _, rest = text.partition("\n")
    if not boot_id.strip():
        raise malformed(host.where(), QUESTION, "it has no id of the boot")
    if not rest.strip():
        return {"boot_id": boot_id.strip(), "record": None}
    try:
        # The record of the last boot may follow.
        record = jsontext.loads(rest, items=VALUES, more=True)
    except ValueError as error:
        raise malformed(host.where(), QUESTION, str(error)) from None
    if not isinstance(record, dict):
        raise malformed(host.where(), QUESTION, "the record isn't an object")
    return {"boot_id": boot_id.strip(), "record": record}


#: The running boot, its record, and the record of the last boot that the gate judged.
FILES = Files((gate.BOOT_ID, *(f"{folder}/{gate.RECORD}" for folder in (gate.RUN_FOLDER, gate.STATE_FOLDER))), document)


def of_this_boot(answer: Answer) -> tuple[str, gate.Record | None, str]:
    """(id of the boot, its record or None, why there is none); raises the host's error, or HostUnfit."""
    reply = reply_schema.judge_reply(answer, QUESTION, reply_schema.GateShown, dict)
    record, boot_id = gate.record_of(reply["record"]) if reply["record"] else None, reply["boot_id"]
    if record is None:
        return boot_id, None, _NEVER
    if record.boot_id != boot_id:
        verdict = f"{record.state} of {record.when}"
        return boot_id, None, f"the gate has not judged this boot; its last verdict, {verdict}, is of an earlier one"
    return boot_id, record, ""
