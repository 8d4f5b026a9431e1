"""Runs ansible-playbook: arguments and environment from pure functions, events out of its output."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError

from gdsdeploy import console, resources, run
from gdsdeploy.converge.diff import change
from gdsdeploy.errors import (
    Busy,
    ConvergeFailed,
    GdsError,
    HostUnfit,
    HostUnreachable,
    ModuleBuildFailed,
    NotProvisioned,
    did_you_mean,
)
from gdsdeploy.fleetfile.ansible_inventory import PYTHON, configured
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.io import jsontext
from gdsdeploy.host.io.wording import line, quoted
from gdsdeploy.report import model
from gdsdeploy.ssh.endpoint import TAIL_WIDTH, WORDS

Say = Callable[[str], None]
MARK = "\x1e"
#: Variable with what follows the mark in a run: hosts, whose words are in Ansible's output, too, don't know it.
EVENTS = "GDSDEPLOY_EVENTS"
#: Seconds after which callbacks/gds_events.py says that a task is running.
LONG = 5.0
#: Lines of a failed command's output that the error quotes.
TAIL_LINES = 12
#: Bytes that Ansible's process, and each of the processes that it has for hosts, may take, and of a file that is
#: fetched: hosts fill them.
MEMORY = 2 * 2**30
#: Bytes of memory besides, for each byte of the inventory.  ansible-core 2.19 takes 17 (500 hosts of 19 kB).
PER_BYTE = 64
#: Kind of an error of the host program → the error here; of others it is ConvergeFailed.
KINDS: Mapping[str, type[GdsError]] = {
    "modules": ModuleBuildFailed,
    "busy": Busy,
    "not-delivered": NotProvisioned,
}
#: Roles that end before anything is installed: a host that they refuse can't take the lock.
_BEFORE = ("gds_preflight", "gds_repo")
#: Ansible's whole message about a command that failed.
_ENDED = "non-zero return code"
#: Its exit statuses at the end of a playbook: the bits of failed hosts, silent hosts, and a play that was cut short.
_RECAPPED = range(0, 10, 2)
#: Destinations of ansible-playbook's flags that change neither what is run nor with which variables.
_CONVERGE = frozenset({"verbosity", "forks", "timeout", "subset"})
_LISTS = "it plays nothing; gdsdeploy plan shows what would be done, and gdsdeploy inventory writes what it lists"
_ASKS = "it asks at a terminal, which Ansible doesn't have here"
#: Destinations of its flags that don't go with gdsdeploy → the flag, and why.
_REFUSED = {
    "inventory": ("--inventory", "the fleet file says which hosts there are; --limit selects hosts"),
    "listhosts": ("--list-hosts", _LISTS),
    "listtags": ("--list-tags", _LISTS),
    "listtasks": ("--list-tasks", _LISTS),
    "syntax": ("--syntax-check", _LISTS),
    "step": ("--step", _ASKS),
    "ask_pass": ("--ask-pass", f"{_ASKS}; use --connection-password-file FILE"),
    "become_ask_pass": ("--ask-become-pass", f"{_ASKS}; use --become-password-file FILE"),
    "ask_vault_pass": ("--ask-vault-password", f"{_ASKS}; use --vault-password-file FILE"),
}
#: Prints, as JSON, how ansible-playbook's own parser reads the arguments, or why it refuses them, and all its flags.
_PARSER = """\
import contextlib, io, json, sys
from ansible.cli.playbook import PlaybookCLI

cli = PlaybookCLI(["ansible-playbook", *sys.argv[1:]])
cli.init_parser()
error = ""

def refuse(text):
    global error
    error = text
    raise SystemExit(2)

cli.parser.error = refuse
read, extra = {}, []
try:
    with contextlib.redirect_stdout(io.StringIO()):
        known, extra = cli.parser.parse_known_args(sys.argv[1:])
    read = vars(known)
except SystemExit:
    error = error or f"{sys.argv[1]}: it would do nothing else; run ansible-playbook itself"
flags = sorted(cli.parser._option_string_actions)
if any(word.split("@")[-1].startswith("prompt") for word in read.get("vault_ids") or ()):
    read["ask_vault_pass"] = True
given = [name for name, value in read.items() if name != "args" and value != cli.parser.get_default(name)]
limit, books = read.get("subset"), read.get("args")
print(json.dumps(dict(error=error, extra=extra, books=books, flags=flags, given=given, limit=limit)))
"""


class FlagsRefused(ValueError):
    """A flag for ansible-playbook that can't be passed on; the text says which, and why."""


@dataclass
class HostResult:
    """What a run did on one host: ``changed`` holds "role: task" of every task that changed something, in order."""

    changed: list[str] = field(default_factory=list)
    #: whether Ansible said that it was through with the host
    ended: bool = False
    #: every change that a module made, as data
    changes: list[Change] = field(default_factory=list)
    failure: GdsError | None = None
    #: of the error that a module gave; empty where Ansible or a program failed
    kind: str = ""


@dataclass
class Outcome:
    """A finished run of a playbook."""

    status: int
    hosts: dict[str, HostResult] = field(default_factory=dict)


