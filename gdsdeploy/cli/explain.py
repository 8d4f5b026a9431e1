"""``gdsdeploy explain``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.errors import GdsError, did_you_mean
from gdsdeploy.host.explain import Explanation, as_document, consumers, launch
from gdsdeploy.host.explain.text import render
from gdsdeploy.host.facts import HostFacts
from gdsdeploy.host.facts.evidence_file import is_bundle
from gdsdeploy.host.libcufile import errors as cufile_errors
from gdsdeploy.ssh import evidence_file, reply_schema
from gdsdeploy.ssh.ask import TIMEOUT
from gdsdeploy.validate import support
from gdsdeploy.validate.explain import (
    DEFAULT_FLEET,
    facts_of_host,
    facts_of_this_machine,
    of_file,
    of_host,
    of_this_machine,
)


@click.command()
@click.argument("host", required=False)
@click.argument("mount", required=False)
@click.option(
    "--fleet", type=options.FILE, default=DEFAULT_FLEET, show_default=True, metavar="FILE", help="HOST's fleet file."
)
@click.option(
    "--evidence",
    type=click.Path(path_type=Path, exists=True),
    metavar="FILE",
    help="Explain saved evidence; no host is asked.",
)
@click.option("--error", metavar="CODE", help="Explain a cuFile error instead: 5027, a name, cuda:100, -22.")
@click.option(
    "--for", "consumer", metavar="NAME", help="Show what kvikio, nccl or another consumer needs, and if it holds."
)
@click.option(
    "--launch",
    "manager",
    type=click.Choice(tuple(launch.MANAGERS)),
    help="Print how to start a container that sees what cuFile needs, with MOUNT in it.",
)
@click.option(
    "--support", is_flag=True, help="Show which paths a filesystem (or all) can take instead, without a host."
)
@click.option("--mode", metavar="MODE", help="With --support: nvidia-fs, p2pdma, peermem, dmabuf or compat.")
@click.option("--libcufile", metavar="V", help="With --support: this release of libcufile, e.g. 1.15.")
@click.option("--kernel", metavar="K", help="With --support: this kernel, e.g. 6.8.")
@click.option("--gpu", metavar="CLASS", help="With --support: this class of GPUs, e.g. hopper.")
@options.timeout(TIMEOUT, "Seconds for the host.")
@options.as_json()
def command(
    host: str | None,
    mount: str | None,
    fleet: Path,
    evidence: Path | None,
    error: str | None,
    consumer: str | None,
    manager: str | None,
    timeout: float,
    as_json: bool,
    **query: str | None,
) -> None:
    """Explain why I/O on a mount doesn't take the direct path.

    For each mount that may hold data, or for MOUNT alone, it shows the path of its I/O (nvidia-fs, p2pdma, compat,
    broken, or not proven) and the causes, the root cause first. Each cause has its evidence, what to do, and a link to
    the official documentation. If MOUNT is a file, it explains that file's mount, and the file's own flags count.

    Without HOST, or if the first argument begins with /, it explains this machine. Run it as root, or it lists what it
    couldn't read. HOST is asked once over SSH and stays unchanged.

    The exit code is 0 whatever the paths are; `gdsdeploy validate` fails on them.

    \b
    Examples:
      gdsdeploy explain                              # every mount of this machine
      gdsdeploy explain /data/train.bin              # the mount of this file
      gdsdeploy explain gpu1 /mnt/nvme               # on the host gpu1 of fleet.yml
      gdsdeploy explain gpu1 --json | jq -r '.mounts[] | [.mount, .path, .causes[0].id] | @tsv'
      gdsdeploy explain --evidence gpu1.json
      gdsdeploy explain gpu1 --evidence case-4711.tar.gz
      gdsdeploy explain --error 5027
      gdsdeploy explain gpu1 --for nccl              # what NCCL needs on gpu1, and whether it holds
      gdsdeploy explain gpu1 /mnt/nvme --launch podman
      gdsdeploy explain --support                    # every filesystem and mode: docs/support.md
      gdsdeploy explain --support wekafs --libcufile 1.15 --gpu ampere
    """
    if query.pop("support"):
        alone = mount is None and evidence is None and error is None and consumer is None and manager is None
        options.require(alone, "--support takes a FILESYSTEM only")
        _support(host or "", {name: value or "" for name, value in query.items()}, as_json)
        return
    options_of_support = [f"--{name}" for name, value in query.items() if value is not None]
    options.require(not options_of_support, "{} needs --support".format(" and ".join(options_of_support)))
    if error is not None:
        alone = host is None and evidence is None and consumer is None and manager is None
        options.require(alone, "--error CODE doesn't go with HOST, --evidence, --for or --launch")
        _error(error, as_json)
        return
    if consumer is not None:
        options.require(manager is None, "--for and --launch are two questions; ask one of them")
        no_mount = mount is None and not (host or "").startswith("/")
        options.require(no_mount, "--for NAME is about a host, so it takes no MOUNT")
        _consumer(consumer, host, fleet, evidence, timeout, as_json)
        return
    if host is not None and host.startswith("/"):
        options.require(mount is None, f"{host} is a path, so no second argument is expected; HOST comes first")
        host, mount = None, host
    if manager is not None:
        _launch(manager, host, _absolute(mount), fleet, evidence, timeout, as_json)
        return
    explanation = _explanation(host, mount, fleet, evidence, timeout)
    if as_json:
        console.json(as_document(explanation))
    else:
        console.data(render(explanation))


def _explanation(
    host: str | None, mount: str | None, fleet: Path, evidence: Path | None, timeout: float
) -> Explanation:
    mount = _absolute(mount)
    if evidence is not None:
        options.require(host is None or _is_bundle(evidence), "--evidence FILE replaces HOST")
        return of_file(evidence, host or "", mount or "")
    if host is not None:
        with console.step(f"Asking {host}"):
            return of_host(fleet, host, mount or "", timeout)
    with console.step("Examining this machine"):
        return of_this_machine(mount or "")


def _absolute(mount: str | None) -> str | None:
    options.require(mount is None or mount.startswith("/"), f"MOUNT is an absolute path, and {mount!r} isn't")
    return mount and os.path.normpath(mount)


def _launch(
    manager: str, host: str | None, mount: str | None, fleet: Path, evidence: Path | None, timeout: float, as_json: bool
) -> None:
    needs = launch.view(_facts(host, fleet, evidence, timeout), [mount] if mount else [])
    if as_json:
        console.json({"version": 1, "manager": manager, "launch": launch.launch(manager, needs)})
    else:
        console.data(launch.launch(manager, needs))


def _consumer(name: str, host: str | None, fleet: Path, evidence: Path | None, timeout: float, as_json: bool) -> None:
    names = consumers.names()
    if name not in names:
        words = f"there is no consumer {name!r}{did_you_mean(name, names)}"
        raise GdsError(words, hint=f"The consumers are: {', '.join(names)}")
    facts = _facts(host, fleet, evidence, timeout)
    with reply_schema.unexpected_errors(host or "this host"):
        needs = consumers.needs_of(name, facts)
    if as_json:
        console.json(consumers.as_document(needs))
    else:
        console.data(consumers.render(needs))


def _facts(host: str | None, fleet: Path, evidence: Path | None, timeout: float) -> HostFacts:
    if evidence is not None:
        options.require(host is None or _is_bundle(evidence), "--evidence FILE replaces HOST")
        return evidence_file.of_host(evidence, host or "")
    if host is not None:
        with console.step(f"Asking {host}"):
            return facts_of_host(fleet, host, timeout=timeout)
    with console.step("Examining this machine"):
        return facts_of_this_machine()


def _is_bundle(file: Path) -> bool:
    with evidence_file.evidence_errors():
        return is_bundle(str(file))


def _support(filesystem: str, query: dict[str, str], as_json: bool) -> None:
    try:
        rows = support.matrix(filesystem, **query)
    except support.UnknownNameError as unknown:
        raise GdsError(unknown.message, hint=unknown.hint) from None
    if as_json:
        console.json(support.as_document(rows))
    else:
        console.data(support.render(rows))


def _error(code: str, as_json: bool) -> None:
    try:
        document, text = cufile_errors.document(code), cufile_errors.text(code)
    except cufile_errors.UnknownCodeError as unknown:
        names = ", ".join(unknown.nearest)
        raise GdsError(unknown.message, hint=f"The nearest are: {names}" if names else None) from None
    if as_json:
        console.json(document)
    else:
        console.data(text)
