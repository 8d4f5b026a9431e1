"""``gdsdeploy explain``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import GdsError
from gdsdeploy.host import cufile_errors
from gdsdeploy.host.explain import Explanation, as_document
from gdsdeploy.host.explain.text import render
from gdsdeploy.host.facts.evidence_file import is_bundle
from gdsdeploy.ssh import evidence_file
from gdsdeploy.validate.explain import DEFAULT_FLEET, TIMEOUT, of_file, of_host, of_this_machine


@click.command()
@click.argument("host", required=False)
@click.argument("mount", required=False)
@click.option(
    "--fleet",
    type=options.FILE,
    default=DEFAULT_FLEET,
    show_default=True,
    metavar="FILE",
    help="The fleet that HOST is of.",
)
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="Explain saved evidence; no host is asked.",
)
@click.option("--error", metavar="CODE", help="Say what an error of cuFile means instead: 5027, a name, cuda:100, -22.")
@options.timeout(TIMEOUT, "Seconds for the host.")
@options.as_json()
def command(
    host: str | None,
    mount: str | None,
    fleet: Path,
    evidence: Path | None,
    error: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Say why I/O on a mount does not take the direct path.

    For each mount that may hold data, or for MOUNT alone: the path its I/O takes (nvidia-fs, p2pdma, compat, broken,
    or not proven), and the causes in order, the root first, each with what it was seen by, what to do, and where the
    official documentation has it. MOUNT may be a file: then the mount is meant that it lies on, and the file's own
    flags count.

    Without HOST, and with a first argument that begins with /, this machine is explained; as root, or it says what it
    could not see. HOST is asked once over SSH, and nothing is changed on it.

    The exit code is 0 whatever the paths are: `gdsdeploy validate` is what fails.

    \b
    Examples:
      gdsdeploy explain                              # every mount of this machine
      gdsdeploy explain /data/train.bin              # the mount that this file lies on
      gdsdeploy explain gpu1 /mnt/nvme               # of the host gpu1 in fleet.yml
      gdsdeploy explain gpu1 --json | jq -r '.mounts[] | [.mount, .path, .causes[0].id] | @tsv'
      gdsdeploy explain --evidence gpu1.json
      gdsdeploy explain gpu1 --evidence case-4711.tar.gz
      gdsdeploy explain --error 5027
    """
    if error is not None:
        _require(host is None and evidence is None, "--error CODE stands alone")
        _error(error, as_json)
        return
    if host is not None and host.startswith("/"):
        _require(mount is None, f"{host} is a path, so no second argument is expected; HOST comes first")
        host, mount = None, host
    found = _explanation(host, mount, fleet, evidence, timeout)
    console.data(json.dumps(as_document(found), indent=2, ensure_ascii=False) if as_json else render(found))


def _explanation(
    host: str | None, mount: str | None, fleet: Path, evidence: Path | None, timeout: float
) -> Explanation:
    if mount is not None:
        _require(mount.startswith("/"), f"MOUNT is an absolute path, and {mount!r} is none")
        mount = os.path.normpath(mount)
    if evidence is not None:
        _require(host is None or _is_bundle(evidence), "--evidence FILE takes the place of HOST")
        return of_file(evidence, host or "", mount or "")
    if host is not None:
        with console.step(f"Asking {host}"):
            return of_host(fleet, host, mount or "", timeout)
    with console.step("Looking at this machine"):
        return of_this_machine(mount or "")


def _is_bundle(file: Path) -> bool:
    with evidence_file.raised():
        return is_bundle(str(file))


def _error(code: str, as_json: bool) -> None:
    try:
        found = cufile_errors.document(code)
        words = cufile_errors.text(code)
    except cufile_errors.UnknownCodeError as unknown:
        near = ", ".join(unknown.nearest)
        raise GdsError(unknown.message, hint=f"Nearest are: {near}" if near else None) from None
    console.data(json.dumps(found, indent=2, ensure_ascii=False) if as_json else words)


def _require(holds: bool, words: str) -> None:
    if not holds:
        raise click.UsageError(words)
