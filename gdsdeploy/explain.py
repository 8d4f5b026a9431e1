"""Explain: the evidence of one host, of this machine or of a file, and why its mounts take the paths that they take."""

from __future__ import annotations

import difflib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gdsdeploy import hostapp, transport
from gdsdeploy.errors import FleetInvalid, GdsError, HostUnreachable
from gdsdeploy.host import evidence, report
from gdsdeploy.host.explain import Explanation, NoSuchMountError, explain
from gdsdeploy.host.facts import facts_from
from gdsdeploy.load import load_fleet

#: Where a fleet is looked for when a host is named without one.
DEFAULT_FLEET = Path("fleet.yml")
#: Seconds for one host: its evidence is bounded by itself, and a slow virtual machine needs most of it.
TIMEOUT = 300.0


def of_this_machine(mount: str) -> Explanation:
    """Collect the evidence here; what only root may read is said to be unseen."""
    return explained(evidence.collect(replace(evidence.NOTHING, mounts=(mount,) if mount else ())), mount)


def of_host(fleet_file: Path, name: str, mount: str, timeout: float = TIMEOUT) -> Explanation:
    """Ask one host of the fleet.  timeout: seconds.  Raises FleetInvalid, and what the host's answer is."""
    if not fleet_file.exists() and fleet_file == DEFAULT_FLEET:
        raise FleetInvalid(
            f"{name} is a host of a fleet, and there is no {DEFAULT_FLEET} in this folder",
            hint="Name the fleet file: --fleet FILE. Without a host, this machine is explained",
        )
    fleet = load_fleet(fleet_file)
    if name not in fleet.hosts:
        near = difflib.get_close_matches(name, list(fleet.hosts), n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise FleetInvalid(f"{fleet_file} has no host {name!r}{meant}", hint=f"It has: {', '.join(fleet.hosts)}")
    argv = ["evidence", "--json", *(["--mount", mount] if mount else [])]
    endpoints = transport.endpoints(fleet, fleet_file.resolve().parent, [name])
    for answer in transport.fan_out(endpoints, hostapp.build(), argv, timeout=timeout):
        if answer.error is not None or answer.document is None:
            raise answer.error or HostUnreachable(f"{name}: no answer")
        return replace(explained(answer.document, mount), host=name)
    raise HostUnreachable(f"{name}: no answer")


def of_file(file: Path, mount: str) -> Explanation:
    """Replay evidence that was saved: by the host program's `evidence`, or its `validate --with-evidence`."""
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as caught:
        raise GdsError(f"{file}: cannot be read: {caught.strerror}") from None
    except ValueError as caught:
        raise GdsError(
            f"{file}: not evidence: {caught}", hint="Save it on the host: gdsdeploy-host.pyz evidence"
        ) from None
    inside = found.get("evidence") if isinstance(found, dict) else None
    document = inside if isinstance(inside, dict) else found
    if not isinstance(document, dict) or not isinstance(document.get("files"), dict):
        raise GdsError(f"{file}: not evidence of a host", hint="Save it on the host: gdsdeploy-host.pyz evidence")
    return explained(document, mount)


def explained(document: Any, mount: str) -> Explanation:
    """What ``document`` says of ``mount``, else of every mount; raises GdsError where nothing is mounted."""
    facts = facts_from(document)
    try:
        return explain(facts, report.stack(facts), mount)
    except NoSuchMountError as reason:
        raise GdsError(str(reason), hint="Without MOUNT, every mount that may hold data is explained") from None