@dataclass(frozen=True)
class Flags:
    """Flags for ansible-playbook, as its own parser reads them: also ``--lim NAME``, ``-lNAME`` and ``-CD``."""

    words: tuple[str, ...] = ()
    #: destinations of the flags that differ from their defaults
    given: frozenset[str] = frozenset()
    #: of ``-l``; which hosts are played is up to gdsdeploy
    limit: str | None = None

    @property
    def checks(self) -> bool:
        """Whether ansible-playbook changes nothing with them."""
        return "check" in self.given

    @property
    def converges(self) -> bool:
        """Whether they keep to what a plan judges."""
        return self.given <= _CONVERGE


NO_FLAGS: Final = Flags()


def argv(playbook: str, inventory: Path, *, limit: Sequence[str], extra: Sequence[str]) -> list[str]:
    """The command line; of two limits, Ansible obeys the last one.  ansible-playbook is that of this Python."""
    command = [*PYTHON, "-m", "ansible", "playbook", "--inventory", str(inventory), *extra]
    if limit:
        command += ["--limit", ",".join(limit)]
    return [*command, str(resources.playbook(playbook))]


def environment(
    *, control_dir: Path, program: Path, inherited: Mapping[str, str] = os.environ
) -> dict[str, str | None]:
    """Our ansible.cfg and what depends on this run.  None removes a variable that the user's environment has.

    control_dir: for OpenSSH's sockets, whose paths are limited to about 100 bytes; Ansible's home, too, because it
    loads plugins from there.  program: the host program, which the modules of the collection run.
    """
    return {
        **configured(inherited),
        "ANSIBLE_COLLECTIONS_PATH": str(resources.collections()),
        "ANSIBLE_CALLBACK_PLUGINS": str(resources.package() / "converge" / "callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "gds_events",
        "ANSIBLE_HOME": str(control_dir),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(control_dir),
        # A module that runs on this machine and is killed leaves its payload there.
        "TMPDIR": str(control_dir),
        "GDSDEPLOY_HOST_PROGRAM": str(program),
        EVENTS: secrets.token_hex(16),
        "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
    }


@contextlib.contextmanager
def control_folder() -> Iterator[Path]:
    """A folder for OpenSSH's sockets.  At the end, it is removed, and connections that are kept by them are closed."""
    # What is killed meanwhile may still write there.
    with tempfile.TemporaryDirectory(prefix="gds-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            # ssh has left its session and its parent to keep a connection; its title names the socket.
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if entry.read_bytes().startswith(f"ssh: {folder}/".encode()):
                        os.kill(int(entry.parent.name), signal.SIGTERM)


def flags(words: Sequence[str]) -> Flags:
    """The flags ``words``; raises FlagsRefused for what neither ansible-playbook nor gdsdeploy takes."""
    if not words:
        return Flags()
    result = run.run(
        [*PYTHON, "-c", _PARSER, *words, "playbook.yml"], doing="read the flags of ansible-playbook", env=configured()
    )
    parsed = json.loads(result.stdout)
    if unknown := [word for word in parsed["extra"] if word.startswith("-")]:
        suggestion = did_you_mean(unknown[0].partition("=")[0], parsed["flags"])
        raise FlagsRefused(f"{unknown[0]}: neither gdsdeploy nor ansible-playbook has this flag{suggestion}")
    if parsed["error"]:
        raise FlagsRefused(f"ansible-playbook: {parsed['error']}")
    if parsed["books"] != ["playbook.yml"]:
        raise FlagsRefused(f"{parsed['books'][0]}: not a flag; --limit selects hosts")
    for name in _REFUSED.keys() & parsed["given"]:
        raise FlagsRefused(": ".join(_REFUSED[name]))
    return Flags(tuple(words), frozenset(parsed["given"]), parsed["limit"])


def play(
    command: Sequence[str],
    env: Mapping[str, str | None],
    *,
    log: Path,
    progress: Callable[[str], None],
    each: Callable[[str], None] | None = None,
    inventory: int = 0,
) -> Outcome:
    """Run the playbook and return what it did; failures are in the outcome, not raised.

    each: takes lines about one host; None: ``progress`` does.
    log: receives everything Ansible itself prints.  inventory: its size in bytes, for which Ansible needs memory.
    """
    outcome = Outcome(status=0)
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    mark = MARK + (env.get(EVENTS) or "")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as sink:

        def take(text: str) -> None:
            if not _event(text, mark, outcome, (progress, each or progress), log):
                sink.write(text + "\n")
                sink.flush()
                tail.append(f"  | {line(text[:TAIL_WIDTH])}")

        memory = MEMORY + PER_BYTE * inventory
        outcome.status = run.stream(command, doing="run ansible-playbook", line=take, env=env, memory=memory)
    if outcome.status != 0 and not any(result.failure for result in outcome.hosts.values()):
        words = "\n".join([f"ansible-playbook ended with status {outcome.status}", *tail])
        raise ConvergeFailed(words, hint=f"Whole output: {log}")
    for name, result in outcome.hosts.items():
        # A failure ends the play of its host alone.
        if result.failure is None and not (result.ended and outcome.status in _RECAPPED):
            words = f"{name}: ansible-playbook ended with status {outcome.status} before it was through with this host"
            result.failure = ConvergeFailed(words, hint=f"Whole output: {log}")
    return outcome


class _Event(BaseModel):
    """A line of callbacks/gds_events.py."""

    event: Literal["play", "long", "build", "result", "recap"]
    name: str = ""
    host: str = ""
    role: str = ""
    task: str = ""
    status: str = ""
    seconds: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    changed: bool = False
    hosts: list[str] = []
    #: JSON of a _HostPart; of a build: what the host keeps in a file
    said: str = ""


class _HostPart(BaseModel):
    """The part of an event that comes from the host."""

    changes: list[Any] = []
    detail: dict[str, Any] = {}

    @classmethod
    def of(cls, text: str) -> _HostPart:
        """The part in ``text``; where that can't be read, the detail says so."""
        try:
            return cls.model_validate(jsontext.loads(text or "{}"))
        except ValueError as error:
            why = "" if isinstance(error, ValidationError) else f": {error}"
            return cls(detail={"msg": f"what the host says is malformed{why}"})


def _event(text: str, mark: str, outcome: Outcome, says: tuple[Say, Say], log: Path) -> bool:
    """Take in an event line; False for every other line, also for one that only begins like it.

    says: what takes lines about the run, and about one host.
    """
    if not text.startswith(mark):
        return False
    try:
        event = _Event.model_validate(jsontext.loads(text[len(mark) :]))
    except ValueError:
        return False
    place = f"  {event.host}: {event.role}: {event.task}"
    match event.event:
        case "play":
            says[0](f"▸ {event.name}")
        case "long":
            console.board.begin(event.host, f"{event.role}: {event.task}", ago=LONG)
            says[1](f"{place} …")
        case "build":
            words = model.build_words(event.said)
            console.board.tell(event.host, lambda: words)
        case "recap":
            for name in outcome.hosts.keys() & event.hosts:
                outcome.hosts[name].ended = True
        case "result":
            console.board.end(event.host, done=event.status == "ok")
            _take(event, place, outcome.hosts.setdefault(event.host, HostResult()), says[1], log)
    return True


def _take(event: _Event, place: str, result: HostResult, progress: Callable[[str], None], log: Path) -> None:
    host_part = _HostPart.of(event.said)
    for value in host_part.changes:
        # What a host says that isn't a change is left out.
        with contextlib.suppress(ValueError):
            result.changes.append(change(value))
    if event.changed and event.status == "ok":
        result.changed.append(f"{event.role}: {event.task}")
        progress(f"{place}: changed ({event.seconds:.0f} s)")
    if event.status in {"failed", "unreachable"}:
        if result.failure is None:
            result.failure = failure(event.host, event.role, event.task, event.status, host_part.detail, log)
            result.kind = str(_typed(host_part.detail).get("kind", ""))
        progress(f"{place}: failed")


def failure(host: str, role: str, task: str, status: str, detail: Mapping[str, Any], log: Path) -> GdsError:
    """The error for a failed task: typed by the module that failed, else explained by what Ansible says."""
    message = _words(detail.get("msg", "")).strip()
    whole = f"Whole output: {log}"
    if status == "unreachable":
        return HostUnreachable(f"{host}: lost during {role}: {message}", hint=whole)
    if typed := _typed(detail):
        return _of_kind(host, role, task, typed, whole)
    command = detail.get("cmd")
    if message == _ENDED and isinstance(command, list) and command:
        message = f"{_words(command[0])} ended with status {_words(detail.get('rc'))}"
    lines = [f"{host}: {role}: {task}: {message}"]
    for stream in ("stderr", "stdout"):
        output = str(detail.get(stream, "")).strip()
        if output and line(output) not in message:
            lines += [f"  | {line(part[:TAIL_WIDTH])}" for part in output.splitlines()[-TAIL_LINES:]]
            break
    return ConvergeFailed("\n".join(lines), hint=whole)


def _typed(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    """The error that a module of the collection gives: kind, message, hint; empty where there is none."""
    error = detail.get("gds_error")
    return error if isinstance(error, Mapping) else {}


def _of_kind(host: str, role: str, task: str, typed: Mapping[str, Any], whole: str) -> GdsError:
    message, hint = _words(typed.get("message", "")), _words(typed.get("hint") or "").rstrip(".")
    # On separate lines, because people copy the command at the end of a hint.
    hint = f"{hint}\n{whole}" if hint else whole
    kind = str(typed.get("kind", ""))
    if kind == "refused" and role in _BEFORE:
        return HostUnfit(f"{host}: {message}", hint=hint)
    if kind in KINDS:
        return KINDS[kind](f"{host}: {message}", hint=hint)
    return ConvergeFailed(f"{host}: {role}: {task}: {message}", hint=hint)


def _words(value: Any) -> str:
    """What a host says, as an error may have it."""
    return quoted(str(value)[:WORDS])
