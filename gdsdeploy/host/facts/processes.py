"""Running programs that have loaded libcufile, and the configuration that each has.

What a read and a write through cuFile prove: the path that they took, or why it is unknown.  See host/proof.

Counters of nvidia-fs: ``Bar1-map … ok`` rises whenever GPU memory is mapped for it, ``Reads … ok`` and ``Writes … ok``
with each operation while its parameter rw_stats_enabled is on; none of them rises for compat mode or P2PDMA.  A file
that needs compat mode can't be registered while that is disallowed, so a mapping and a successful operation belong
together.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from ..libcufile import counters
from ..libcufile.counters import Counters
from ..libcufile.errors import UnknownCodeError, lookup
from ..paths import CUFILE, PROCESSES, PROOF, PROOF_COMPAT
from .cufile import CufileFacts
from .document import NOT_FOUND, TIMED_OUT, Document, Ran, collected
from .environment import VARIABLE, WHEEL, Overlay, Variable, merged, overlay
from .unknown import Facts, Maybe, UndecidedError, Unknown, fact, if_known, known

_VERSION = re.compile(r"libcufile\.so\.(\d+\.\d+\S*)$")
#: The wheel for CUDA 12 has its library here, each later one elsewhere.
_CUDA12 = "/nvidia/cufile/lib/"
DELETED = " (deleted)"


class OpenFile(NamedTuple):
    """A file that is open at least twice, as one that cuFile has registered."""

    path: str
    mount: str
    filesystem: str
    #: whether it is open for direct I/O
    direct: bool


class Program(Facts):
    """A process, as it was when the evidence was collected."""

    def __init__(self, document: Document, cufile: CufileFacts, row: Dict[str, Any]) -> None:
        super().__init__(document)
        self._cufile, self._row = cufile, row
        pid, start = row.get("pid"), row.get("start")
        self.pid = pid if isinstance(pid, int) else 0
        #: as in /proc/PID/comm: at most 15 characters
        self.name = _text(row.get("program"))
        #: its control group, which names its unit, container or job
        self.unit = _text(row.get("unit"))
        #: the path of its /etc/cufile.json
        self.base_path = _text(row.get("base")) or CUFILE
        #: when it started, in clock ticks after the boot; -1: not recorded
        self.start = start if isinstance(start, int) else -1
        statistics = row.get("statistics")
        at = statistics.get("at") if isinstance(statistics, dict) else None
        #: what it has counted, or why that isn't known: an id of libcufile/route.py
        self.counters = _counters(statistics)
        #: when its counters were read, in seconds of the host's monotonic clock
        self.at = float(at) if isinstance(at, (int, float)) else 0.0
        self.files = _files(row.get("files"))

    @property
    def _unread(self) -> str:
        return "{} of process {}".format(_text(self._row.get("error")) or "no record", self._row.get("pid"))

    @fact
    def container(self) -> bool:
        """Whether its files are others than this host's, as in a container."""
        value = self._row.get("container")
        return collected(value if isinstance(value, bool) else None, self._unread)

    @fact
    def libraries(self) -> Mapping[str, Maybe[str]]:
        """File of each libcufile → its version."""
        libraries, wheels, releases = (self._row.get(key) for key in ("libraries", "wheels", "releases"))
        paths = [path for path in libraries if isinstance(path, str)] if isinstance(libraries, list) else []
        return {path: known(partial(_version, path, _of(wheels, path), _of(releases, path))) for path in paths}

    @fact
    def variables(self) -> Mapping[str, str]:
        """Libcufile's variables, as the program was started."""
        value = self._row.get("variables")
        is_valid = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
        return collected(value if is_valid else None, self._unread)

    @fact
    def base(self) -> Optional[Mapping[str, Any]]:
        """The content of its /etc/cufile.json; None: there is none."""
        path = _text(self._row.get("base"))
        if path == CUFILE:
            return self._cufile.config
        record = self.document.record("configs", collected(path or None, self._unread))
        config = record.get("config") if record is not None else None
        if record is not None and not isinstance(config, dict):
            raise UndecidedError("{}: {}".format(path, record.get("broken", "malformed")))
        return config

    @fact
    def overlay(self) -> Optional[Overlay]:
        named, key = self.variables.get(VARIABLE, ""), _text(self._row.get("config"))
        if not named:
            return None
        if not key:
            raise UndecidedError(f"{VARIABLE}={named} names a file in a folder of another container")
        place = "the environment of process {}".format(self._row.get("pid"))
        return overlay(self.document, key, Variable(VARIABLE, named, place, f"{VARIABLE}={named}"))

    @fact
    def nvidia_fs(self) -> bool:
        """Whether it has nvidia-fs open, without which its I/O can't take it."""
        value = self._row.get("nvidia_fs")
        return collected(value if isinstance(value, bool) else None, "its open files were not recorded")

    @property
    def level(self) -> Optional[int]:
        """profile.cufile_stats of the configuration that it reads; None: not there, or not a number from 0 to 3."""
        base, over = self.base, self.overlay
        profile = merged(base, over.config if over else {}).get("profile")
        level = profile.get("cufile_stats") if isinstance(profile, dict) else None
        return level if isinstance(level, int) and not isinstance(level, bool) and 0 <= level <= 3 else None

    @property
    def label(self) -> str:
        unit = f" of {self.unit}" if self.unit not in ("", "/") else ""
        return f"process {self.pid} ({self.name or 'no name'}){unit}"


