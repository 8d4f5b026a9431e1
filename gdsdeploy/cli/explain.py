"""``gdsdeploy explain``, and ``gdscheck``: the output of NVIDIA's gdscheck as data."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.cli.verbs import Verbs
from gdsdeploy.errors import ChecksFailed, ChecksUnknown, GdsError, translated
from gdsdeploy.host.errors import UsageError
from gdsdeploy.host.gdscheck import document, reader
from gdsdeploy.host.gdscheck.reader import DIRECT, UNKNOWN
from gdsdeploy.host.io import reading
from gdsdeploy.host.model.finding import FAIL, PASS
from gdsdeploy.ssh.endpoint import TIMEOUT

if TYPE_CHECKING:
    from gdsdeploy.host.facts import HostFacts

# What an answer needs is imported by the function that gives it: --error prints a table and asks no host.


def _is_host(given: options.Given) -> bool:
    """Whether the first word is neither a path nor a process of this machine."""
    first = str(given.get("HOST", "/"))
    return not first.startswith("/") and ("MOUNT" in given or not first.isdecimal())


@click.command()
@options.combined(
    options.alone("--log", "--json"),
    options.alone("--error", "--json"),
    options.alone("--evidence", "--json"),
    options.needs("HOST", "--fleet", "--timeout", "--run-inventory", holds=_is_host),
)
@click.argument("host", required=False, shell_complete=options.complete_host_or_file)
@click.argument("mount", required=False, metavar="[MOUNT | PID]")
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--log",
    "logs",
    multiple=True,
    is_flag=False,
    flag_value="-",
    metavar="FILE...",
    help="Explain pasted logs of any kind instead; - is standard input.",
)
@options.fleet_of_host
@click.option("--evidence", type=options.PATH, metavar="FILE", help="Explain saved evidence; no host is asked.")
@click.option("--error", metavar="CODE", help="Explain a cuFile error instead: 5027, a name, cuda:100, -22.")
@options.timeout(TIMEOUT, "Seconds for the host.")
@options.run_inventory
@options.as_json()
def explain(
    host: str | None,
    mount: str | None,
    more: tuple[str, ...],
    logs: tuple[str, ...],
    fleet: Path,
    evidence: Path | None,
    error: str | None,
    timeout: float,
    run_inventory: bool,
    as_json: bool,
) -> None:
    """Explain why I/O on a mount doesn't take the direct path.

    For each mount that may hold data, or for MOUNT alone, it shows the path of its I/O (nvidia-fs, p2pdma, compat,
    broken, or not proven) and the causes, the root cause first. Each cause has its evidence, what to do, and a link to
    the official documentation. If MOUNT is a file, it explains that file's mount, and the file's own flags count.

    With the id of a process instead of MOUNT, it says which path the I/O of this process has taken, and why.

    Without HOST, or if the first argument begins with /, it explains this machine. Run it as root, or it lists what it
    couldn't read. HOST is asked once over SSH and stays unchanged.

    The exit code is 0 whatever the paths are; `gdsdeploy validate` fails on them. With --log it is 31 if nothing in the
    text is known.

    \b
    Examples:
      gdsdeploy explain                              # every mount of this machine
      gdsdeploy explain /data/train.bin              # the mount of this file
      gdsdeploy explain gpu1 /mnt/nvme               # on the host gpu1 of fleet.yml
      gdsdeploy explain gpu1 4711                    # a process of gpu1: docs/explain.md
      gdsdeploy explain gpu1 --json | jq -r '.mounts[] | [.mount, .path, .causes[0].id] | @tsv'
      gdsdeploy explain --evidence gpu1.json
      gdsdeploy explain gpu1 --evidence case-4711.tar.gz
      gdsdeploy explain --error 5027
      gdsdeploy explain --log cufile.log dmesg.txt   # the causes that pasted text shows: docs/logs.md
      dmesg | gdsdeploy explain --log
    """
    if logs:
        _logs([*logs, *(name for name in (host, mount) if name is not None), *more], as_json)
        return
    options.require(not more, f"no third argument is expected: {' '.join(more)}")
    if error is not None:
        options.require(host is None, f"{host} is not expected beside --error CODE")
        _print(as_json, *_error(error))
        return
    if host is not None and host.startswith("/"):
        options.require(mount is None, f"{host} is a path, so no second argument is expected; HOST comes first")
        host, mount = None, host
    if host is not None and host.isdecimal() and mount is None:
        host, mount = None, host

    def facts(of: str) -> HostFacts:
        return _facts(host, of, fleet, evidence, timeout, run_inventory=run_inventory)

    if mount and mount.isdecimal():
        _print(as_json, *_answer(facts(""), host or "this host", "", pid=int(mount[:10])))
        return
    options.require(mount is None or mount.startswith("/"), f"MOUNT is an absolute path, and {mount!r} isn't")
    path = os.path.normpath(mount) if mount else ""
    _print(as_json, *_answer(facts(path), host or "this host", path))


@click.command()
@click.option("--evidence", type=options.PATH, metavar="FILE", help="Diagnose saved evidence, without its processes.")
@options.as_json()
def doctor(evidence: Path | None, as_json: bool) -> None:
    """Show on one screen what stands between this machine's storage and its GPUs.

    It needs no fleet file and changes nothing. It shows what to do first, the versions of the stack, the rules that
    speak about them, the path of each mount with its first cause, and the processes that bounce. Run it as root, or it
    lists what it couldn't read.

    \b
    Exit code, the first of these that applies:
      30   something keeps data off the direct path; the first line says what
      31   what is needed to tell couldn't be read
      0    nothing was found that keeps data off the direct path

    \b
    Examples:
      gdsdeploy doctor
      gdsdeploy doctor --json | jq -r '.first.fix'
      gdsdeploy doctor --evidence gpu1.json
    """
    from gdsdeploy.host import doctor as diagnosing
    from gdsdeploy.ssh import reply_schema
    from gdsdeploy.validate.facts import facts_of_this_machine

    processes = None
    if evidence is None:
        with console.step("Examining this machine"):
            facts, processes = diagnosing.examine(lambda: facts_of_this_machine(""))
    else:
        facts = reply_schema.saved_facts_of_host(evidence, "")
    with reply_schema.unexpected_errors("this host"):
        diagnosis = diagnosing.diagnose(facts, processes)
        _print(as_json, diagnosing.as_document(diagnosis), diagnosing.render(diagnosis))
    if diagnosis.verdict != PASS:
        error = ChecksFailed if diagnosis.verdict == FAIL else ChecksUnknown
        raise error(diagnosis.why, hint=diagnosis.advice)


def _answer(facts: HostFacts, host: str, path: str, pid: int | None = None) -> tuple[Any, str]:
    """The document and the text, about a mount, every mount, or one process."""
    from gdsdeploy.host.explain import as_document, render, render_process
    from gdsdeploy.host.subjects import programs
    from gdsdeploy.ssh import reply_schema
    from gdsdeploy.validate.facts import explain_facts

    with reply_schema.unexpected_errors(host):
        if pid is None:
            explanation = explain_facts(facts, path)
            return as_document(explanation), render(explanation)
        try:
            explained = programs.explain_process(facts, pid)
        except programs.NoSuchProcessError as reason:
            hint = "See which processes there are: gdsdeploy watch HOST --once"
            raise GdsError(f"{host}: {reason}", hint=hint) from None
        return programs.process_document(explained), render_process(explained)


def _print(as_json: bool, document: Any, text: str) -> None:
    if as_json:
        console.json(document)
    else:
        console.data(text)


def _facts(
    host: str | None, mount: str, fleet: Path, evidence: Path | None, timeout: float, *, run_inventory: bool
) -> HostFacts:
    """The facts of saved evidence, of a host, or of this machine; ``host`` is their name where it's known."""
    from gdsdeploy.fleetfile.load import confined
    from gdsdeploy.host.facts.document import is_bundle
    from gdsdeploy.ssh import reply_schema
    from gdsdeploy.validate.facts import facts_of_host, facts_of_this_machine

    if evidence is not None:
        with reply_schema.evidence_errors():
            options.require(host is None or is_bundle(str(evidence)), "--evidence FILE replaces HOST: leave HOST out")
        facts = reply_schema.saved_facts_of_host(evidence, host or "")
    elif host is not None:
        with console.step(f"Asking {host}"):
            mode = confined(run_inventory=run_inventory)
            facts = facts_of_host(fleet, host, mount, timeout, mode=mode)
    else:
        with console.step("Examining this machine"):
            facts = facts_of_this_machine(mount)
    return facts.but(name=host) if host else facts


