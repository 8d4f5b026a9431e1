"""``proof PATH…``: a read through cuFile on this machine's mounts, and the path that it proves."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Callable, Dict, Iterator, Mapping, Sequence, Tuple

from ..evidence.recorder import Recorder
from ..facts import as_dict
from ..facts.document import Document
from ..facts.proof import Proof, proofs
from ..facts.unknown import Unknown
from ..gdscheck.live import seconds as seconds_word
from ..paths import CUFILE
from ..proof.proof import TIMEOUT, prove

VERSION = 1


def add_parser(commands: Any, action: Callable[[argparse.Namespace], int]) -> None:
    """Add ``proof`` to the host program's commands; ``action`` runs it."""
    words = "read a scratch file through cuFile with each GPU, and say which path that proves; the file is removed"
    parser = commands.add_parser("proof", help=words, description=words)
    parser.add_argument("path", nargs="+", metavar="PATH", help="a folder on the mount")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--timeout", type=seconds_word, default=TIMEOUT, metavar="SECONDS", help="for each try (%(default)g)"
    )
    parser.set_defaults(run=action)


def command(arguments: argparse.Namespace) -> int:
    """Print the answer; 0 whatever it is, because ``validate`` is what fails."""
    folders = [os.path.abspath(path) for path in arguments.path]
    found = tried(folders, arguments.timeout)
    if arguments.json:
        shown: Dict[str, Any] = {"version": VERSION, "proofs": as_dict(found)}
        print(json.dumps(shown, sort_keys=True))
    else:
        print("\n".join(line for folder in folders for line in text(folder, found.get(folder, ()))))
    return 0


def tried(folders: Sequence[str], seconds: float = TIMEOUT) -> Mapping[str, Tuple[Proof, ...]]:
    """What a read on each of ``folders`` proves, by folder and with each GPU; at most two tries of ``seconds``."""
    recorder = Recorder()
    recorder.text(CUFILE, limit=256 * 1024)
    prove(recorder.command, folders, {}, seconds)
    return proofs(Document(recorder.finish()))


def text(folder: str, found: Sequence[Proof]) -> Iterator[str]:
    if not found:
        yield f"{folder}  not proven: the try said nothing"
    for item in found:
        name = "{}  {}".format(folder, f"GPU {item.gpu}" if item.gpu else "no GPU")
        if isinstance(item.path, Unknown):
            yield f"{name}: not proven: {item.path.reason}"
        else:
            yield f"{name}: {item.path.upper()}: {item.how}"
        yield from ("    " + line for line in item.evidence)
