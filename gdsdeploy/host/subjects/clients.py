"""Libraries that call cuFile, or that read files for a GPU without it, and why a process's bytes bounce.

The table is data/cufile_clients.json: from the documentation of each library (docs/consumers.md).  Of a process's
environment only the table's variables are kept.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from .. import data
from ..libcufile.counters import (
    BOUNCED,
    DIRECT,
    IDLE,
    MAPPED,
    MIXED,
    NO_LIBRARY,
    NOT_COUNTED,
    P2PDMA,
    POSIX,
    STATISTICS_OFF,
    Route,
)
from .syscalls import LITTLE, OTHERWISE, Moved, Opened

if TYPE_CHECKING:
    from .processes import Program

#: Characters of a variable that are kept.
LONG = 32


class Client(NamedTuple):
    """A row of the table; see data/schema/cufile_clients.json."""

    id: str
    name: str
    library: str
    does: str
    know: str
    variable: str = ""
    #: values in capitals
    posix: Tuple[str, ...] = ()
    strict: Tuple[str, ...] = ()
    direct: str = ""
    falls_back: bool = False


@lru_cache(maxsize=1)
def clients() -> Tuple[Client, ...]:
    """Those that decide first come first."""
    return data.rows("cufile_clients", Client)


def ids() -> Tuple[str, ...]:
    """Of all clients."""
    return tuple(client.id for client in clients())


def mapped(libraries: Iterable[str]) -> Tuple[str, ...]:
    """The ids of those of which a process runs one of these libraries."""
    text = "\n".join(libraries)
    return tuple(client.id for client in clients() if re.search(client.library, text))


def modes(environment: Mapping[str, str]) -> Dict[str, str]:
    """The variables of the table."""
    names = [client.variable for client in clients() if client.variable in environment]
    return {name: environment[name][:LONG] for name in names}


def beside(counted: Route, moved: Optional[Moved], program: Program) -> Route:
    """The way of all I/O of a process: what cuFile counted, and what the process moved by system calls beside it.

    cuFile's compat mode reads by system calls, too: those bytes are taken off.  Where it can't be told whether cuFile
    or the program itself made the calls, the path is BOUNCED.
    """
    recent = counted.recent
    if moved is None or (recent and {P2PDMA, DIRECT}.intersection(counted.operations)):
        # How the calls of P2PDMA are counted isn't known.
        return counted._replace(path=MAPPED) if counted.path == IDLE and program.mapped else counted
    total = moved.read + moved.written
    through = counted.bounced if recent else 0
    if total - through <= max(LITTLE, OTHERWISE * total):
        return _still(counted, program, moved.seconds)
    path = POSIX if counted.reason in ("", NO_LIBRARY) or _is_posix(program, moved) else BOUNCED
    if path == BOUNCED and program.may_use_p2pdma:
        return counted
    if recent and counted.operations:
        share = counted.read / (counted.read + counted.written or 1)
        read = max(0, moved.read - round(through * share))
        written = max(0, moved.written - round(through * (1 - share)))
        return counted._replace(
            path=MIXED,
            beside=path,
            beside_bytes=read + written,
            read=counted.read + read,
            written=counted.written + written,
            bounced=counted.bounced + read + written,
            exact=counted.exact and moved.exact,
        )
    return Route(
        path=path,
        reason=counted.reason,
        operations={},
        recent=True,
        read=moved.read,
        written=moved.written,
        bounced=total,
        exact=moved.exact,
        errors=counted.errors,
        unaligned=counted.unaligned,
        seconds=moved.seconds,
        beside=path,
        beside_bytes=total,
    )


def _is_posix(program: Program, moved: Moved) -> bool:
    """Whether these calls can't be those of cuFile's compat mode, although nothing counts cuFile's.

    cuFile reads from the descriptor for direct I/O where the program has registered one, so the disk serves it.
    """
    client, mode = _client(program)
    if client is not None and mode.upper() in client.strict:
        return False
    if _without_record(program) or (client is not None and mode.upper() in client.posix) or not program.files:
        return True
    return moved.read > moved.written and not moved.direct and any(file.direct for file in program.files)


def _still(counted: Route, program: Program, seconds: float) -> Route:
    """A process that moved nothing by system calls: without files of cuFile, its I/O isn't cuFile's either."""
    is_off = counted.path == NOT_COUNTED and counted.reason == STATISTICS_OFF
    if not (is_off and not program.files and program.has_no_nvidia_fs) and counted.path != IDLE:
        return counted
    return counted._replace(path=MAPPED if program.mapped else IDLE, reason="", seconds=seconds)


class Fallback(NamedTuple):
    """Why a process most likely reads without cuFile, as ids and values; ``words`` makes sentences of it."""

    #: of a client; empty: none is known
    client: str = ""
    #: value of the client's variable; empty: it isn't set
    mode: str = ""
    #: what makes registering fail on the mount of its files: a cause of the path; empty: nothing is known
    refused: str = ""
    mount: str = ""


#: The cause of docs/explain.md for a disk that udev's database doesn't know.
NO_RECORD = "udev.no-database"


def fallback(program: Program) -> Fallback:
    """Of a process whose bytes bounce."""
    client, mode = _client(program)
    unknown = _without_record(program)
    files = unknown or ([] if program.io is None else program.io.files)
    mount = next((file.mount for file in files), "")
    return Fallback("" if client is None else client.id, mode, NO_RECORD if unknown else "", mount)


def _without_record(program: Program) -> List[Opened]:
    """Open files on disks of which udev has no record."""
    return [file for file in (program.io.files if program.io else ()) if program.udev.get(file.number) is False]


def _client(program: Program) -> Tuple[Optional[Client], str]:
    """The one whose variable says that it reads without cuFile, else the first one of the table; and its mode."""
    loaded = [client for client in clients() if client.id in program.clients]
    told = [client for client in loaded if program.modes.get(client.variable, "").upper() in client.posix]
    client = next(iter([*told, *loaded]), None)
    return client, "" if client is None else program.modes.get(client.variable, "")


_REFUSED = {
    NO_RECORD: (
        "cuFile can't register a file there (5027): udev's database has no record of the disk",
        "have udev record the disk: udevadm trigger --subsystem-match=block; in a container, mount /run/udev read-only",
    )
}
REFUSED = tuple(_REFUSED)


def words(path: str, why: Fallback, has_cufile: bool) -> Tuple[str, str]:
    """(why the bytes of a process bounce, what to do): a sentence each, without a full stop.

    path: POSIX, BOUNCED, MAPPED or another one, which has neither.
    """
    client = next((client for client in clients() if client.id == why.client), None)
    refused, repair = _REFUSED.get(why.refused, ("", ""))
    at = f" on {why.mount}" if why.mount else ""
    if path == MAPPED:
        does = f"; {client.does}" if client and client.id == "safetensors" else ""
        return f"it has mapped its files, so page faults read them and no call counts the bytes{does}", (
            "see how much is read: pidstat -d, or the disk's own counters; cuFile doesn't serve mapped files"
        )
    if path == BOUNCED:
        what = "the calls may be those of cuFile's compat mode, or the program's own; its statistics would tell"
        if client and why.mode.upper() in client.strict:
            what = f"{client.name} leaves all to cuFile ({client.variable}={why.mode}), most likely to its compat mode"
        fix = "set profile.cufile_stats to 3 in the cufile.json that it reads, and start it again"
        return (f"{what}; {refused}{at}" if refused else what), fix
    if path not in (POSIX, MIXED):
        return "", ""
    what = f"it reads or writes by system calls{at}, not through cuFile"
    if client is None:
        fix = "have the program use cuFile for these files; strace -f -e trace=%desc shows its calls"
        return what if has_cufile else f"{what}, which it hasn't loaded", fix
    name, mode = client.variable, why.mode.upper()
    if mode and mode in client.posix:
        return f"{what}: {client.name} is told so by {name}={why.mode}", f"start it with {name}={client.direct}"
    if client.falls_back and refused and mode not in client.strict:
        setting = f" ({name}={why.mode or 'AUTO'})" if client.id == "kvikio" else ""
        return (
            f"{what}: most likely {client.name}{setting} has fallen back, since {refused}",
            f"{repair}; to know: {client.know}",
        )
    return f"{what}: {client.does}", f"to know: {client.know}"
