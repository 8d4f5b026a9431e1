"""The package manager's choices and locks, which could move the stack, and its logs, which tell what did."""

from __future__ import annotations

import re

from ..io import database
from .recorder import Recorder
from .request import EvidenceRequest

#: Beginnings of the names of logs, current and rotated, in /var/log and below; at most this many of each are read.
DPKG_LOG, APT_HISTORY, DNF_LOG, DNF_COMMANDS = "dpkg.log", "history.log", "dnf.rpm.log", "dnf.log"
ROTATIONS = 13
VERSIONLOCKS = ("/etc/dnf/plugins/versionlock.list", "/etc/yum/pluginconf.d/versionlock.list")


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    """Only for expected packages: without them, nothing could have moved."""
    if not request.packages:
        return
    names = "(?:{})".format("|".join(re.escape(name) for name in request.packages))
    if database.manager(recorder.root) == database.DPKG:
        recorder.command("apt-policy", ["apt-cache", "policy", *request.packages], timeout=60)
        _logs(recorder, "/var/log", DPKG_LOG, rf"^\S+ \S+ (?:install|upgrade|remove|purge) {names}[: ]")
        # One block a run: who began it when and how, and what it did.
        pattern = rf"^(?:Start-Date|Commandline|Requested-By|End-Date): |^[A-Z][a-z]+: (?:.*[ ,])?{names}:"
        _logs(recorder, "/var/log/apt", APT_HISTORY, pattern)
        return
    for path in VERSIONLOCKS:
        recorder.text(path)
    _logs(recorder, "/var/log", DNF_LOG, rf"[A-Z][a-z]+: {names}-[0-9]")
    _logs(recorder, "/var/log", DNF_COMMANDS, r" Command: ")


def _logs(recorder: Recorder, folder: str, begin: str, pattern: str) -> None:
    for name in recorder.names(folder, begin + "*")[:ROTATIONS]:
        recorder.excerpt(folder + "/" + name, pattern)
