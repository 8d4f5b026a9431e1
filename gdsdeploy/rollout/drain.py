"""Takes hosts out of work before they're changed, and brings them back: by Slurm, Kubernetes or a site's commands.

Every drain is signed with its reason, and only the rollout that signed it ends it.  Whether a host works is never
remembered: the scheduler is asked before everything that would disturb work.
"""

from __future__ import annotations

import abc
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, ClassVar, Generic, ParamSpec, TypedDict, TypeVar

from gdsdeploy import cancel, run
from gdsdeploy.errors import DrainFailed, FleetInvalid, MissingProgram, ProgramFailed, translated
from gdsdeploy.host.gate.gate import DRAINED, OURS, UNREACHABLE, WAS, Node, drain_argv, node_from, undrain_argv
from gdsdeploy.host.io.scontrol import FORMAT, SlurmError
from gdsdeploy.host.io.wording import first_few, line, quoted
from gdsdeploy.model.rollout import Standing
from gdsdeploy.model.rollout_settings import Drain, fill

#: How the reason of a rollout's drain begins; the boot gate's own begin with ``gdsdeploy: `` (host/gate/gate.py).
ROLLOUT = "gdsdeploy rollout "
#: Gets one line of text at a time.
Progress = Callable[[str], None]


def reason_of(rollout: str, text: str) -> str:
    """The reason with which the rollout of that id signs its drains, in one line: ``gdsdeploy rollout ID: text``."""
    return " ".join(f"{ROLLOUT}{rollout}: {text}".split())


def signature(reason: str) -> str:
    """The part of such a reason that names the rollout, ``gdsdeploy rollout ID:``; any other text as it is."""
    match = re.match(rf"{ROLLOUT}\S+:", reason)
    return match[0] if match else reason


def rollout_of(reason: str) -> str:
    """The id of the rollout that signed ``reason``; empty: no rollout did."""
    return signature(reason).removeprefix(ROLLOUT).removesuffix(":") if reason.startswith(ROLLOUT) else ""


class SchedulerAway(Exception):
    """A scheduler doesn't answer, so nothing is known about its hosts; that isn't a failure of theirs."""


@dataclass(frozen=True)
class State:
    """A host as its scheduler has it."""

    #: it gets no new work, whatever drained it
    out: bool
    #: empty: the scheduler has none
    reason: str = ""

    def standing(self, rollout: str) -> Standing:
        """Who keeps it out, for the rollout of that id."""
        if not self.out:
            return Standing.WORKS
        return Standing.OURS if rollout_of(self.reason) == rollout else Standing.THEIRS


class DrainResult(TypedDict):
    """How a drain ended."""

    #: False: another drain keeps the host out, and was left as it is
    drained: bool
    #: as the scheduler has it
    reason: str
    #: the host's reason if it was out before, else empty
    was: str


class ReturnResult(TypedDict):
    """How a host's return ended."""

    #: whether it gets work now
    returned: bool
    #: why it stays out, else empty
    reason: str


class Drainer:
    """One way of taking hosts out of work.  ``host`` is always its name in the fleet file.

    Several threads call methods at once, for different hosts.  A method that is called again, or after it was
    interrupted, comes to the same end.  ``reason`` is one of :func:`reason_of`.  A wish to stop ends what waits, with
    Interrupted.

    This one has no program to ask: every host is out of work as soon as a rollout wants it, and in work again.
    """

    def check(self, hosts: Sequence[str]) -> list[str]:  # noqa: ARG002 - there is no program to ask
        """Before a rollout begins: each objection in one line; changes nothing, and raises nothing else.

        The scheduler has to answer, to let this user drain, and to know every host.
        """
        return []

    def states(self, hosts: Sequence[str]) -> dict[str, State]:  # noqa: ARG002 - likewise
        """Host → state, without hosts that the scheduler doesn't know.  Raises DrainFailed."""
        return {}

    def look(self, host: str, reason: str) -> Standing:  # noqa: ARG002 - likewise
        """Who keeps ``host`` out of work now; asked before everything that would disturb work.

        Raises DrainFailed where another rollout has drained it or the scheduler doesn't know it, and SchedulerAway.
        """
        return Standing.OURS

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:  # noqa: ARG002
        """Take ``host`` out of work, and wait until no work is left on it.

        timeout: seconds.  Raises DrainFailed past ``timeout``, with what still runs, where the scheduler refuses, and
        where another rollout takes the host meanwhile; the drain then stays, for :meth:`undrain`.  And SchedulerAway.
        """
        return {"drained": True, "reason": reason, "was": ""}

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:  # noqa: ARG002
        """End the drain that ``reason`` signs; any other drain stays, and is no error.

        Raises DrainFailed where the scheduler refuses, and SchedulerAway.
        """
        return {"returned": True, "reason": ""}