def _error(code: str) -> tuple[Any, str]:
    from gdsdeploy.host.libcufile import errors as cufile_errors

    try:
        return cufile_errors.document(code), cufile_errors.text(code)
    except cufile_errors.UnknownCodeError as unknown:
        names = ", ".join(unknown.nearest)
        raise GdsError(unknown.message, hint=f"The nearest are: {names}" if names else None) from None


def _logs(names: list[str], as_json: bool) -> None:
    from gdsdeploy.host.logs import judge

    with translated(UsageError, lambda error: GdsError(str(error))):
        answer = judge.answer_to(judge.read_texts(names))
    _print(as_json, judge.as_document(answer), judge.render(answer))
    if not answer.recognised:
        hint = "Add more of it: what the kernel says (dmesg), cufile.log, or the whole output of gdscheck -p"
        raise ChecksUnknown("nothing in this text is known here", hint=hint)


STDIN = "-"


@click.group(cls=Verbs)
def gdscheck() -> None:
    """Parse the output of NVIDIA's gdscheck.

    gdscheck succeeds even if every I/O is in compat mode, and its format changed between releases. On a host without
    gdscheck, `gdsdeploy-host.pyz gdscheck` makes the same report from libcufile alone.
    """


@gdscheck.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--exit-status",
    type=click.IntRange(-255, 255),
    metavar="N",
    help="gdscheck's exit status, if FILE doesn't end in a line like rc=255. It doesn't change the verdict.",
)
@click.option(
    "--require", type=click.Choice([DIRECT]), help="Fail unless every FILE has this verdict, for use as a gate."
)
@options.as_json("Print one JSON object per file, each on one line.")
def parse(files: tuple[Path, ...], exit_status: int | None, require: str | None, as_json: bool) -> None:
    """Parse the output of `gdscheck -p`, or a cufile.log, of libcufile 1.4 to 1.20.

    Each FILE is one recording; without FILE, or with -, it is standard input. If a file has several runs, the last one
    counts, and the output says so. Only a cufile.log of logging.level INFO, DEBUG or TRACE has the rows; for any other
    log, use `gdsdeploy explain --log`.

    \b
    The verdict follows from the rows, never from the exit status or from "Platform verification succeeded":
      direct     a storage type has a direct path, and a GPU supports it
      compat     the report is complete, and no I/O takes a direct path
      broken     the report claims a direct path that its own versions rule out
      refused    the library gave up; the reason is shown
      errors     a log without a report: calls failed, and the library didn't give up
      unknown    the text is cut, mixed, or not gdscheck's

    \b
    Exit code:
      31   the verdict on a FILE is unknown
      30   --require: a FILE has another verdict
      0    every FILE has another verdict

    \b
    Examples:
      gdscheck -p 2>&1 | gdsdeploy gdscheck parse
      gdscheck -p 2>&1 | gdsdeploy gdscheck parse -q --require direct || drain-this-node
      gdsdeploy gdscheck parse --json gpu1.txt gpu2.txt | jq -r '[.file, .verdict] | @tsv'
      gdsdeploy gdscheck parse /var/log/cufile.log
    """
    unknown: list[str] = []
    others: list[str] = []
    for file in files or (Path(STDIN),):
        name = str(file)
        recording = reader.read_recording(_bytes(file), exit_status)
        verdict = recording.report.verdict
        unknown += [name] * (verdict == UNKNOWN)
        others += [f"{name}: {verdict}"] * (verdict not in (UNKNOWN, require))
        if as_json:
            console.data(json.dumps(document.document(recording, name), ensure_ascii=False))
        else:
            console.data(document.text(recording, name))
    if unknown:
        hint = (
            "Record one complete run again: gdscheck -p >FILE 2>&1; or read any log with: gdsdeploy explain --log FILE"
        )
        raise ChecksUnknown(f"{', '.join(unknown)}: not a complete output of gdscheck, nor a cufile.log", hint=hint)
    if require and others:
        raise ChecksFailed(f"the verdict isn't {require}: {', '.join(others)}", hint="Read why: gdsdeploy explain")


def _bytes(file: Path) -> bytes:
    """The beginning of a file: up to one byte more than is parsed."""
    with translated(OSError, lambda error: click.FileError(str(file), hint=error.strerror or str(error))):
        if str(file) == STDIN:
            return sys.stdin.buffer.read(reader.LIMIT + 1)
        return reading.beginning(str(file), reader.LIMIT)


commands = {"doctor": doctor, "explain": explain, "gdscheck": gdscheck}
