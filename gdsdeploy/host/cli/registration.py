"""``rdma``: whether the RDMA adapters of this machine register memory of its GPUs."""

from __future__ import annotations

import argparse
import json
from typing import Any, Iterator, Tuple

from ..evidence.recorder import Recorder
from ..facts import as_dict
from ..facts.document import Document
from ..facts.rdma import Registration, registrations
from ..facts.unknown import Maybe, Unknown
from ..gdscheck.live import seconds
from ..proof.registration import TIMEOUT, register
from . import parsers

VERSION = 1


def add_parser(commands: Any) -> None:
    """Add ``rdma`` to the host program's commands."""
    words = "register memory of each GPU with each RDMA adapter, through peermem and as DMA-BUF, and deregister it"
    parser = parsers.command(commands, "rdma", command, words)
    parser.add_argument("--timeout", type=seconds, default=TIMEOUT, metavar="SECONDS", help="for all (%(default)g)")


def command(arguments: argparse.Namespace) -> int:
    """Print the results; 0 whatever they are, because ``validate`` is what fails."""
    recorder = Recorder()
    register(recorder.command, arguments.timeout)
    results = registrations(Document(recorder.finish()))
    if arguments.json:
        print(json.dumps({"version": VERSION, "registrations": as_dict(results)}, sort_keys=True))
    else:
        print("\n".join(lines(results)))
    return 0


def lines(results: Maybe[Tuple[Registration, ...]]) -> Iterator[str]:
    if isinstance(results, Unknown):
        yield f"not tried: {results.reason}"
    elif not results:
        yield "there is no GPU or no RDMA adapter"
    else:
        for result in results:
            yield f"{result.by} {result.words}"
