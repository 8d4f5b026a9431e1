"""The support matrix: filesystem, mode, release of libcufile, kernel and class of GPU → the path and what it needs.

It needs no table: it runs explain's rules on an ideal host (``ideal_host.py``), and takes parts of that away.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from gdsdeploy.errors import did_you_mean
from gdsdeploy.host import data
from gdsdeploy.host.explain import path_of
from gdsdeploy.host.explain.cause import COMPAT, DIRECT, Path, numbers
from gdsdeploy.host.explain.filesystem import NATIVE, SINCE, Filesystem, without_direct_path
from gdsdeploy.host.facts import Unknown
from gdsdeploy.validate.ideal_host import DEVICES, GPUS, MODES, PARTS, Query, ideal, mount_of

#: Releases of libcufile whose behaviour is known, and kernels between which rules differ.
RELEASES = tuple(f"1.{minor}" for minor in (4, *range(9, 21)))
KERNELS = ("4.18", "5.4", "5.10", "5.12", "5.14", "5.15", "6.1", "6.2", "6.6", "6.8", "6.12", "6.18", "7.1")
LATEST = Query("", "", RELEASES[-1], KERNELS[-1], "hopper")
UNKNOWN = "not known"
WIDTH = 88
#: ``mode`` where no rule decides which direct path there is.
UNDECIDED = "direct"


class UnknownNameError(Exception):
    """A filesystem, mode, release, kernel or class of GPUs that the matrix doesn't have."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


@dataclass(frozen=True)
class Support:
    """One row.  ``path``: the path at the release, kernel and GPU of the query; ``not known`` if no rule decides it.

    The other fields describe the direct path of ``mode`` (for ``compat``: compat mode), and are empty without one.
    """

    filesystem: str
    mode: str
    path: str
    #: why ``path`` isn't the mode's, or why there is no direct path at all; empty otherwise
    why: str
    #: first release of libcufile (``not known`` if no rule tells) and first kernel with it
    libcufile: str
    kernel: str
    #: classes of GPUs that have it
    gpus: tuple[str, ...]
    #: parts of a host without which there is no such path
    needs: tuple[str, ...]


def filesystems() -> tuple[str, ...]:
    """Every filesystem that a rule names, and the devices that XFS may be on."""
    tables = (kind.name for kind in data.rows("filesystems", Filesystem))
    return (*NATIVE, *DEVICES, *tables)


def matrix(
    filesystem: str = "", mode: str = "", libcufile: str = "", kernel: str = "", gpu: str = ""
) -> tuple[Support, ...]:
    """The rows for these values; an empty one stands for all filesystems and modes, and for the latest of the others.

    Raises UnknownNameError.
    """
    _check("filesystem", filesystem, filesystems())
    _check("mode", mode, MODES)
    _check("class of GPUs", gpu, GPUS)
    for what, version, first in (("release of libcufile", libcufile, RELEASES[0]), ("kernel", kernel, KERNELS[0])):
        if version and numbers(version) < numbers(first):
            raise UnknownNameError(f"{version!r} isn't a {what}", hint=f"Give its number, from {first} on")
    versions = {"libcufile": libcufile, "kernel": kernel, "gpu": gpu}
    latest = replace(LATEST, **{name: value for name, value in versions.items() if value})
    names = (filesystem,) if filesystem else filesystems()
    modes = (mode,) if mode else MODES
    return tuple(row for name in names for row in _rows(replace(latest, filesystem=name), modes, all_rows=bool(mode)))


def _rows(query: Query, modes: tuple[str, ...], *, all_rows: bool) -> Iterator[Support]:
    """Without ``all_rows`` only modes that some release has; one row where no rule decides which those are."""
    rows = [_row(replace(query, mode=mode)) for mode in modes]
    direct = [row for row in rows if row.mode != COMPAT]
    if all_rows or not direct or any(row.kernel for row in direct):
        yield from (row for row in rows if all_rows or row.kernel)
    else:
        yield from (replace(row, mode=UNDECIDED) for row in direct[:1] if row.libcufile)
        yield from rows[len(direct) :]


