"""Hosts without a scheduler: nobody has to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout.drain.drainer import State


class Nothing:
    """Takes nobody out of work, and asks nobody."""

    def check(self, hosts: Sequence[str]) -> list[str]:  # noqa: ARG002 - nobody is asked
        """Nothing speaks against it."""
        return []

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        """Every host is in."""
        return {host: State(out=False) for host in hosts}

    def drain(self, host: str, reason: str, *, timeout: float, progress: Callable[[str], None]) -> Mapping[str, Any]:  # noqa: ARG002
        """As if it were done."""
        return {"drained": True, "reason": reason, "was": ""}

    def undrain(self, host: str, reason: str, *, progress: Callable[[str], None]) -> Mapping[str, Any]:  # noqa: ARG002
        """As if it were done."""
        return {"returned": True, "reason": ""}


def drainer(settings: Drain, fleet_dir: Path) -> Nothing:  # noqa: ARG001 - nothing is set
    """What the fleet file says."""
    return Nothing()