class ProcessFacts(Facts):
    """Programs that have loaded libcufile."""

    def __init__(self, document: Document, cufile: CufileFacts) -> None:
        super().__init__(document)
        self._cufile = cufile

    @property
    def _record(self) -> Dict[str, Any]:
        """Raises UndecidedError where it has no list of programs."""
        record = if_known(lambda: self.document.record("processes", PROCESSES), None) or {}
        rows = record.get("programs")
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return record
        if PROCESSES in self.document.paths("processes"):
            raise UndecidedError("the record of running programs is malformed")
        raise self.document.not_collected("running programs were", "processes")

    @fact
    def programs(self) -> Tuple[Program, ...]:
        return tuple(Program(self.document, self._cufile, row) for row in self._record["programs"])

    @fact
    def complete(self) -> bool:
        """True: every process of the host was looked at."""
        unread, more = self._record.get("unread"), self._record.get("more")
        if not isinstance(unread, int) or not isinstance(more, bool):
            raise UndecidedError("the record of running programs is malformed")
        if unread:
            words = "{} process{} could not be read: permission denied"
            raise UndecidedError(words.format(unread, "" if unread == 1 else "es"))
        if more:
            raise UndecidedError("not every process was looked at: there are too many")
        return True

    @fact
    def dead_segments(self) -> int:
        """Segments of statistics that programs which ended have left."""
        dead = self._record.get("dead")
        words = "shared memory of programs that ended was not looked for"
        return collected(dead if isinstance(dead, int) else None, words)


def _counters(record: Any) -> Union[Counters, str]:
    record = record if isinstance(record, dict) else {}
    reason = record.get("reason", counters.NO_RECORD)
    reason_id = reason if isinstance(reason, str) and reason in counters.REASONS else counters.NO_RECORD
    result = counters.from_record(record.get("counters"))
    return reason_id if result is None else result


def _files(rows: Any) -> Tuple[OpenFile, ...]:
    kinds = (str, str, str, bool)
    whole = [row for row in rows if isinstance(row, list) and len(row) == 4] if isinstance(rows, list) else []
    return tuple(OpenFile(*row) for row in whole if all(isinstance(part, kind) for part, kind in zip(row, kinds)))


def _version(path: str, wheels: Any, inside: Any) -> str:
    """From the file's name, else from that of the wheel that installed it, else as it is ``inside`` the file."""
    deleted = path.endswith(DELETED)
    match = _VERSION.search(path[: -len(DELETED)] if deleted else path)
    if match:
        return match.group(1)
    for name in wheels if isinstance(wheels, list) and not deleted else ():
        wheel = WHEEL.fullmatch(str(name))
        if wheel and (wheel.group(1) == "_cu12") == (_CUDA12 in path):
            return wheel.group(2)
    if isinstance(inside, str) and re.fullmatch(r"\d+(\.\d+){1,3}", inside):
        return inside
    if deleted:
        raise UndecidedError(f"{path}: it was replaced while the program ran, and its name has no version")
    words = f"{path}: neither its name nor a package beside it has a version ({posixpath.basename(path)})"
    raise UndecidedError(words)


