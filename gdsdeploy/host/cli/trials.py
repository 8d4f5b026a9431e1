"""``odirect PATH…``: direct I/O tried on this machine's mounts, and what their filesystems do with the data.

``proof PATH…``: a read through cuFile on this machine's mounts, and the path that it proves.

``load FOLDER…``: the rate of reads under load; see odirect/load.py.

``rdma``: whether the RDMA adapters of this machine register memory of its GPUs.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict, Iterator, Mapping, Sequence, Tuple

from ..evidence.recorder import EvidenceRequest, Recorder
from ..facts import as_dict
from ..facts.document import Document
from ..facts.unknown import Maybe, Unknown, if_known, known
from ..io.wording import aligned, line
from ..odirect.load import measured
from ..odirect.scratch import LONGEST, SECONDS as LOAD_SECONDS
from ..odirect.trials import SECONDS, audit
from ..paths import CUFILE, NVIDIA
from ..subjects import storage
from ..subjects.filesystem import Feature, features
from ..subjects.odirect import NOT_PROVEN, inside, loaded
from ..subjects.peermem import Registration, registrations
from ..subjects.proof import REGISTRATION_TIMEOUT, TIMEOUT, Proof, proofs, prove, register_memory
from ..subjects.storage import StorageFacts
from .parsers import PROGRAM, Option, number, option, seconds, show

#: Of each of the documents.
VERSION = 1
_PATHS = option("path", nargs="+", metavar="PATH", help="a folder on the mount; a new file in it is tried")


def _timeout(default: float, words: str = "for each try (%(default)g)") -> Option:
    return option("--timeout", type=seconds, default=default, metavar="SECONDS", help=words)


@PROGRAM.command(
    "odirect",
    "try in a scratch file whether direct I/O on a mount bypasses the page cache; the file is always removed",
    _PATHS,
    _timeout(SECONDS),
)
def try_odirect(arguments: argparse.Namespace) -> int:
    """Try each path, and print the results; 0 whatever they are, because ``validate`` is what fails."""
    folders = [os.path.abspath(path) for path in arguments.path]
    facts = StorageFacts(Document(collect_evidence(folders, arguments.timeout)))
    answers = [_described(facts, folder) for folder in folders]
    lines = [words for entry in answers for words in _odirect_text(entry)]
    # An empty line is between two of them, and not behind the last one.
    return show(arguments, {"version": VERSION, "paths": answers}, lines[:-1])


def collect_evidence(folders: Sequence[str], seconds: float) -> Dict[str, Any]:
    """Only the evidence that the answer needs."""
    recorder = Recorder()
    storage.collect_storage(recorder, EvidenceRequest(mounts=tuple(folders)))
    for folder in folders:
        mount = recorder.mounts().at(folder)
        recorder.document["odirect"][folder] = audit(folder, seconds, mount.id if mount is not None else "")
        if "trials" in recorder.document["odirect"][folder]:
            inside(recorder, folder)
    return recorder.finish()


def _described(facts: StorageFacts, folder: str) -> Dict[str, Any]:
    mount, audit = if_known(lambda: facts.mount_of(folder), None), facts.audits[folder]
    entry: Dict[str, Any] = {"path": folder, "mount": None, "trials": [], "conditions": []}
    if mount is not None:
        entry.update(
            mount=mount.mount_point,
            filesystem=mount.filesystem,
            source=mount.source,
            devices=[block.name for block in mount.devices],
            conditions=[_condition(feature) for feature in features(facts, mount, folder)],
        )
    if isinstance(audit, Unknown):
        return {**entry, "result": NOT_PROVEN, "reason": audit.reason}
    record = facts.document.record("odirect", folder) or {}
    entry.update((key, record.get(key)) for key in ("seconds", "kept", "instrument", "alignment"))
    return {**entry, "result": audit.summary, "reason": "", "trials": as_dict(audit.trials)}


def _condition(feature: Feature) -> Dict[str, Any]:
    reason = feature.state.reason if isinstance(feature.state, Unknown) else ""
    state = None if isinstance(feature.state, Unknown) else feature.state
    return {"name": feature.name, "state": state, "reason": reason, "said": list(feature.evidence)}


def _odirect_text(entry: Dict[str, Any]) -> Iterator[str]:
    where = "{filesystem} on {source}".format(**entry) if entry["mount"] else "no mount is known"
    yield f"{entry['path']}  {where}"
    if entry["reason"]:
        yield f"  not proven: {entry['reason']}"
    else:
        yield f"  {entry['result']}"
        visibility = f"seen with {entry['instrument']}" if entry["instrument"] else "nothing shows the page cache here"
        if entry["kept"]:
            yield f"  {visibility}; scratch file {entry['kept']}; {entry['seconds']:.2f} s"
    pages = [f"{trial['pages']} page(s)" if trial["pages"] else "" for trial in entry["trials"]]
    rows = [[trial["name"], trial["result"], trial["error"] or of_it] for trial, of_it in zip(entry["trials"], pages)]
    yield from aligned(rows, "    ")
    yield from aligned(
        [[each["name"], each["state"] or "not shown", each["reason"] or "; ".join(each["said"])]
         for each in entry["conditions"]], "    ",
    )  # fmt: skip
    yield ""


@PROGRAM.command(
    "proof",
    "read a scratch file through cuFile with each GPU, and say which path that proves; the file is removed",
    _PATHS,
    _timeout(TIMEOUT),
)
def try_proof(arguments: argparse.Namespace) -> int:
    """Print the answer; 0 whatever it is, because ``validate`` is what fails."""
    folders = [os.path.abspath(path) for path in arguments.path]
    results = try_paths(folders, arguments.timeout)
    lines = (line for folder in folders for line in proof_text(folder, results.get(folder, ())))
    return show(arguments, {"version": VERSION, "proofs": as_dict(results)}, lines)


def try_paths(folders: Sequence[str], seconds: float = TIMEOUT) -> Mapping[str, Tuple[Proof, ...]]:
    """What a read on each of ``folders`` proves, by folder and with each GPU; at most two tries of ``seconds``."""
    recorder = Recorder()
    recorder.text(CUFILE, limit=256 * 1024)
    recorder.names(NVIDIA + "/gpus")
    mounts = {folder: recorder.mounts().at(folder) for folder in folders}
    ids = {folder: mount.id if mount is not None else "" for folder, mount in mounts.items()}
    prove(recorder.command, ids, {}, seconds)
    return proofs(Document(recorder.finish()))


def proof_text(folder: str, results: Sequence[Proof]) -> Iterator[str]:
    if not results:
        yield f"{folder}  not proven: the try printed nothing"
    for proof in results:
        name = f"{folder}  {f'GPU {proof.gpu}' if proof.gpu else 'no GPU'}"
        if isinstance(proof.path, Unknown):
            yield f"{name}: not proven: {proof.path.reason}"
        else:
            yield f"{name}: {proof.path.upper()}: {proof.how}"
        yield from ("    " + line for line in proof.evidence)


@PROGRAM.command(
    "load",
    "measure how fast a mount reads under load, with a scratch file that is always removed",
    option("folders", nargs="+", metavar="FOLDER"),
    option(
        "--seconds",
        type=number(lambda value: 0 < value <= LONGEST, f"a number of seconds above 0 and up to {LONGEST:g}"),
        default=LOAD_SECONDS,
        help=f"seconds of reading, {LONGEST:g} at most (default: {LOAD_SECONDS:g})",
    ),
)
def try_load(arguments: argparse.Namespace) -> int:
    """Print the rate of each folder; 31 where one has none."""
    results = {folder: measured(folder, arguments.seconds) for folder in arguments.folders}
    rates = ((folder, one.get("error") or loaded(folder, one).summary) for folder, one in results.items())
    show(arguments, results, (line(f"{folder}: {words}") for folder, words in rates))
    return 31 if any("error" in result for result in results.values()) else 0


@PROGRAM.command(
    "rdma",
    "register memory of each GPU with each RDMA adapter, through peermem and as DMA-BUF, and deregister it",
    _timeout(REGISTRATION_TIMEOUT, "for all (%(default)g)"),
)
def try_registration(arguments: argparse.Namespace) -> int:
    """Print the results; 0 whatever they are, because ``validate`` is what fails."""
    recorder = Recorder()
    register_memory(recorder.command, arguments.timeout)
    document = Document(recorder.finish())
    results = known(lambda: registrations(document))
    value = {"version": VERSION, "registrations": as_dict(results)}
    return show(arguments, value, registration_lines(results))


def registration_lines(results: Maybe[Tuple[Registration, ...]]) -> Iterator[str]:
    if isinstance(results, Unknown):
        yield f"not tried: {results.reason}"
    elif not results:
        yield "there is no GPU or no RDMA adapter"
    else:
        for result in results:
            yield f"{result.by} {result.words}"
