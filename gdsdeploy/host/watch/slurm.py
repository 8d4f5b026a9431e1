"""Which path a job's I/O took on this host, in the job's AdminComment.

It's written while the job runs: Slurm refuses to change a job that has ended, also in its epilog (22.05).
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Tuple

from ..io.scontrol import SlurmError, node_name, scontrol
from .owner import JOB, Owner
from .totals import Sums, sentence

#: Characters of a comment: about 15 hosts.  What has no room isn't written.
LONGEST = 1000
#: Seconds between two changes of the comment of one job, by one host.
EVERY = 60.0
_COMMENT = re.compile(r"\sAdminComment=(.*?)(?=\s[A-Z][A-Za-z/:]*=|\s*$)", re.DOTALL)
#: Each host of a job replaces its own part alone; another one may write at the same time.
_SEPARATOR, _TRIES = "; ", 3


class Comments:
    """Writes into the comments of jobs, and remembers what it wrote."""

    def __init__(self) -> None:
        #: job → when its comment was written, and which text
        self._written: Dict[str, Tuple[float, str]] = {}
        #: the node on this host; empty: Slurm hasn't said yet
        self._node = ""

    def write(self, sums: Mapping[Owner, Sums], now: float) -> List[str]:
        """Write what is new about each job, at most once in EVERY seconds; returns what went wrong."""
        errors: List[str] = []
        jobs = {name: one for (kind, name), one in sums.items() if kind == JOB}
        self._written = {job: last for job, last in self._written.items() if job in jobs}
        for job, one in jobs.items():
            time, text = self._written.get(job, (-EVERY, ""))
            if now - time < EVERY:
                continue
            try:
                self._node = self._node or node_name()
                new = sentence(self._node, one)
                # A job that has ended is asked about no more, because its sums don't change.
                self._written[job] = now, new
                if new != text:
                    comment(job, self._node, new)
            except SlurmError as error:
                errors.append(f"job {job}: {error}")
        return errors


def comment(job: str, host: str, text: str) -> None:
    """Write a host's part of the comment of a running job.  Raises SlurmError."""
    for _ in range(_TRIES):
        scontrol(["update", f"JobId={job}", f"AdminComment={merged(_now(job), host, text)}"])
        if text in _now(job):
            break


def _now(job: str) -> str:
    match = _COMMENT.search(scontrol(["--oneliner", "show", "job", job]))
    return match.group(1).strip() if match else ""


def merged(before: str, host: str, text: str) -> str:
    """A comment with the part of this host replaced or added; what others wrote stays.  Pure."""
    parts = [part for part in before.split(_SEPARATOR) if part and not part.startswith(f"gds {host}:")]
    whole = _SEPARATOR.join([*parts, text])
    return whole if len(whole) <= LONGEST else before or text[:LONGEST]