def _of(values: Any, key: str) -> Any:
    return values.get(key) if isinstance(values, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


#: As in host/subjects/condition.py, which builds on the facts.
NVIDIA_FS, P2PDMA, COMPAT, BROKEN = "nvidia-fs", "p2pdma", "compat", "broken"
#: What is tried, in this order; recordings made before writes were tried name no operations.
READ, WRITE = "read", "write"
#: libcufile's log line, at level TRACE, about a finished operation (1.15 to 1.20).
_DONE = {
    name: re.compile(rf"\b{name} : Updating stats .*p2p mode: (\d|true|false) compat: (\d|true|false)")
    for name in (READ, WRITE)
}
#: Its log line about a registered file.
_HANDLE = re.compile(r"Compatibility Mode: (\d|true|false) ")
_TRUE = ("1", "true")
_COUNTERS = (
    ("reads", re.compile(r"^Reads\s*: n=\d+ ok=(\d{1,18})", re.MULTILINE)),
    ("read errors", re.compile(r"^Reads\s*: .*?err=(\d{1,18})", re.MULTILINE)),
    ("writes", re.compile(r"^Writes\s*: n=\d+ ok=(\d{1,18})", re.MULTILINE)),
    ("mapped", re.compile(r"^Bar1-map\s*: n=\d+ ok=(\d{1,18})", re.MULTILINE)),
    ("map errors", re.compile(r"^Bar1-map\s*: n=\d+ ok=\d+ err=(\d{1,18})", re.MULTILINE)),
    ("processes", re.compile(r"^Active Process: (\d{1,18})", re.MULTILINE)),
)


#: Operation → the counter of nvidia-fs that rises with it, and its label there.
_COUNTED = {READ: ("reads", "Reads ok"), WRITE: ("writes", "Writes ok")}


@dataclass(frozen=True)
class Proof:
    """``path``: ``nvidia-fs``, ``p2pdma``, ``compat`` or ``broken``; unknown where the tries do not prove it."""

    mount: str
    #: PCI address as libcuda has it
    gpu: str
    path: Maybe[str]
    #: what proves it, as one sentence
    how: str = ""
    #: lines of counters, of the library and of its log
    evidence: Tuple[str, ...] = ()
    #: what took the path: a read, a write, or both
    operations: Tuple[str, ...] = (READ,)


class _Ending(NamedTuple):
    """Why a try stopped.  ``tried``: whether it called cuFile at all."""

    why: str
    tried: bool = True


@dataclass(frozen=True)
class _Pair:
    """One operation: ``values`` as the child wrote them, ``ending``: None where it finished."""

    operation: str
    values: Mapping[str, Any]
    ending: Optional[_Ending]

    @property
    def succeeded(self) -> bool:
        return self.ending is None and is_done(self.values)

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    @property
    def log(self) -> Tuple[str, ...]:
        return tuple(map(str, _list(self.values, "log")))

    def last_done(self, group: int) -> Optional[bool]:
        """The value of ``group`` in the log line about the finished operation; None where there is no such line."""
        return _last(_DONE[self.operation], group, self.log)

    @property
    def compat(self) -> Optional[bool]:
        """Whether libcufile logs compat mode for it; None where it doesn't log the mode."""
        done = self.last_done(2)
        return _last(_HANDLE, 1, self.log) if done is None else done


def is_done(values: Mapping[str, Any]) -> bool:
    """Whether the child's record is that of an operation that moved the right bytes."""
    moved = values.get(_operation(values))
    return values.get("same") is True and isinstance(moved, int) and moved > 0


def _operation(values: Mapping[str, Any]) -> str:
    return WRITE if values.get("operation") == WRITE else READ


def proof_counters(text: str) -> Dict[str, int]:
    """The counters of /proc/driver/nvidia-fs/stats that matter here; some releases and settings don't show all."""
    matches = ((name, pattern.search(text)) for name, pattern in _COUNTERS)
    return {name: int(match.group(1)) for name, match in matches if match}


def proofs(document: Document) -> Mapping[str, Tuple[Proof, ...]]:
    """Mount point → one proof for each GPU, two where its read and write differ; empty where nothing was tried."""
    runs = [if_known(partial(document.attempted, name), None) for name in (PROOF, PROOF_COMPAT)]
    if runs[0] is None:
        return {}
    first, second = _Try(runs[0]), _Try(runs[1]) if runs[1] is not None else None
    proofs: Dict[str, Tuple[Proof, ...]] = {}
    for mount, gpu in first.requests() or (second.requests() if second else ()):
        results = [
            _judge(mount, gpu, first.pair(mount, gpu, name), second.pair(mount, gpu, name) if second else None)
            for name in first.operations()
        ]
        proofs[mount] = (*proofs.get(mount, ()), *_joined(results))
    return proofs


def _joined(results: List[Proof]) -> List[Proof]:
    """One proof where every operation has the same result; the explanation is that of the first."""
    if any(result.path != results[0].path for result in results):
        return results
    evidence = tuple(dict.fromkeys(line for result in results for line in result.evidence))
    operations = tuple(name for result in results for name in result.operations)
    return [replace(results[0], evidence=evidence, operations=operations)]


class _Try:
    """One run of the child, of any shape."""

    def __init__(self, run: Ran) -> None:
        self._run = run
        self._events = events(run.stdout)

    def _event(self, name: str) -> Dict[str, Any]:
        return next((event for event in self._events if event.get("event") == name), {})

    def requests(self) -> Tuple[Tuple[str, str], ...]:
        """Every (mount, GPU) to try, from the child's lists: it may have stopped before some of them."""
        mounts = [mount for mount in _list(self._event("start"), "mounts") if isinstance(mount, str)]
        gpus = [gpu for gpu in _list(self._event("gpus"), "gpus") if isinstance(gpu, str)]
        return tuple((mount, gpu) for mount in mounts for gpu in gpus or [""])

    def operations(self) -> Tuple[str, ...]:
        """What the child tries; one that stopped before it said so was going to try both."""
        start = self._event("start")
        return (READ,) if start and "operations" not in start else (READ, WRITE)

    def pair(self, mount: str, gpu: str, operation: str) -> _Pair:
        for name in ("pair", "begin"):
            for event in self._events:
                shown = (event.get("event"), event.get("mount"), event.get("gpu"))
                if shown == (name, mount, gpu) and _operation(event) == operation:
                    ending = None if name == "pair" else self._end(f"during the {operation}")
                    return _Pair(operation, event, ending)
        return _Pair(operation, {"log": _list(self._event("open"), "log")}, self._before(operation))

    def _before(self, operation: str) -> _Ending:
        """Why the child stopped before an operation."""
        for name, words in (
            ("not loaded", "libcufile or libcuda was not loaded: {reason}"),
            ("no GPU", "CUDA gives no GPU: {call} returned {status}"),
        ):
            event = self._event(name)
            if event:
                return _Ending(words.format(**{"reason": "", "call": "", "status": "", **event}), tried=False)
        opened = self._event("open")
        result = _list(opened, "result")
        if result and result[0]:
            return _Ending(f"cuFileDriverOpen returned {_code(result)}")
        return self._end(f"before this {operation}" if opened else "in cuFileDriverOpen or before")

    def _end(self, where: str) -> _Ending:
        status = self._run.status
        if status == TIMED_OUT:
            return _Ending(f"cuFile did not return in time, {where}")
        if status < 0:
            return _Ending(f"cuFile was ended by signal {-status}, {where}")
        if status == NOT_FOUND:
            return _Ending(f"the try could not be started: {self._run.stderr.strip()}", tried=False)
        last = (self._run.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return _Ending(f"the try ended with status {status}, {where}: {last}")


def events(output: str) -> List[Dict[str, Any]]:
    """The JSON objects that the child printed, one a line; without the lines that aren't one."""
    records: List[Dict[str, Any]] = []
    for line in output.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            records += [event] if event and isinstance(event, dict) else []
    return records


def _list(values: Mapping[str, Any], key: str) -> List[Any]:
    value = values.get(key)
    return value if isinstance(value, list) else []


def _judge(mount: str, gpu: str, strict: _Pair, allowed: Optional[_Pair]) -> Proof:
    proof = Proof(mount, gpu, Unknown(""), operations=(strict.operation,))
    if strict.succeeded:
        path, how, evidence = _direct(strict)
        return replace(proof, path=path, how=how, evidence=(*evidence, *strict.log[-3:]))
    why = _why(strict)
    first = "with compat mode disallowed: " + why
    if _is_untried(strict):
        return replace(proof, path=Unknown(why))
    if allowed is None:
        return replace(proof, path=Unknown(first + "; no second try was made"), evidence=strict.log[-3:])
    if allowed.succeeded:
        if allowed.compat is False:
            words = "libcufile logs a direct path with compat mode allowed, but " + first
            return replace(proof, path=Unknown(words), evidence=allowed.log[-3:])
        how = f"a {strict.operation} succeeds with compat mode allowed, and fails " + first
        return replace(proof, path=COMPAT, how=how, evidence=(*strict.log[-3:], *allowed.log[-3:]))
    how = "a {} fails: {}; {}".format(strict.operation, "with compat mode allowed: " + _why(allowed), first)
    return replace(proof, path=BROKEN, how=how, evidence=(*allowed.log[-3:], *strict.log[-3:]))


def _direct(pair: _Pair) -> Tuple[Maybe[str], str, Tuple[str, ...]]:
    """(path, how, evidence) of an operation that succeeded with compat mode disallowed."""
    p2p = pair.last_done(1)
    done = f"a {pair.operation} succeeded with compat mode disallowed"
    if pair.compat:
        return COMPAT, "libcufile logs compat mode although that is disallowed: it is forced", ()
    if p2p:
        return P2PDMA, f"{done}, and libcufile logs P2P mode for it", ()
    idle, before, after = (proof_counters(pair.text(key)) for key in ("idle", "before", "after"))
    if not before or not after:
        shown = pair.text("after").strip()[:120] or "none were read"
        return Unknown(f"{done}, but nvidia-fs shows no counters: {shown}"), "", ()
    name, label = _COUNTED[pair.operation]
    counted = name in before and name in after
    name, label = (name, label) if counted else ("mapped", "Bar1-map ok")
    difference = after.get(name, 0) - before.get(name, 0)
    shown = f"{label}: {before.get(name)} → {after.get(name)}"
    evidence = ("/proc/driver/nvidia-fs/stats: " + shown,)
    others = before.get(name, 0) != idle.get(name, 0) or difference > (1 if counted else 2)
    if difference <= 0:
        off = "" if counted else " (its I/O counters are off: rw_stats_enabled=0)"
        return Unknown(f"{done}, but the counters of nvidia-fs did not move" + off), "", evidence
    if others and p2p is None:
        return Unknown(f"other programs move the counters of nvidia-fs as well ({shown})"), "", evidence
    how = f"{done}, and the counters of nvidia-fs moved ({shown})"
    if others:
        how += "; other programs move them, too, but libcufile logs neither P2P nor compat mode for it"
    return NVIDIA_FS, how, evidence


def _last(pattern: re.Pattern[str], group: int, log: Tuple[str, ...]) -> Optional[bool]:
    """Whether the last line that matches has a true value in ``group``; None where no line matches."""
    matches = [match for match in map(pattern.search, log) if match]
    return matches[-1].group(group) in _TRUE if matches else None


def _is_untried(pair: _Pair) -> bool:
    """Whether the failure isn't cuFile's: no library, no GPU, no scratch file, no memory."""
    untried = pair.ending is not None and not pair.ending.tried
    return untried or bool({"scratch", "memory"} & set(pair.values))


def _why(pair: _Pair) -> str:
    values = pair.values
    if pair.ending is not None:
        return pair.ending.why
    if "scratch" in values:
        return "no scratch file could be made: {}".format(values["scratch"])
    if "memory" in values:
        return "no memory on the GPU could be allocated: cuMemAlloc returned {}".format(values["memory"])
    registered, moved = _list(values, "register"), values.get(pair.operation)
    call = {READ: "cuFileRead", WRITE: "cuFileWrite"}[pair.operation]
    if registered and registered[0]:
        return f"cuFileHandleRegister returned {_code(registered)}"
    if isinstance(moved, int) and moved <= 0:
        return "{} returned {}".format(call, _code([-moved]) if moved < -1 else values.get("errno") or moved)
    if values.get("same") is False:
        return "other bytes came back than were written"
    return f"the {pair.operation} has no result"


def _code(result: List[Any]) -> str:
    """An error with its name, and CUDA's where there is one."""
    words = str(result[0])
    with contextlib.suppress(UnknownCodeError):
        words += f" ({lookup(words)[0].name})"
    return words + (f", CUDA error {result[1]}" if len(result) > 1 and result[1] else "")