#: Seconds that one question may take.
SECONDS = 60.0
#: Seconds for which a scheduler that doesn't answer is asked again; a failover takes less.
PATIENCE = 180.0
#: The output is parsed, so the user's language and formats don't apply.
ENVIRONMENT = {"LC_ALL": "C", **FORMAT}
#: Lines of a failed program's output that are quoted.
TAIL = 25
#: Names that a message lists.
LISTED = 5

T = TypeVar("T")
N = TypeVar("N")
P = ParamSpec("P")


class Cluster(Drainer, abc.ABC, Generic[N]):
    """Nodes of one cluster, which a client program shows and changes.

    program: ``[kubectl, --context, prod]`` or ``[ssh, head, scontrol]``; raises FleetInvalid where it doesn't name the
    client.  name: of a host's node, with ``{host}``.  folder: where programs start.
    pause: seconds between two looks at a node.  patience: seconds, as PATIENCE.
    """

    #: file name of the client
    client: ClassVar[str]
    #: seconds between two looks at a node
    pause: ClassVar[float]
    #: what a node is then, in the scheduler's word
    drained: ClassVar[str]
    #: errors that another try doesn't change
    lasting: ClassVar[re.Pattern[str]]

    def __init__(
        self, program: Sequence[str], name: str, folder: Path, *, pause: float | None = None, patience: float = PATIENCE
    ) -> None:
        if not any(PurePath(word).name == self.client for word in program):
            raise FleetInvalid(
                f"rollout.drain.program does not name {self.client}: {shlex.join(program)}",
                hint=f"It is {self.client} and what runs it, for example [ssh, head, {self.client}].",
            )
        self._words, self._name, self._folder, self._patience = list(program), name, folder, patience
        self._pause = self.pause if pause is None else pause

    def check(self, hosts: Sequence[str]) -> list[str]:
        """As Drainer.check; no two hosts may have one node."""
        names = {host: self._node(host) for host in hosts}
        objections = []
        if shared := len(names) - len(set(names.values())):
            objections.append(f"rollout.drain.node names a node that another host has, {shared} times: {self._name}")
        try:
            nodes = self._nodes()
            unknown = [
                name if name == host else f"{name} ({host})" for host, name in names.items() if name not in nodes
            ]
            if unknown:
                objections.append(f"{type(self).__name__} knows no node {first_few(unknown, LISTED)}")
            objections += self._missing_rights([name for name in names.values() if name in nodes])
        except DrainFailed as error:
            objections.append(error.message)
        return objections

    def states(self, hosts: Sequence[str]) -> dict[str, State]:
        """As Drainer.states: one call for all nodes, and no second try, because a user waits for the plan."""
        nodes = self._nodes()
        return {host: self._state(nodes[name]) for host in hosts if (name := self._node(host)) in nodes}

    def look(self, host: str, reason: str) -> Standing:
        """As Drainer.look.  A node that the rollout would drain now works, and so does one with work left on it."""
        node = self._patiently(self._look, self._node(host))
        self._require_no_other(node, reason)
        if self._out(node, reason) or self._patiently(self._left, node):
            return Standing.WORKS
        return Standing.OURS if self._is_ours(node, reason) else Standing.THEIRS

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:
        """As Drainer.undrain."""
        done = f"no longer {self.drained}"
        node = self._patiently(self._changed, self._node(host), self._back, reason, done, progress)
        why = self._stays_out(node)
        return {"returned": not why, "reason": why}

    def _changed(self, name: str, change_of: Callable[[N, str], Any], reason: str, done: str, progress: Progress) -> N:
        """The node as it is once ``change_of`` has no change for it; ``done``: what it then is, in words."""
        node = self._look(name)
        if change := change_of(node, reason):
            node = self._change(name, change)
            progress(f"{type(self).__name__} node {name} is {done}")
        return node

    @abc.abstractmethod
    def _missing_rights(self, names: Sequence[str]) -> Iterator[str]:
        """What this user may not do, of all that a drain of these nodes needs, each in one line."""

    @abc.abstractmethod
    def _look(self, name: str) -> N:
        """The node of that name."""

    @abc.abstractmethod
    def _nodes(self) -> Mapping[str, N]:
        """Name → node."""

    @abc.abstractmethod
    def _out(self, node: N, reason: str) -> Any:
        """The change that drains the node by ``reason``; false: it's drained already."""

    @abc.abstractmethod
    def _back(self, node: N, reason: str) -> Any:
        """The change that ends this rollout's drain; false: the node doesn't have one."""

    @abc.abstractmethod
    def _change(self, name: str, change: Any) -> N:
        """Change the node of that name; returns it as it is then."""

    @abc.abstractmethod
    def _left(self, node: N) -> list[str]:
        """The work that is on the node, in words."""

    @abc.abstractmethod
    def _state(self, node: N) -> State:
        """Whether the node gets work."""

    @abc.abstractmethod
    def _reason(self, node: N) -> str:
        """With which the node was drained; empty: with none."""

    def _stays_out(self, node: N) -> str:
        """Why the node gets no work; empty: it does."""
        state = self._state(node)
        return state.reason if state.out else ""

    def _is_ours(self, node: N, reason: str) -> bool:
        """Whether the node has this rollout's reason."""
        return self._reason(node).startswith(signature(reason))

    def _require_no_other(self, node: N, reason: str) -> None:
        """Raise DrainFailed where another rollout has drained the node."""
        other = rollout_of(self._reason(node))
        if other not in ("", rollout_of(reason)) and self._state(node).out:
            raise DrainFailed(
                f"the rollout {other} has drained this host meanwhile, and has it now",
                hint="Let one rollout at a time have a host: end one of them, then begin again",
            )

    def _argv(self, argv: Sequence[str], beside: str = "") -> list[str]:
        """The whole command; ``beside``: a program in the same folder that runs instead."""
        name = re.compile(re.escape(self.client) + "$")
        words = [
            name.sub(beside, word) if beside and PurePath(word).name == self.client else word for word in self._words
        ]
        # ssh joins its words, and a shell splits them again.
        remote = any(PurePath(word).name == "ssh" for word in words)
        return [*words, *(shlex.quote(word) if remote else word for word in argv)]

    def _ask(self, argv: Sequence[str], doing: str, *, beside: str = "", ok: Sequence[int] = (0,)) -> run.Completed:
        """Run it with ``argv``; raises DrainFailed with its output."""
        command = self._argv(argv, beside)
        with translated((ProgramFailed, MissingProgram), lambda error: DrainFailed(error.message, hint=self._hint)):
            return run.run(command, doing=doing, ok=ok, timeout=SECONDS, cwd=self._folder, env=ENVIRONMENT)

    @property
    def _hint(self) -> str:
        return f"{shlex.join(self._words)} has to work on this machine (rollout.drain.program says what it is)."

    def _node(self, host: str) -> str:
        return self._name.replace("{host}", host)

    def _patiently(self, ask: Callable[P, T], *words: P.args, **options: P.kwargs) -> T:
        """What ``ask`` returns; it's called again for a while, since a scheduler may be away for a moment.

        Raises SchedulerAway after that, and at once the DrainFailed that another try doesn't change.
        """
        end = time.monotonic() + self._patience
        while True:
            try:
                return ask(*words, **options)
            except DrainFailed as error:
                if self.lasting.search(error.message):
                    raise
                if time.monotonic() >= end:
                    raise SchedulerAway(error.message) from error
            cancel.current().wait(self._pause)


