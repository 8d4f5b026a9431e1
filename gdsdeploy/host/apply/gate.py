"""The boot gate: its settings, its unit, and the program that slurmd asks.  It isn't started here: see docs/gate.md."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, List, Sequence

from ..errors import CannotTellError
from ..gate import gate
from ..gate.gate import LOCK, PATH, RECORD, RUN_FOLDER, STATE_FOLDER, Settings, settings_from
from ..io.prometheus import places
from ..model.schema import LINES
from . import services
from .files import File
from .host import ManagedHost
from .model import Change, Refusal
from .program import COMMAND

UNIT = "gds-gate.service"
SLURM_HEALTH = "/usr/lib/gdsdeploy/slurm-health"
#: What it has found, and the file that is there while it is open.
_RESULTS = (f"{RUN_FOLDER}/{RECORD}", f"{RUN_FOLDER}/{LOCK}", Settings.file, f"{STATE_FOLDER}/{RECORD}")
#: How the file begins that a fleet file may have elsewhere: when the gate opened.
_FIRST_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ")
_SLURM_HEALTH_TEXT = f"""\
#!/bin/sh
# Rendered by gdsdeploy; changes here are overwritten. HealthCheckProgram of slurm.conf: drains this node while the gate
# is closed or has not judged this boot, and resumes it when the gate opens, if nobody else had drained it.
exec {COMMAND} gate slurm-health
"""


@dataclass(frozen=True)
class Desired:
    """Whether this host has a gate, and how it works."""

    #: Whether this host has a gate; ``false`` removes one.
    enabled: bool = True
    #: JSON text of ``/etc/gdsdeploy/gate.json``.
    settings: str = field(default="", metadata=LINES)
    #: Units that start after the gate, even if it's closed.
    before: List[str] = field(default_factory=list)
    #: Units that don't start while the gate is closed.
    required_by: List[str] = field(default_factory=list)
    #: Time limit of the gate's checks, in seconds.
    seconds: int = 30
    #: Whether the gate drains and resumes this host's Slurm node.
    slurm: bool = False
    #: Files that the gate writes in folders of other programs.  They go with it.
    files: List[str] = field(default_factory=list)


class Gate(services.UnitResource[Desired]):
    """An enabled unit, or none."""

    name = "gate"
    desired_type = Desired
    removal_rank = 20
    unit = UNIT
    places = (PATH, SLURM_HEALTH)
    results = _RESULTS
    stops = False

    def unit_text(self, desired: Desired) -> str:
        return unit(desired) if desired.enabled else ""

    def desired_files(self, desired: Desired) -> List[File]:
        if not desired.enabled:
            return []
        slurm = [File.of(SLURM_HEALTH, _SLURM_HEALTH_TEXT, 0o755)] if desired.slurm else []
        return [File.of(PATH, desired.settings), *slurm, *super().desired_files(desired)]

    def observe(self, host: ManagedHost, desired: Desired) -> Any:
        left = [] if desired.enabled else _leftovers(host, desired.files)
        return {**super().observe(host, desired), "left": left}

    def refusals(self, desired: Desired, observed: Any) -> List[Refusal]:
        refusals = super().refusals(desired, observed)
        refusals += services.names_refused([*desired.before, *desired.required_by])
        if desired.enabled and not desired.settings:
            refusals.append(Refusal("content", f"the text of {PATH} is empty", "run provision, which renders it"))
        wrong = [path for path in desired.files if not path.startswith("/")]
        hint = "correct the fleet file"
        return refusals + [Refusal("path", f"{path!r}: is not an absolute path", hint) for path in wrong]

    def changes(self, desired: Desired, observed: Any, pending: Sequence[Change] = ()) -> List[Change]:
        return [*super().changes(desired, observed, pending), *_deletions(observed["left"])]

    def apply(self, host: ManagedHost, desired: Desired, change: Change) -> None:
        """Make one change; what the gate left in folders of others has no record."""
        if change.kind == "delete" and change.reason == "not-wanted":
            host.remove_tree(change.subject)
        else:
            super().apply(host, desired, change)

    def revert(self, host: ManagedHost) -> List[Change]:
        """Take the gate away, with what it left where its settings say."""
        paths = _leftovers(host, _places(host))
        changes = super().revert(host)
        if not host.check:
            for path in paths:
                host.remove_tree(path)
        return changes + _deletions(paths)


def unit(desired: Desired) -> str:
    """The text of gds-gate.service."""
    before = [*desired.before, *dict.fromkeys(name for name in desired.required_by if name not in desired.before)]
    lines = [
        f"# Rendered by gdsdeploy; changes here are overwritten. See: systemctl edit {UNIT}",
        "[Unit]",
        "Description=GPUDirect Storage gate: judges this boot before a scheduler gives it work",
        "After=systemd-modules-load.service local-fs.target remote-fs.target",
        "After=nvidia-persistenced.service nvidia-fabricmanager.service nvidia-imex.service openibd.service",
    ]
    if desired.slurm:
        lines += ["Wants=network-online.target", "After=network-online.target munge.service"]
    if before:
        lines.append(f"Before={' '.join(before)}")
    lines += [
        "",
        "[Service]",
        "Type=oneshot",
        f"ExecStart={COMMAND} gate run --quiet",
        "# What looks at the host ends by itself; this is for a file system that does not even let it.",
        f"TimeoutStartSec={desired.seconds + 60}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    if desired.required_by:
        lines.append(f"RequiredBy={' '.join(desired.required_by)}")
    return "\n".join(lines) + "\n"


def _deletions(paths: Sequence[str]) -> List[Change]:
    return [Change("delete", path, "file", "", "not-wanted") for path in paths]


def _places(host: ManagedHost) -> List[str]:
    """Where the gate of this host writes outside of our folders, by the settings that are there."""
    try:
        settings = settings_from(host.text(PATH))
        folder, file = str(settings.metrics or ""), str(settings.file)
    except (ValueError, TypeError, AttributeError, RecursionError):
        folder, file = "", ""
    return [*places(folder, gate.FILE), *filter(None, [file])]


def _leftovers(host: ManagedHost, paths: Sequence[str]) -> List[str]:
    """Those of ``paths`` that the gate has written: by their name, or by how they begin; not those of _RESULTS."""
    return [path for path in dict.fromkeys(paths) if path not in _RESULTS and _is_the_gates(host, path)]


def _is_the_gates(host: ManagedHost, path: str) -> bool:
    try:
        # Not its digest: others may have put anything there, of any size.
        text = host.text(path) if path.startswith("/") else ""
        return bool(text) and (os.path.basename(path) == gate.FILE or _FIRST_LINE.match(text[:40]) is not None)
    except CannotTellError:
        return False
