"""``odirect PATH…``: direct I/O tried on this machine's mounts, and what their filesystems do with the data."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Callable, Dict, Iterator, List, Sequence

from ..evidence import storage
from ..evidence.odirect import inside
from ..evidence.recorder import Recorder
from ..evidence.wanted import Wanted
from ..explain import blocks
from ..facts.conditions import Condition, conditions
from ..facts.document import Document
from ..facts.odirect import NOT_PROVEN, Audit, audits
from ..facts.storage import Mount, StorageFacts, storage_facts
from ..facts.unknown import Unknown
from ..gdscheck.live import seconds as seconds_word
from ..io.printable import line
from ..odirect.audit import SECONDS, audit
from ..paths import MOUNTINFO

VERSION = 1
_WIDTH = max(len(name) for name in ("write into preallocated space", "overwrite, unaligned memory"))


def add_parser(commands: Any, action: Callable[[argparse.Namespace], int]) -> None:
    """Add ``odirect`` to the host program's commands; ``action`` runs it."""
    words = "try in a scratch file whether direct I/O on a mount bypasses the page cache; the file is always removed"
    parser = commands.add_parser("odirect", help=words, description=words)
    parser.add_argument("path", nargs="+", metavar="PATH", help="a folder on the mount; a new file in it is tried")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--timeout", type=seconds_word, default=SECONDS, metavar="SECONDS", help="for each PATH (%(default)g)"
    )
    parser.set_defaults(run=action)


def command(arguments: argparse.Namespace) -> int:
    """Print the answer; 0 whatever it is, because ``validate`` is what fails."""
    print(answer(arguments.path, arguments.json, arguments.timeout))
    return 0


def answer(paths: Sequence[str], as_json: bool, seconds: float = SECONDS) -> str:
    """Try each of ``paths``, and say what came of it as text or as one JSON object."""
    folders = [os.path.abspath(path) for path in paths]
    document = Document(collected(folders, seconds))
    facts, tried = storage_facts(document), audits(document)
    found = [_described(document, facts, tried[folder], folder) for folder in folders]
    if as_json:
        return json.dumps({"version": VERSION, "paths": found}, sort_keys=True)
    return "\n".join(line(words) for item in found for words in _text(item)).rstrip("\n")


def collected(folders: Sequence[str], seconds: float) -> Dict[str, Any]:
    """The evidence that is needed, and no more."""
    recorder = Recorder()
    storage.collect(recorder, Wanted(mounts=tuple(folders)))
    text = recorder.text(MOUNTINFO, limit=1024 * 1024) or ""
    for folder in folders:
        recorder.document["odirect"][folder] = audit(folder, seconds)
        if "trials" in recorder.document["odirect"][folder]:
            inside(recorder, folder, text)
    return recorder.finish()


def _described(document: Document, facts: StorageFacts, tried: Any, folder: str) -> Dict[str, Any]:
    raw = document.record("odirect", folder)
    mount = facts.mount_of(folder)
    found: Dict[str, Any] = {"path": folder, "mount": None, "trials": [], "conditions": []}
    if isinstance(mount, Mount):
        shown = {"mount": mount.mount_point, "filesystem": mount.filesystem, "source": mount.source}
        devices = [item.name for item in blocks.stack(mount)]
        said = [_condition(item) for item in conditions(document, facts, mount, folder)]
        found.update({**shown, "devices": devices, "conditions": said})
    if isinstance(tried, Unknown):
        return {**found, "result": NOT_PROVEN, "reason": tried.reason}
    assert isinstance(tried, Audit)
    trials = [{"name": i.name, "result": i.result, "pages": i.pages, "error": i.error} for i in tried.trials]
    more = (
        {key: raw.get(key) for key in ("seconds", "kept", "instrument", "alignment")} if isinstance(raw, dict) else {}
    )
    return {**found, **more, "result": tried.summary, "reason": "", "trials": trials}


def _condition(item: Condition) -> Dict[str, Any]:
    unknown = isinstance(item.state, Unknown)
    reason = item.state.reason if isinstance(item.state, Unknown) else ""
    return {"name": item.name, "state": None if unknown else item.state, "reason": reason, "said": list(item.said)}


def _text(item: Dict[str, Any]) -> Iterator[str]:
    where = "{filesystem} on {source}".format(**item) if item["mount"] else "no mount is known"
    yield "{}  {}".format(item["path"], where)
    if item["reason"]:
        yield "  not proven: {}".format(item["reason"])
    else:
        yield "  {}".format(item["result"])
        seen = "seen with {}".format(item["instrument"]) if item["instrument"] else "nothing shows the page cache here"
        if item["kept"]:
            yield "  {}; scratch file {}; {:.2f} s".format(seen, item["kept"], item["seconds"])
    for trial in item["trials"]:
        pages = "{} page(s)".format(trial["pages"]) if trial["pages"] else ""
        words = [trial["name"].ljust(_WIDTH), trial["result"].ljust(10), trial["error"] or pages]
        yield "    " + " ".join(words).rstrip()
    yield from _conditions(item["conditions"])
    yield ""


def _conditions(items: List[Dict[str, Any]]) -> Iterator[str]:
    width = max([len(item["name"]) for item in items] or [0])
    for item in items:
        state = item["state"] or "not shown"
        said = item["reason"] or "; ".join(item["said"])
        yield "    {} {} {}".format(item["name"].ljust(width), state.ljust(9), said)