def _check(what: str, name: str, names: Iterable[str]) -> None:
    choices = tuple(names)
    if name and name not in choices:
        problem = f"there is no {what} {name!r}{did_you_mean(name, choices)}"
        raise UnknownNameError(problem, hint="It's one of: {}".format(", ".join(choices)))


def _row(query: Query) -> Support:
    best = replace(query, libcufile=LATEST.libcufile, kernel=LATEST.kernel, gpu=LATEST.gpu)
    path = _path(query)
    row = Support(query.filesystem, query.mode, UNKNOWN, _why(path, query.mode), "", "", (), ())
    if not isinstance(path.path, Unknown):
        row = replace(row, path=path.path)
    if isinstance(_path(best).path, Unknown):
        return replace(row, libcufile=_first(best, "libcufile", RELEASES, _path(best).path))
    if not _is_taken(best):
        return row
    return replace(
        row,
        libcufile=_first(best, "libcufile", RELEASES, query.mode) if _has_first_release(query) else UNKNOWN,
        kernel=_first(best, "kernel", KERNELS, query.mode),
        gpus=tuple(gpu for gpu in GPUS if _is_taken(replace(best, gpu=gpu))),
        needs=tuple(part for part in PARTS if query.mode in DIRECT and not _is_taken(best, part)),
    )


def _has_first_release(query: Query) -> bool:
    """Which release takes a filesystem's files first, in compat mode, isn't known of every filesystem."""
    name = query.filesystem
    if query.mode != COMPAT or name in DEVICES:
        return True
    return name not in SINCE if name in NATIVE else bool(without_direct_path(name).since)


def _first(query: Query, field: str, versions: Iterable[str], path: object) -> str:
    """The first version with this path; empty if none has it."""
    return next((version for version in versions if _path(replace(query, **{field: version})).path == path), "")


@lru_cache(maxsize=4096)
def _path(query: Query, part: str = "") -> Path:
    """The path on the ideal host, without one ``part`` of it."""
    facts = ideal(query)
    facts = PARTS[part](facts) if part else facts
    return path_of(facts, mount_of(facts))


def _is_taken(query: Query, part: str = "") -> bool:
    """Whether the path is the one of the query's mode."""
    return _path(query, part).path == query.mode


def _why(path: Path, mode: str) -> str:
    if isinstance(path.path, Unknown):
        return path.path.reason
    by_id = {cause.id: cause.what for cause in path.causes}
    if path.path != mode and path.causes:
        return path.causes[0].what
    return by_id.get("filesystem.kind", "" if path.path == mode else f"{path.path} comes first")


def as_document(rows: Iterable[Support]) -> dict[str, Any]:
    """The rows as JSON values; see docs/explain.md."""
    return {"version": 1, "support": [{key: _plain(value) for key, value in asdict(row).items()} for row in rows]}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def render(rows: Iterable[Support]) -> str:
    """A paragraph for each row, of lines of at most WIDTH characters."""
    return "\n".join(line for row in rows for line in _lines(row))


def _lines(row: Support) -> Iterator[str]:
    yield f"{row.filesystem:<16}{row.mode:<10}{availability(row)}"
    sentences = []
    if row.path != row.mode and row.mode != UNDECIDED:
        sentences.append(f"with these versions: {row.path}: {row.why}")
    elif row.why:
        sentences.append(row.why)
    if row.needs:
        sentences.append("needs " + ", ".join(row.needs))
    indent = " " * 16
    for sentence in sentences:
        yield from textwrap.wrap(sentence, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")


def availability(row: Support) -> str:
    """Since when, and with which GPUs, e.g. ``libcufile 1.13, kernel 6.2, GPUs: all but geforce, volta``."""
    if not row.libcufile:
        return "no release has it"
    words = [f"libcufile {row.libcufile}"]
    if row.kernel:
        words += ["any kernel" if row.kernel == KERNELS[0] else f"kernel {row.kernel}", f"GPUs: {gpu_words(row.gpus)}"]
    return ", ".join(words)


def gpu_words(gpus: tuple[str, ...]) -> str:
    """The shorter way to name these classes of GPUs."""
    others = [gpu for gpu in GPUS if gpu not in gpus]
    if not others:
        return "all"
    return "all but " + ", ".join(others) if len(others) <= len(gpus) else ", ".join(gpus)
