"""``proof PATH…``: a read through cuFile on this machine's mounts, and the path that it proves."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any, Iterator, Mapping, Sequence, Tuple

from ..evidence.recorder import Recorder
from ..facts import as_dict
from ..facts.document import Document
from ..facts.proof import Proof, proofs
from ..facts.unknown import Unknown
from ..paths import CUFILE
from ..proof.proof import TIMEOUT, prove
from . import parsers

VERSION = 1


def add_parser(commands: Any) -> None:
    """Add ``proof`` to the host program's commands."""
    words = "read a scratch file through cuFile with each GPU, and say which path that proves; the file is removed"
    parsers.trial(commands, "proof", command, words, TIMEOUT)


def command(arguments: argparse.Namespace) -> int:
    """Print the answer; 0 whatever it is, because ``validate`` is what fails."""
    folders = [os.path.abspath(path) for path in arguments.path]
    results = try_paths(folders, arguments.timeout)
    if arguments.json:
        print(json.dumps({"version": VERSION, "proofs": as_dict(results)}, sort_keys=True))
    else:
        print("\n".join(line for folder in folders for line in text(folder, results.get(folder, ()))))
    return 0


def try_paths(folders: Sequence[str], seconds: float = TIMEOUT) -> Mapping[str, Tuple[Proof, ...]]:
    """What a read on each of ``folders`` proves, by folder and with each GPU; at most two tries of ``seconds``."""
    recorder = Recorder()
    recorder.text(CUFILE, limit=256 * 1024)
    prove(recorder.command, folders, {}, seconds)
    return proofs(Document(recorder.finish()))


def text(folder: str, results: Sequence[Proof]) -> Iterator[str]:
    if not results:
        yield f"{folder}  not proven: the try printed nothing"
    for proof in results:
        name = f"{folder}  {f'GPU {proof.gpu}' if proof.gpu else 'no GPU'}"
        if isinstance(proof.path, Unknown):
            yield f"{name}: not proven: {proof.path.reason}"
        else:
            yield f"{name}: {proof.path.upper()}: {proof.how}"
        yield from ("    " + line for line in proof.evidence)
