"""The package manager's choices and locks, which could move the stack, and its logs, which tell what did."""

from __future__ import annotations

import os
import re
from typing import Dict, Optional

from .. import process
from ..io import cache, database
from ..paths import VERSIONLOCKS
from .recorder import Recorder, stored_run
from .request import EvidenceRequest

#: Beginnings of the names of logs, current and rotated, in /var/log and below; at most this many of each are read.
DPKG_LOG, APT_HISTORY, DNF_LOG, DNF_COMMANDS = "dpkg.log", "history.log", "dnf.rpm.log", "dnf.log"
ROTATIONS = 13
#: For apt's programs.
ENVIRONMENT: Dict[str, str] = {}
#: Where apt reads its configuration; all other places are its to say.
APT_CONFIGURATION = ("/etc/apt/apt.conf", "/etc/apt/apt.conf.d")
APT_PLACES = (
    "Dir::State::status/f", "Dir::State::lists/d", "Dir::Etc::sourcelist/f", "Dir::Etc::sourceparts/d",
    "Dir::Etc::preferences/f", "Dir::Etc::preferencesparts/d",
)  # fmt: skip
#: The foreign architectures, which dpkg tells apt, and what decides who gets an update in phases (strace of apt 2.6).
APT_OTHERS = (
    "/usr/bin/apt-cache",
    "/var/lib/dpkg/arch",
    "/etc/dpkg/dpkg.cfg",
    "/etc/dpkg/dpkg.cfg.d",
    "/etc/machine-id",
)


def collect(recorder: Recorder, request: EvidenceRequest) -> None:
    """Only for expected packages: without them, nothing could have moved."""
    if not request.packages:
        return
    names = "(?:{})".format("|".join(re.escape(name) for name in request.packages))
    if database.manager(recorder.root) == database.DPKG:
        argv = ["apt-cache", "policy", *request.packages]
        recorder.command("apt-policy", argv, timeout=60, env=ENVIRONMENT, inputs=apt_inputs(recorder))
        _logs(recorder, "/var/log", DPKG_LOG, rf"^\S+ \S+ (?:install|upgrade|remove|purge) {names}[: ]")
        # One block a run: who began it when and how, and what it did.
        pattern = rf"^(?:Start-Date|Commandline|Requested-By|End-Date): |^[A-Z][a-z]+: (?:.*[ ,])?{names}:"
        _logs(recorder, "/var/log/apt", APT_HISTORY, pattern)
        return
    for path in VERSIONLOCKS:
        recorder.text(path)
    _logs(recorder, "/var/log", DNF_LOG, rf"[A-Z][a-z]+: {names}-[0-9]")
    _logs(recorder, "/var/log", DNF_COMMANDS, r" Command: ")


def apt_inputs(recorder: Recorder) -> Optional[cache.Inputs]:
    """What decides about apt's policy; None where that can't be told.

    Where the files are is apt's to say, and its configuration's.
    """
    if cache.folder() is None or "APT_CONFIG" in os.environ:
        return None
    argv = ["apt-config", "shell", *(word for place in APT_PLACES for word in ("X", place))]
    configuration = cache.Inputs(tuple(map(recorder.at, (*APT_CONFIGURATION, *APT_OTHERS))))
    output = stored_run("apt-config", argv, configuration, lambda: process.run(argv, 10.0, env=ENVIRONMENT))
    places = re.findall(r"^X='([^'\n]+)'$", output.stdout, re.MULTILINE)
    return cache.Inputs((*configuration.paths, *places)) if len(places) == len(APT_PLACES) else None


def _logs(recorder: Recorder, folder: str, begin: str, pattern: str) -> None:
    for name in recorder.names(folder, begin + "*")[:ROTATIONS]:
        recorder.excerpt(folder + "/" + name, pattern)
