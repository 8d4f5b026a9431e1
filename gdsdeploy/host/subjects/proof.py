"""What a read and a write through cuFile prove: the path that they took, for each mount and GPU, or why it is unknown.

An operation that succeeds while compat mode is disallowed took a direct path; the counters of nvidia-fs and libcufile's
log of it show which one.  If it fails, a second try with compat mode allowed tells "through CPU memory" from
"broken".  Each try is its own program (host/proof/child.py): the library may crash, or never return.  It reads the
host's configuration with an overlay, key by key, that sets ``allow_compat_mode`` only.

Counters of nvidia-fs: ``Bar1-map … ok`` rises whenever GPU memory is mapped for it, ``Reads … ok`` and ``Writes … ok``
with each operation while its parameter rw_stats_enabled is on; none of them rises for compat mode or P2PDMA.  A file
that needs compat mode can't be registered while that is disallowed, so a mapping and a successful operation belong
together.

The same program shows GPUDirect RDMA: memory of each GPU is registered with each adapter, and deregistered.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import re
import secrets
import tempfile
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..facts.document import NOT_FOUND, TIMED_OUT, Document, Ran
from ..facts.unknown import Maybe, Unknown, if_known
from ..libcufile.probe import libraries, without_cufile
from ..odirect.scratch import PREFIX, ended_cleanly
from ..paths import CUFILE, NVFS, NVIDIA, PROOF, PROOF_COMPAT, REGISTRATION
from ..process import PYTHON, apart
from .condition import BROKEN, COMPAT, NVIDIA_FS, P2PDMA
from .cufile_json import merged, parse_config
from .pci import PciFacts
from .register import collector
from .types import EvidenceRequest, Recorder


@collector("proof")
def collect_proof(recorder: Recorder, request: EvidenceRequest) -> None:
    if not request.scratch:
        return
    mounts = recorder.mounts().visible
    # Where direct I/O couldn't even be tried, the server may be gone: don't wait for it twice.
    audits = recorder.document["odirect"]
    ids = {path: mounts[path].id for path in request.scratch if path in mounts and "trials" in audits.get(path, {})}
    if ids and recorder.names(NVIDIA + "/gpus"):
        config = recorder.text(request.cufile_path, limit=256 * 1024) or ""
        prove(recorder.command, ids, configuration(config, request.cufile_path))


#: Seconds for one try: CUDA alone may take several to start, and each mount and GPU has its own operations.
TIMEOUT = 20.0
UNLINK_SECONDS = 5.0


def prove(
    command: Callable[..., Any], folders: Mapping[str, str], config: Mapping[str, Any], timeout: float = TIMEOUT
) -> None:
    """Try both ways through ``command`` (Recorder.command); the second only where some I/O of the first failed.

    folders: mount point → the id of the mount to try, or empty for the one that the path leads to.
    config: the host's configuration as a JSON object where it isn't /etc/cufile.json, else {}.
    """
    with tempfile.TemporaryDirectory(prefix="cufile-proof-") as work:
        for run, allowed in ((PROOF, False), (PROOF_COMPAT, True)):
            overlay = merged(config, {"properties": {"allow_compat_mode": allowed}})
            if complete(_try(command, run, work, folders, overlay, timeout)):
                break


def complete(output: str) -> bool:
    """Whether every read and write of a try succeeded."""
    records = events(output)
    pairs = [record for record in records if record.get("event") == "pair"]
    succeeded = all(is_done(pair) for pair in pairs)
    return bool(pairs) and succeeded and records[-1].get("event") == "end"


def _try(
    command: Callable[..., Any],
    run: str,
    work: str,
    folders: Mapping[str, str],
    overlay: Dict[str, Any],
    timeout: float,
) -> str:
    folder = os.path.join(work, run)
    os.mkdir(folder)
    path = _written(folder, "cufile.json", json.dumps(overlay))
    log, program = os.path.join(folder, "cufile.log"), _written(folder, "proof.py", source())
    name = PREFIX + secrets.token_hex(8)
    request = {"libraries": libraries(), "mounts": dict(folders), "stats": NVFS + "/stats", "log": log, "name": name}
    argv = [*without_cufile(), "CUFILE_ENV_PATH_JSON=" + path, "CUFILE_LOGFILE_PATH=" + log]
    argv += ["CUFILE_LOGGING_LEVEL=TRACE", *PYTHON, program, json.dumps(request)]
    with ended_cleanly():
        try:
            return str(command(run, argv, timeout=timeout, cwd=folder).stdout)
        finally:
            # A crash or a kill of the library leaves the file behind.  Its server may be gone; an error is its own.
            for mount in folders:
                apart(partial(_remove, os.path.join(mount, name)), UNLINK_SECONDS)


def _remove(path: str) -> str:
    os.unlink(path)
    return ""


def _written(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    return path


def source() -> str:
    """The source of child.py, from its folder or archive."""
    data = pkgutil.get_data(f"{__package__.rpartition('.')[0]}.proof", "child.py")
    assert data is not None
    return data.decode("utf-8")


def configuration(text: str, path: str) -> Mapping[str, Any]:
    """The configuration to put into the overlay: none where the library reads the file itself."""
    config = None
    # The library and the check cufile.accepted report what is no configuration.
    with contextlib.suppress(ValueError, RecursionError):
        config = parse_config(text) if path != CUFILE else None
    return config if isinstance(config, dict) else {}


#: Seconds: CUDA alone may take several to start; a registration takes milliseconds.
REGISTRATION_TIMEOUT = 30.0


def register_memory(command: Callable[..., Any], timeout: float = REGISTRATION_TIMEOUT) -> None:
    """Try every GPU with every adapter through ``command`` (Recorder.command)."""
    with tempfile.TemporaryDirectory(prefix="rdma-") as work:
        command(REGISTRATION, [*without_cufile(), *PYTHON, _written(work, "rdma.py", source())], timeout=timeout)


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
#: Operation → the counter of nvidia-fs that rises with it; MAPPED rises with both.
_COUNTED, MAPPED = {READ: "Reads", WRITE: "Writes"}, "Bar1-map"
#: One operation of 1 MiB may be counted in pieces of 64 KiB or more: the least max_direct_io_size_kb.
PIECES = 16
_COUNTER = rf"^(Reads|Writes|{MAPPED})\s*: n=\d+ ok=(\d{{1,18}})"


class Proof(NamedTuple):
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


class _Pair(NamedTuple):
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
    return {name: int(number) for name, number in re.findall(_COUNTER, text, re.MULTILINE)}


def proofs(document: Document) -> Mapping[str, Tuple[Proof, ...]]:
    """Mount point → one proof for each GPU, two where its read and write differ; empty where nothing was tried."""
    runs = [if_known(partial(document.attempted, name), None) for name in (PROOF, PROOF_COMPAT)]
    if runs[0] is None:
        return {}
    here = served(document)
    first, second = _Try(runs[0], here), _Try(runs[1], here) if runs[1] is not None else None
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
    return [results[0]._replace(evidence=evidence, operations=operations)]


class Trial:
    """One run of the child, of any shape.  served: GPUs that CUDA should have given it."""

    def __init__(self, run: Ran, served: Sequence[str]) -> None:
        self._run, self._served, self._events = run, served, events(run.stdout)

    def _event(self, kind: str, **where: str) -> Dict[str, Any]:
        expected = {"event": kind, **where}
        return next((event for event in self._events if expected.items() <= event.items()), {})

    def _gpus(self) -> Optional[List[str]]:
        """Every GPU: those that CUDA gave it, those that it refused, and those that it should have given.

        None: it ended before it knew them.
        """
        given = given_gpus(self._events)
        return None if given is None else list(dict.fromkeys([*given, *refused(self._events), *self._served]))


class _Try(Trial):
    """One that reads and writes."""

    def requests(self) -> Tuple[Tuple[str, str], ...]:
        """Every (mount, GPU) to try, from the child's lists: it may have stopped before some of them."""
        mounts = [mount for mount in _list(self._event("start"), "mounts") if isinstance(mount, str)]
        return tuple((mount, gpu) for mount in mounts for gpu in self._gpus() or [""])

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
        return _Pair(operation, {"log": _list(self._event("open"), "log")}, self._before(gpu, operation))

    def _before(self, gpu: str, operation: str) -> _Ending:
        """Why the child stopped before an operation, or had no GPU for it."""
        gpus = given_gpus(self._events)
        if gpus is not None and gpu not in gpus:
            return _Ending(not_given(self._events, gpu), tried=False)
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
        if self._run.status == NOT_FOUND:
            return _Ending(f"the try could not be started: {self._run.stderr.strip()}", tried=False)
        return _Ending(ended(self._run, "cuFile", f", {where}"))


