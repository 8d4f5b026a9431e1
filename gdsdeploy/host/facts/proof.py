"""What a read through cuFile proves: the path it took, or why that cannot be said.  See host/proof.

Counters of nvidia-fs: ``Bar1-map … ok`` rises whenever GPU memory is mapped for it, ``Reads … ok`` with each read while
its parameter rw_stats_enabled is on; neither rises for compat mode or P2PDMA.  A file for which compat mode would be
needed cannot be registered while that is disallowed, so a mapping and a read that succeeds then belong together.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ..libcufile.errors import UnknownCodeError, lookup
from ..paths import PROOF, PROOF_COMPAT
from .document import NOT_FOUND, TIMED_OUT, Document, Ran
from .unknown import Maybe, Unknown

#: As in host/explain/cause.py, which builds on the facts.
NVIDIA_FS, P2PDMA, COMPAT, BROKEN = "nvidia-fs", "p2pdma", "compat", "broken"
#: What libcufile logs, at level TRACE, of a read that it has done (1.15 to 1.20).
_DONE = re.compile(r"read : Updating stats .*p2p mode: (\d|true|false) compat: (\d|true|false)")
#: The same of a file that is registered.
_HANDLE = re.compile(r"Compatibility Mode: (\d|true|false) ")
_TRUE = ("1", "true")
_COUNTERS = (
    ("reads", re.compile(r"^Reads\s*: n=\d+ ok=(\d{1,18})", re.MULTILINE)),
    ("read errors", re.compile(r"^Reads\s*: .*?err=(\d{1,18})", re.MULTILINE)),
    ("mapped", re.compile(r"^Bar1-map\s*: n=\d+ ok=(\d{1,18})", re.MULTILINE)),
    ("map errors", re.compile(r"^Bar1-map\s*: n=\d+ ok=\d+ err=(\d{1,18})", re.MULTILINE)),
    ("processes", re.compile(r"^Active Process: (\d{1,18})", re.MULTILINE)),
)


@dataclass(frozen=True)
class Proof:
    """``path``: ``nvidia-fs``, ``p2pdma``, ``compat`` or ``broken``; unknown where the tries do not prove it."""

    mount: str
    #: PCI address as libcuda has it
    gpu: str
    path: Maybe[str]
    #: what showed it, as one sentence
    how: str
    #: lines of counters, of the library and of its log
    evidence: Tuple[str, ...] = ()


class _Ending(NamedTuple):
    """Why there is no more of a try.  ``tried``: whether cuFile was come to at all."""

    why: str
    tried: bool = True


@dataclass(frozen=True)
class _Pair:
    """One read: ``values`` as the child wrote them, ``ending``: None where it came to its end."""

    values: Mapping[str, Any]
    ending: Optional[_Ending]

    @property
    def good(self) -> bool:
        read = self.values.get("read")
        return self.ending is None and self.values.get("same") is True and isinstance(read, int) and read > 0

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    @property
    def log(self) -> Tuple[str, ...]:
        lines = self.values.get("log")
        return tuple(str(item) for item in lines) if isinstance(lines, list) else ()


def counters(text: str) -> Dict[str, int]:
    """The counters of /proc/driver/nvidia-fs/stats that matter here; a release or a setting may lack some."""
    found = ((name, pattern.search(text)) for name, pattern in _COUNTERS)
    return {name: int(hit.group(1)) for name, hit in found if hit}


def proofs(document: Document) -> Mapping[str, Tuple[Proof, ...]]:
    """By mount point, one for each GPU; empty where nothing was tried."""
    run = document.attempted(PROOF)
    if isinstance(run, Unknown):
        return {}
    second_run = document.attempted(PROOF_COMPAT)
    second = _Try(second_run) if isinstance(second_run, Ran) else None
    first = _Try(run)
    found: Dict[str, List[Proof]] = {}
    for mount, gpu in first.asked() or (second.asked() if second else ()):
        proof = _judged(mount, gpu, first.pair(mount, gpu), second.pair(mount, gpu) if second else None)
        found.setdefault(mount, []).append(proof)
    return {mount: tuple(items) for mount, items in found.items()}


class _Try:
    """One run of the child, of any shape."""

    def __init__(self, run: Ran) -> None:
        self._run = run
        self._events = [item for item in (_event(line) for line in run.stdout.splitlines()) if item]

    def _one(self, name: str) -> Optional[Dict[str, Any]]:
        return next((item for item in self._events if item.get("event") == name), None)

    def asked(self) -> Tuple[Tuple[str, str], ...]:
        """Every (mount, GPU) that was to be read; those that the child did not come to are made up from its list."""
        start = self._one("start") or {}
        listed = start.get("mounts")
        mounts = [item for item in listed if isinstance(item, str)] if isinstance(listed, list) else []
        gpus = (self._one("gpus") or {}).get("gpus")
        names = [item for item in gpus if isinstance(item, str)] if isinstance(gpus, list) else []
        return tuple((mount, gpu) for mount in mounts for gpu in names or [""])

    def pair(self, mount: str, gpu: str) -> _Pair:
        for name in ("pair", "begin"):
            for item in self._events:
                if (item.get("event"), item.get("mount"), item.get("gpu")) == (name, mount, gpu):
                    return _Pair(item, None if name == "pair" else self._end("while it read"))
        return _Pair({"log": self._log()}, self._before())

    def _before(self) -> _Ending:
        """Why the child did not come to a read."""
        for name, words in (
            ("not loaded", "libcufile or libcuda was not loaded: {reason}"),
            ("no GPU", "CUDA gives no GPU: {call} returned {status}"),
        ):
            event = self._one(name)
            if event is not None:
                return _Ending(words.format(**{"reason": "", "call": "", "status": "", **event}), tried=False)
        opened = self._one("open")
        result = opened.get("result") if opened else None
        if isinstance(result, list) and result and result[0]:
            return _Ending(f"cuFileDriverOpen returned {_code(result)}")
        return self._end("before it came to this read" if opened else "in cuFileDriverOpen or before")

    def _log(self) -> List[Any]:
        lines = (self._one("open") or {}).get("log")
        return lines if isinstance(lines, list) else []

    def _end(self, where: str) -> _Ending:
        status = self._run.status
        if status == TIMED_OUT:
            return _Ending(f"cuFile did not return in time, {where}")
        if status < 0:
            return _Ending(f"cuFile was ended by signal {-status}, {where}")
        if status == NOT_FOUND:
            return _Ending(f"the try could not be started: {self._run.stderr.strip()}", tried=False)
        last = (self._run.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return _Ending(f"the try ended with status {status}, {where}: {last}")


def _event(line: str) -> Dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _judged(mount: str, gpu: str, strict: _Pair, allowed: Optional[_Pair]) -> Proof:
    if strict.good:
        path, how, evidence = _direct(strict)
        return Proof(mount, gpu, path, how, (*evidence, *strict.log[-3:]))
    why = _why(strict)
    first = "with compat mode disallowed: " + why
    if _untried(strict):
        return Proof(mount, gpu, Unknown(why), "", ())
    if allowed is None:
        return Proof(mount, gpu, Unknown(first + "; no second try was made"), "", strict.log[-3:])
    if allowed.good:
        logged = _compat(allowed.log)
        if logged is False:
            words = "libcufile logs a direct path with compat mode allowed, but " + first
            return Proof(mount, gpu, Unknown(words), "", allowed.log[-3:])
        how = "a read succeeds with compat mode allowed, and fails " + first
        return Proof(mount, gpu, COMPAT, how, (*strict.log[-3:], *allowed.log[-3:]))
    how = "a read fails: {}; {}".format("with compat mode allowed: " + _why(allowed), first)
    return Proof(mount, gpu, BROKEN, how, (*allowed.log[-3:], *strict.log[-3:]))


def _direct(pair: _Pair) -> Tuple[Maybe[str], str, Tuple[str, ...]]:
    """(path, how, evidence) of a read that succeeded with compat mode disallowed."""
    done = [found for found in (_DONE.search(line) for line in pair.log) if found]
    p2p = done[-1].group(1) in _TRUE if done else None
    if _compat(pair.log):
        return COMPAT, "libcufile logs compat mode although that is disallowed: it is forced", ()
    if p2p:
        return P2PDMA, "a read succeeded with compat mode disallowed, and libcufile logs P2P mode for it", ()
    idle, before, after = (counters(pair.text(key)) for key in ("idle", "before", "after"))
    if not before or not after:
        reason = "a read succeeded with compat mode disallowed, but nvidia-fs shows no counters: {}"
        return Unknown(reason.format(pair.text("after").strip()[:120] or "none were read")), "", ()
    name = "reads" if "reads" in before and "reads" in after else "mapped"
    moved = after.get(name, 0) - before.get(name, 0)
    shown = "{}: {} → {}".format("Reads ok" if name == "reads" else "Bar1-map ok", before.get(name), after.get(name))
    evidence = ("/proc/driver/nvidia-fs/stats: " + shown,)
    others = before.get(name, 0) != idle.get(name, 0) or moved > (1 if name == "reads" else 2)
    if moved <= 0:
        off = " (its I/O counters are off: rw_stats_enabled=0)" if name == "mapped" else ""
        reason = "a read succeeded with compat mode disallowed, but the counters of nvidia-fs did not move"
        return Unknown(reason + off), "", evidence
    if others and p2p is None:
        return Unknown(f"other programs move the counters of nvidia-fs as well ({shown})"), "", evidence
    how = f"a read succeeded with compat mode disallowed, and the counters of nvidia-fs moved ({shown})"
    if others:
        how += "; other programs move them, too, but libcufile logs neither P2P nor compat mode for this read"
    return NVIDIA_FS, how, evidence


def _compat(log: Tuple[str, ...]) -> Optional[bool]:
    """Whether libcufile logs compat mode for a read; None where it logs nothing of it."""
    for pattern, group in ((_DONE, 2), (_HANDLE, 1)):
        hits = [found for found in (pattern.search(line) for line in log) if found]
        if hits:
            return hits[-1].group(group) in _TRUE
    return None


def _untried(pair: _Pair) -> bool:
    """Whether nothing of cuFile was seen to fail: no library, no GPU, no scratch file, no memory."""
    if pair.ending is not None and not pair.ending.tried:
        return True
    return bool({"scratch", "memory"} & set(pair.values))


def _why(pair: _Pair) -> str:
    values = pair.values
    if pair.ending is not None:
        return pair.ending.why
    if "scratch" in values:
        return "no scratch file could be made: {}".format(values["scratch"])
    if "memory" in values:
        return "no memory on the GPU could be had: cuMemAlloc returned {}".format(values["memory"])
    for key, call in (("register", "cuFileHandleRegister"), ("read", "cuFileRead")):
        value = values.get(key)
        if isinstance(value, list) and value and value[0]:
            return f"{call} returned {_code(value)}"
        if key == "read" and isinstance(value, int) and value <= 0:
            return "{} returned {}".format(call, _code([-value]) if value < -1 else values.get("errno") or value)
    return "other bytes came back than were written" if values.get("same") is False else "it says nothing of the read"


def _code(result: List[Any]) -> str:
    """An error with its name, and CUDA's where there is one."""
    words = str(result[0])
    with contextlib.suppress(UnknownCodeError):
        words += f" ({lookup(words)[0].name})"
    return words + (f", CUDA error {result[1]}" if len(result) > 1 and result[1] else "")