class Deadline:
    """When a drain of ``host`` has to be over.  timeout: seconds from now on.  pause: seconds between two looks."""

    def __init__(self, host: str, timeout: float, pause: float, progress: Progress) -> None:
        self._host, self._timeout, self._pause, self._progress = host, timeout, pause, progress
        self._end = time.monotonic() + timeout
        self._last = ""

    @property
    def left(self) -> float:
        """Seconds until then, at least one."""
        return max(1.0, self._end - time.monotonic())

    @property
    def past(self) -> bool:
        return time.monotonic() >= self._end

    def failed(self, text: str, hint: str) -> DrainFailed:
        """The error of a host that still has work."""
        return DrainFailed(
            f"{self._host} is not free of work after {self._timeout:.0f} s of draining: {text}", hint=hint
        )

    def wait(self, text: str = "") -> None:
        """Report ``text`` unless it's the last one again, and pause; a wish to stop raises Interrupted."""
        if text not in ("", self._last):
            self._progress(text)
            self._last = text
        cancel.current().wait(max(0.0, min(self._pause, self._end - time.monotonic())))


def last(argv: Sequence[str], doing: str, seconds: float, folder: Path, line: Progress) -> tuple[int, list[str]]:
    """Run what may take long: its exit status and output, each line of which goes to ``line``.

    Raises DrainFailed where it can't be started, or is ended after ``seconds``; Interrupted after a wish to stop, and
    ControllerUnfit.
    """
    lines: list[str] = []

    def take(text: str) -> None:
        lines.append(text)
        line(text)

    try:
        return run.stream(argv, doing=doing, line=take, cwd=folder, timeout=seconds), lines
    except (ProgramFailed, MissingProgram) as error:
        raise DrainFailed(failure(error.message, argv, lines), hint=error.hint) from error


