"""What ``watch`` reads of processes that others run: their statistics, their libraries, the list of shared memory."""

from __future__ import annotations

import functools

from gdsdeploy.host.libcufile import counters, route, segments
from gdsdeploy.host.watch.document import document
from gdsdeploy.host.watch.look import Entry, Look
from gdsdeploy.host.watch.symbols import offsets
from gdsdeploy.validate.watch import Watched
from tests.cufile import libraries
from tests.unit.host.test_counters import segment
from tests.unit.host.test_watch import program

LIST = b"""       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime \
     dtime      ctime                   rss                  swap
      1902          0  2644                 31144  1902  1902      0     0     0     0     0 1795700665 1795700665 \
1795700665                 32768                     0
"""


@functools.cache
def statistics() -> list[bytes]:
    return [bytes(segment(layout)) for layout in counters.layouts().values()]


def read_statistics(data: bytes) -> None:
    """They never make a host's answer one that the controller refuses."""
    result = counters.decode(data)
    way = route.route(route.Observed(result))
    Watched.model_validate(document(Look(1.8e9, (Entry(program(counters=result), way),), None, 0)))


@functools.cache
def library() -> list[bytes]:
    """The oldest one, which is the smallest."""
    return [libraries.library("1.4.0.31").path.read_bytes()]


def read_library(data: bytes) -> None:
    places = offsets(data, ["cuFileRead", "cuFileWrite"], ["pread", "pwrite"])
    assert all(0 <= place < len(data) for place in places.values())


def read_list(data: bytes) -> None:
    segments.listed(data.decode("ascii", "replace"))