def ended(run: Ran, name: str, where: str) -> str:
    """Why a child stopped before it was done."""
    if run.status == TIMED_OUT:
        return f"{name} did not return in time{where}"
    if run.status < 0:
        return f"{name} was ended by signal {-run.status}{where}"
    last = (run.stderr.strip().splitlines() or ["it printed nothing"])[-1]
    return f"{name} ended with status {run.status}{where}: {last}"


def events(output: str) -> List[Dict[str, Any]]:
    """The JSON objects that the child printed, one a line; without the lines that aren't one."""
    records: List[Dict[str, Any]] = []
    for line in output.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            event = json.loads(line)
            records += [event] if event and isinstance(event, dict) else []
    return records


def served(document: Document) -> List[str]:
    """GPUs that programs should get: those of the driver, and those on PCI that no other driver has."""
    functions = if_known(lambda: PciFacts(document).gpus, ())
    on_pci = [one.address for one in functions if not one.virtual and one.driver in ("", "nvidia")]
    return [*on_pci, *document.existing(NVIDIA + "/gpus")]


def given_gpus(records: Sequence[Mapping[str, Any]]) -> Optional[List[str]]:
    """The GPUs that CUDA gave a child; None: it ended before it knew them."""
    event = next((record for record in records if record.get("event") == "gpus"), None)
    return None if event is None else [gpu for gpu in _list(event, "gpus") if isinstance(gpu, str)]