def failure(text: str, argv: Sequence[str], lines: Sequence[str]) -> str:
    """``text``, the command and the end of its output, laid out as ``run`` does."""
    return "\n".join([quoted(text), f"  $ {shlex.join(argv)}", *(f"  | {line(words)}" for words in lines[-TAIL:])])


#: Seconds between two questions whether a host is idle.
IDLE_PAUSE = 10.0
#: Seconds that one such question, or the way back, may take.
COMMAND_SECONDS = 600.0


class Commands(Drainer):
    """Starts ``out``, ``back`` and ``idle`` with {host}, {node}, {reason} and {rollout} replaced in their words.

    They run on this machine in the folder of the fleet file, and end with status 0 when they're done.  Each may be
    started again after it was done.
    """

    def __init__(self, settings: Drain, folder: Path, *, pause: float = IDLE_PAUSE) -> None:
        self._settings = settings
        self._folder = folder
        self._pause = pause

    def check(self, hosts: Sequence[str]) -> list[str]:  # noqa: ARG002 - a command can't be asked about hosts
        programs = {name: command[0] for name in ("out", "back", "idle") if (command := getattr(self._settings, name))}
        objections = {name: run.objection(program, self._folder) for name, program in programs.items()}
        return [f"rollout.drain.{name}: {why}" for name, why in objections.items() if why]

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:
        """As Drainer.drain: ``out`` ends with 0, then ``idle`` does, both within ``timeout``."""
        deadline = Deadline(host, timeout, self._pause, progress)
        self._do("out", f"take {host} out of work", host, reason, timeout)
        progress("it gets no more work")
        while self._settings.idle:
            doing = f"ask whether {host} is idle"
            status, lines = self._run("idle", doing, host, reason, min(COMMAND_SECONDS, deadline.left))
            if status == 0:
                break
            text = lines[-1].strip() if lines else f"status {status}"
            if deadline.past:
                output = failure(f"{doing}: status {status}", self._words("idle", host, reason), lines)
                raise deadline.failed(f"{text}\n{output}", "rollout.drain.timeout is how long a rollout waits.")
            deadline.wait(f"waiting until it is idle: {text}")
        return {"drained": True, "reason": reason, "was": ""}

    def undrain(self, host: str, reason: str, *, progress: Progress) -> ReturnResult:
        """As Drainer.undrain; ``back`` fails where the host stays out."""
        self._do("back", f"bring {host} back into work", host, reason, COMMAND_SECONDS)
        progress("it gets work again")
        return {"returned": True, "reason": ""}

    def _do(self, name: str, doing: str, host: str, reason: str, seconds: float) -> None:
        status, lines = self._run(name, doing, host, reason, seconds)
        if status:
            raise DrainFailed(
                failure(f"cannot {doing}: status {status}", self._words(name, host, reason), lines),
                hint=f"It is rollout.drain.{name} of the fleet file, started in {self._folder}.",
            )

    def _run(self, name: str, doing: str, host: str, reason: str, seconds: float) -> tuple[int, list[str]]:
        return last(self._words(name, host, reason), doing, seconds, self._folder, lambda _: None)

    def _words(self, name: str, host: str, reason: str) -> list[str]:
        node = self._settings.node.replace("{host}", host)
        values = {"host": host, "node": node, "reason": reason, "rollout": rollout_of(reason)}
        return fill(getattr(self._settings, name), values)


