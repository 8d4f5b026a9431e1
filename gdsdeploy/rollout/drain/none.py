"""Hosts without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from gdsdeploy.rollout.drain.drainer import DrainResult, Progress, ReturnResult, State


class Nothing:
    """Every host is in work, and every drain is done at once."""

    def check(self, hosts: Sequence[str]) -> list[str]:  # noqa: ARG002 - there is no program to ask
        return []

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        return {host: State(out=False) for host in hosts}

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:  # noqa: ARG002
        return {"drained": True, "reason": reason, "was": ""}

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:  # noqa: ARG002
        return {"returned": True, "reason": ""}
