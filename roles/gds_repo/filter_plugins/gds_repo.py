"""Ansible filters: which sources a host lacks, and which of ours nothing else may come from.

They run on the controller, where gdsdeploy is installed.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gdsdeploy.repo import dnfpins, zyppins
from gdsdeploy.repo.lacking import exclusive, lacking, sources_from_grep


def gds_repo_lacking(lines: list[str], indices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stanzas (uri, suite, components, signed_by) to add to the sources that ``grep --with-filename`` showed."""
    return [asdict(stanza) for stanza in lacking(sources_from_grep(lines), indices)]


def gds_repo_exclusive(lines: list[str], indices: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Sources (uri, release) of ours for nothing but the stack, in what ``apt-get indextargets`` showed."""
    return exclusive(lines, indices)


def gds_repo_nevras(pins: list[dict[str, Any]]) -> list[str]:
    """NAME-EPOCH:VERSION-RELEASE.* of every pin, as dnf takes it in its lists."""
    return dnfpins.nevras(pins)


def gds_repo_streams(lines: list[str]) -> list[str]:
    """NAME:STREAM of every enabled module, from what grep showed of dnf's modules.d."""
    return dnfpins.streams(lines)


def gds_repo_zypp_locks(pins: list[dict[str, Any]], deny: list[str], indices: list[dict[str, Any]]) -> str:
    """Our locks as zypper takes them in its file."""
    exclusive = [f"gdsdeploy-{index['repository']}" for index in indices if index.get("exclusive")]
    return zyppins.locks(pins, deny, exclusive)


def gds_repo_zypp_merged(there: str, before: str, after: str) -> str:
    """Zypper's file of locks with ours of the last time replaced by those of now."""
    return zyppins.merged(there, before, after)


class FilterModule:
    """Registers the filters with Ansible."""

    def filters(self) -> dict[str, Any]:
        """Name → function."""
        return {
            "gds_repo_lacking": gds_repo_lacking,
            "gds_repo_exclusive": gds_repo_exclusive,
            "gds_repo_nevras": gds_repo_nevras,
            "gds_repo_streams": gds_repo_streams,
            "gds_repo_zypp_locks": gds_repo_zypp_locks,
            "gds_repo_zypp_merged": gds_repo_zypp_merged,
        }