#: States of a node that Slurm itself reboots; the node may be idle meanwhile.
REBOOTS = {"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
DEAD = {"DOWN", "ERROR", "FUTURE", "INVALID_REG"}
#: Job states that hold resources of a node; a node whose only job is suspended has the state IDLE.
HOLDING = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STOPPED,SIGNALING,STAGE_OUT,RESIZING"
#: A job's fields; the name comes last because it may hold anything.
JOB = "%i|%u|%T|%L|%j"
#: No node has this name; Slurm checks the right to change nodes before it looks for the node.
NO_NODE = "gdsdeploy-may-drain"


class Slurm(Cluster[Node]):
    """Drains and resumes nodes of one cluster; squeue is looked for beside scontrol.

    A rollout takes over a drain of the host's boot gate, whose reasons begin with ``gdsdeploy: ``, and that of an
    earlier rollout.  Until the rollout returns the node, the gate finds a reason that isn't its own, and leaves it.
    """

    client = "scontrol"
    drained = "drained"
    pause = 10.0
    lasting = re.compile(
        r"Invalid node name|not found|Invalid user id|Access/permission denied|Unable to allow|Permission denied"
        r"|Host key verification failed|command not found|not installed|something else than a node",
        re.IGNORECASE,
    )

    def _missing_rights(self, names: Sequence[str]) -> Iterator[str]:
        answer = self._ask(["update", f"NodeName={NO_NODE}", "State=RESUME"], "ask Slurm", ok=range(256))
        output = (answer.stderr + answer.stdout).strip()
        if "Invalid node name" not in output:
            yield f"Slurm does not let this user drain nodes: {output}"
        for name in names[:1]:
            self._jobs(name)

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:
        """As Drainer.drain.  A reboot that Slurm was asked for counts as work."""
        name, deadline = self._node(host), Deadline(host, timeout, self._pause, progress)
        was = None
        while True:
            node = self._patiently(self._look, name)
            if was is None:
                was = self._before(node) if self._is_ours(node, reason) or not self._state(node).out else node.reason
            else:
                self._require_no_other(node, reason)
            # A reboot by Slurm ends drains, and so may any administrator.
            if change := self._out(node, reason):
                progress(f"Slurm node {name} is drained" + (f"; it was: {node.reason}" if node.reason else ""))
                node = self._patiently(self._change, name, change)
            work = self._patiently(self._left, node)
            if not work and self._state(node).out:
                return {"drained": self._is_ours(node, reason), "reason": node.reason, "was": was}
            text = first_few(work or ["Slurm to keep it drained; its state is " + "+".join(node.states)], LISTED)
            if deadline.past:
                hint = "Wait for it, or end it yourself; rollout.drain.timeout is how long a rollout waits."
                raise deadline.failed(text, hint)
            deadline.wait(f"waiting for {text}")

    def _left(self, node: Node) -> list[str]:
        if REBOOTS & set(node.states):
            return ["the reboot that Slurm was asked for"]
        jobs = self._jobs(node.name)
        if not jobs and BUSY & set(node.states):
            return ["jobs that squeue does not show; its state is " + "+".join(node.states)]
        return jobs

    def _jobs(self, name: str) -> list[str]:
        argv = ["--noheader", f"--nodelist={name}", f"--states={HOLDING}", f"--format={JOB}"]
        done = self._ask(argv, f"ask for the jobs on {name}", beside="squeue")
        lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        # A job's name, which its user gives, may have several lines.
        rows = [row for line in lines if len(row := line.split("|", 4)) == 5]
        return [f"job {row[0]} of {row[1]} ({row[4]}, {row[2].lower()}, time left {row[3]})" for row in rows] or lines

    def _look(self, name: str) -> Node:
        return _parse(self._ask(["--oneliner", "show", "node", name], f"ask for the node {name}").stdout, name)

    def _nodes(self) -> Mapping[str, Node]:
        text = self._ask(["--oneliner", "show", "nodes"], "ask for Slurm's nodes").stdout
        # A reason may hold line breaks.
        lines = re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE)
        nodes = [_parse(line, "") for line in lines if line.startswith("NodeName=")]
        return {node.name: node for node in nodes}

    def _state(self, node: Node) -> State:
        """Whether the node gets work.  A reservation for maintenance, or saving power, does not count as being out."""
        dead = next((state for state in node.states if state in DRAINED | DEAD), "")
        return State(out=bool(dead), reason=node.reason or (f"{dead}, no reason is given" if dead else ""))

    def _reason(self, node: Node) -> str:
        return node.reason

    def _before(self, node: Node) -> str:
        """Why the node was out before gdsdeploy drained it; empty: it wasn't, or had no reason."""
        if node.reason.startswith((OURS, ROLLOUT)):
            return node.reason.partition(WAS)[2]
        return node.reason if self._state(node).out else ""

    def _out(self, node: Node, reason: str) -> list[str]:
        """What of ``scontrol update`` drains the node by ``reason``; empty: it's drained already."""
        other_rollout = node.reason.startswith((OURS, ROLLOUT)) and not self._is_ours(node, reason)
        if DRAINED.intersection(node.states) and not other_rollout:
            return []
        return drain_argv(reason, self._before(node) if "DOWN" in node.states else "")

    def _back(self, node: Node, reason: str) -> list[str]:
        """What of ``scontrol update`` ends this rollout's drain; empty: it doesn't have one.

        A node that an administrator had down gets its earlier reason back.
        """
        if not self._is_ours(node, reason) or not self._state(node).out:
            return []
        earlier = self._before(node)
        return undrain_argv(node, "" if UNREACHABLE.match(earlier) else earlier)

    def _change(self, name: str, change: Sequence[str]) -> Node:
        self._ask(["update", f"NodeName={name}", *change], f"change the node {name}")
        return self._look(name)


