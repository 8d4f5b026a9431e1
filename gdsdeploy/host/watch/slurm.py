"""The line about a job's I/O that Slurm's epilog writes into the job's AdminComment.

The processes of the job have ended then.  What they did is in the sums of ``watch --metrics``.
"""

from __future__ import annotations

import re

from ..io.scontrol import SlurmError, node_name, scontrol
from .owner import JOB
from .service import STATE, of_owner
from .totals import sentence

#: Characters of a comment; a longer one makes the output of others unreadable.
LONGEST = 1000
#: A comment ends where the next field of the job begins.
_COMMENT = re.compile(r"\sAdminComment=(.*?)(?=\s[A-Z][A-Za-z/:]*=|\s*$)", re.DOTALL)
#: Each host of a job replaces its own part alone; another one may write at the same time.
_SEPARATOR, _TRIES = "; ", 3
_JOB = re.compile(r"\d{1,12}")


def comment(job: str, state: str = STATE) -> str:
    """Write this host's part of a job's comment, and return it.  Raises SlurmError."""
    if not _JOB.fullmatch(job):
        raise SlurmError(f"{job[:40]!r} isn't the number of a job")
    sums = of_owner(JOB, job, state)
    if sums is None:
        raise SlurmError("nothing counted this job: gds-watch.service doesn't run on this host")
    host = node_name()
    text = sentence(host, sums)
    for _ in range(_TRIES):
        scontrol(["update", f"JobId={job}", f"AdminComment={merged(_now(job), host, text)}"])
        if text in _now(job):
            break
    return text


def _now(job: str) -> str:
    match = _COMMENT.search(scontrol(["--oneliner", "show", "job", job]))
    return match.group(1).strip() if match else ""


def merged(before: str, host: str, text: str) -> str:
    """A comment with the part of this host replaced or added; what others wrote stays.  Pure."""
    parts = [part for part in before.split(_SEPARATOR) if part and not part.startswith(f"gds {host}:")]
    whole = _SEPARATOR.join([*parts, text])
    return whole if len(whole) <= LONGEST else before or text[:LONGEST]
