"""Slurm's ``scontrol``."""

from __future__ import annotations

import re
import socket
from typing import List

from .. import process

#: The program that slurmd starts for its node's health is killed after 60 s.
SECONDS = 15.0
#: A user may have set another format of times.
FORMAT = {"SLURM_TIME_FORMAT": "standard"}


class SlurmError(Exception):
    """Slurm could not be asked, or refused; the message has its answer."""


def scontrol(argv: List[str]) -> str:
    """What it prints; raises SlurmError."""
    output = process.run(["scontrol", *argv], timeout=SECONDS, env=FORMAT)
    if output.status != 0 or re.match(r"Node \S+ not found|slurm_\S+ error", output.stdout):
        last_line = (output.stderr.strip() or output.stdout.strip() or "nothing").splitlines()[-1]
        raise SlurmError(f"scontrol {argv[0]} ended with status {output.status}: {last_line}")
    return output.stdout


def node_name() -> str:
    """The node on this host; Slurm may use another name for it.  Raises SlurmError."""
    host = socket.gethostname().partition(".")[0]
    names = scontrol(["show", "aliases", host]).split()
    if not names:
        raise SlurmError(f"Slurm knows no node on the host {host}")
    return names[0]