def _parse(text: str, name: str) -> Node:
    with translated(SlurmError, lambda error: DrainFailed(f"cannot ask for the node {name}: {error}")):
        return node_from(text)


#: Annotation of a node that a rollout has cordoned: its reason.
CORDONED = "gdsdeploy.io/cordoned"
#: Annotation of a static pod, which kubelet starts without the API server.
MIRROR = "kubernetes.io/config.mirror"
#: A pod's emptyDir never outlives the pod.
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data")
#: Verb and kind of each request that a drain makes.
RIGHTS = (
    ("get", "nodes"), ("patch", "nodes"), ("list", "pods"), ("get", "daemonsets.apps"),
    ("create", "pods", "--subresource=eviction"),
)  # fmt: skip


def is_cordoned(node: Mapping[str, Any]) -> bool:
    return bool(node.get("spec", {}).get("unschedulable"))


def _patch(node: Mapping[str, Any], note: str | None, *, unschedulable: bool | None) -> dict[str, Any]:
    # With the version, the server refuses to patch a node that has changed meanwhile.
    metadata = {"annotations": {CORDONED: note}, "resourceVersion": node["metadata"]["resourceVersion"]}
    return {"metadata": metadata, "spec": {"unschedulable": unschedulable}}


def returns(pod: Mapping[str, Any]) -> bool:
    """Whether this pod may come back to a node that is cordoned, so that no drain keeps it away."""
    keys = [each.get("key") for each in pod.get("spec", {}).get("tolerations") or ()]
    return None in keys or "node.kubernetes.io/unschedulable" in keys