def refused(records: Sequence[Mapping[str, Any]]) -> Dict[str, str]:
    """GPUs that CUDA lists, but gave the child no context of → its error."""
    events = [record for record in records if record.get("event") == "no context" and "gpu" in record]
    return {str(event["gpu"]): str(event.get("status")) for event in events}


def not_given(records: Sequence[Mapping[str, Any]], gpu: str) -> str:
    """Why a child had no use of a GPU."""
    error = refused(records).get(gpu)
    words = f"CUDA has no context for it: CUDA error {error}" if error else "CUDA doesn't list it"
    return f"GPU {gpu}: {words}" if gpu else "CUDA lists no GPU"


def _list(values: Mapping[str, Any], key: str) -> List[Any]:
    value = values.get(key)
    return value if isinstance(value, list) else []


def _judge(mount: str, gpu: str, strict: _Pair, allowed: Optional[_Pair]) -> Proof:
    proof = Proof(mount, gpu, Unknown(""), operations=(strict.operation,))
    if strict.succeeded:
        path, how, evidence = _direct(strict)
        return proof._replace(path=path, how=how, evidence=(*evidence, *strict.log[-3:]))
    why = _why(strict)
    first = "with compat mode disallowed: " + why
    if _is_untried(strict):
        return proof._replace(path=Unknown(why))
    if allowed is None:
        return proof._replace(path=Unknown(first + "; no second try was made"), evidence=strict.log[-3:])
    if allowed.succeeded:
        if allowed.compat is False:
            words = "libcufile logs a direct path with compat mode allowed, but " + first
            return proof._replace(path=Unknown(words), evidence=allowed.log[-3:])
        how = f"a {strict.operation} succeeds with compat mode allowed, and fails " + first
        return proof._replace(path=COMPAT, how=how, evidence=(*strict.log[-3:], *allowed.log[-3:]))
    how = "a {} fails: {}; {}".format(strict.operation, "with compat mode allowed: " + _why(allowed), first)
    return proof._replace(path=BROKEN, how=how, evidence=(*allowed.log[-3:], *strict.log[-3:]))


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
    name = _COUNTED[pair.operation]
    counted = name in before and name in after
    name = name if counted else MAPPED
    difference = after.get(name, 0) - before.get(name, 0)
    shown = f"{name} ok: {before.get(name)} → {after.get(name)}"
    evidence = ("/proc/driver/nvidia-fs/stats: " + shown,)
    others = before.get(name, 0) != idle.get(name, 0) or difference > PIECES + (0 if counted else 1)
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
    # The collector of this page has no use for it.
    from ..libcufile.errors import UnknownCodeError, lookup

    words = str(result[0])
    with contextlib.suppress(UnknownCodeError):
        words += f" ({lookup(words)[0].name})"
    return words + (f", CUDA error {result[1]}" if len(result) > 1 and result[1] else "")
