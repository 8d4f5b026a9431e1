"""What ``watch`` reads of processes that others run: their statistics, the list of shared memory."""

from __future__ import annotations

import functools

from gdsdeploy.host.libcufile import counters
from gdsdeploy.host.watch.document import document
from gdsdeploy.host.watch.look import Entry, Look
from gdsdeploy.validate.watch import Watched
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
    way = counters.route(counters.Observed(result))
    Watched.model_validate(document(Look(1.8e9, (Entry(program(counters=result), way),), None, 0)))


def read_list(data: bytes) -> None:
    counters.listed(data.decode("ascii", "replace"))