def is_evictable(pod: Mapping[str, Any]) -> bool:
    """Whether an eviction is about this pod."""
    metadata = pod["metadata"]
    kinds = {owner.get("kind") for owner in metadata.get("ownerReferences") or () if owner.get("controller")}
    finished = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not finished and "DaemonSet" not in kinds and MIRROR not in (metadata.get("annotations") or {})


class Kubernetes(Cluster[Mapping[str, Any]]):
    """Cordons, empties and uncordons nodes of one cluster; an annotation says whose cordon it is.

    kubectl waits for disruption budgets, leaves pods of daemon sets and mirror pods, and gives each pod its grace
    period.
    """

    client = "kubectl"
    drained = "cordoned"
    pause = 5.0
    lasting = re.compile(
        r"\(Forbidden\)|\(Unauthorized\)|\(NotFound\)|must be logged in|You must provide credentials|not installed"
        r"|command not found|invalid configuration|x509:|Host key verification failed|Permission denied"
    )

    def _missing_rights(self, names: Sequence[str]) -> Iterator[str]:  # noqa: ARG002 - rights are the same on all
        for right in RIGHTS:
            argv = ["auth", "can-i", *right, "--all-namespaces"]
            answer = self._ask(argv, "ask for this user's rights", ok=range(256))
            if answer.stdout.strip() != "yes":
                yield f"this user of Kubernetes may not {' '.join(right)}: {(answer.stdout + answer.stderr).strip()}"

    def drain(self, host: str, reason: str, *, timeout: float, progress: Progress) -> DrainResult:
        """As Drainer.drain.  Pods without a controller are waited for: nothing would start them elsewhere."""
        name, deadline, once = self._node(host), Deadline(host, timeout, self._pause, progress), _once(progress)
        node = self._patiently(self._look, name)
        was = self._state(node).reason if self._state(node).out and not self._is_ours(node, reason) else ""
        change_of = self._out
        while True:
            node = self._patiently(self._changed, name, change_of, reason, self.drained, progress)
            self._require_no_other(node, reason)
            change_of = self._renewed
            status, lines = self._evict(name, deadline.left, once)
            node = self._patiently(self._look, name)
            self._require_no_other(node, reason)
            if status == 0 and is_cordoned(node):
                return {"drained": self._is_ours(node, reason), "reason": self._state(node).reason, "was": was}
            command = self._argv(["drain", name, *DRAIN])
            output = failure(f"cannot drain {name}: kubectl ended with status {status}", command, lines)
            if self.lasting.search("\n".join(lines[-3:])):
                raise DrainFailed(output, hint=self._hint)
            if deadline.past:
                left = self._patiently(self._left, node)
                hint = "Disruption budgets are kept; rollout.drain.timeout is how long a rollout waits."
                raise deadline.failed(f"{first_few(left, LISTED) or 'no pod'}\n{output}", hint)
            deadline.wait()

    def _stays_out(self, node: Mapping[str, Any]) -> str:
        """Why the node gets no pods; one whose kubelet doesn't answer yet gets them as soon as it does."""
        return super()._stays_out(node) if is_cordoned(node) else ""

    def _evict(self, name: str, seconds: float, progress: Progress) -> tuple[int, list[str]]:
        command = self._argv(["drain", name, *DRAIN, f"--timeout={seconds:.0f}s"])
        return last(command, f"drain {name}", seconds + 30, self._folder, progress)

    def _left(self, node: Mapping[str, Any]) -> list[str]:
        name = node["metadata"]["name"]
        argv = ["get", "pods", "--all-namespaces", f"--field-selector=spec.nodeName={name}"]
        pods = self._json(argv, f"ask for the pods on {name}")["items"]
        return [
            f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
            for pod in pods
            if is_evictable(pod) and not returns(pod)
        ]

    def _look(self, name: str) -> Mapping[str, Any]:
        return self._json(["get", "node", name], f"ask for the node {name}")

    def _nodes(self) -> Mapping[str, Mapping[str, Any]]:
        nodes = self._json(["get", "nodes"], "ask for Kubernetes' nodes")["items"]
        return {node["metadata"]["name"]: node for node in nodes}

    def _state(self, node: Mapping[str, Any]) -> State:
        """Whether the node gets pods."""
        if is_cordoned(node):
            return State(True, self._reason(node) or "cordoned without a reason")
        conditions = node.get("status", {}).get("conditions", [])
        ready = next((condition for condition in conditions if condition.get("type") == "Ready"), {"status": "Unknown"})
        if ready["status"] != "True":
            return State(True, f"not ready: {ready.get('message') or 'its kubelet has not said why'}")
        return State(False)

    def _reason(self, node: Mapping[str, Any]) -> str:
        return str((node["metadata"].get("annotations") or {}).get(CORDONED, ""))

    def _out(self, node: Mapping[str, Any], reason: str) -> dict[str, Any] | None:
        """The merge patch that cordons the node by ``reason``; None: it's cordoned already."""
        other_rollout = self._reason(node).startswith(ROLLOUT) and not self._is_ours(node, reason)
        if is_cordoned(node) and not other_rollout:
            return None
        return _patch(node, reason, unschedulable=True)

    def _renewed(self, node: Mapping[str, Any], reason: str) -> dict[str, Any] | None:
        """The same for a node that this rollout has cordoned before; None also: another rollout has it meanwhile."""
        return None if is_cordoned(node) else self._out(node, reason)

    def _back(self, node: Mapping[str, Any], reason: str) -> dict[str, Any] | None:
        """The merge patch that ends this rollout's cordon; None: it doesn't have one."""
        return _patch(node, None, unschedulable=None) if self._is_ours(node, reason) else None

    def _change(self, name: str, change: Any) -> Mapping[str, Any]:
        argv = ["patch", "node", name, "--type=merge", f"--patch={json.dumps(change)}"]
        return self._json(argv, f"change the node {name}")

    def _json(self, argv: Sequence[str], doing: str) -> Mapping[str, Any]:
        text = self._ask([*argv, "--output=json"], doing).stdout
        try:
            document: Mapping[str, Any] = json.loads(text)
        except ValueError as error:
            raise DrainFailed(
                f"cannot {doing}: kubectl printed no JSON: {line(text.strip()[:200])}", hint=self._hint
            ) from error
        return document


def _once(progress: Progress) -> Progress:
    """Reports each line once: kubectl repeats what it waits for."""
    lines = {""}

    def tell(line: str) -> None:
        if line.strip() not in lines:
            lines.add(line.strip())
            progress(line.strip())

    return tell


def drainer(settings: Drain, fleet_dir: Path) -> Drainer:
    """The way that ``settings`` name; programs start in ``fleet_dir``, the folder of the fleet file.

    Raises FleetInvalid where ``settings.program`` isn't the client of that scheduler.
    """
    match settings.by:
        case "slurm":
            return Slurm(settings.program or ("scontrol",), settings.node, fleet_dir)
        case "kubernetes":
            return Kubernetes(settings.program or ("kubectl",), settings.node, fleet_dir)
        case "command":
            return Commands(settings, fleet_dir)
        case "none":
            return Drainer()
