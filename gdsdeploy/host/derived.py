"""What programs make of files, and what each of these things was last made from.

An initramfs, modules.dep, grub.cfg, labels of SELinux and a running service are *derived*: a program that changes a
source has to make them again, and may be killed in between.  So "nothing has changed in this run" is never a reason to
leave one as it is.  ``/var/lib/gdsdeploy/derived.json`` has a line for each: the digest of its sources when it was last
made.

1. Before a source changes, the thing's line becomes empty: it is due (:func:`remaking` begins).
2. When its program has ended well, the line becomes the digest of the sources as they are now (:func:`remaking` ends).
3. What compares a host with what is desired asks :func:`is_due`: an empty line, or the digest of other sources, is a
   change, in an apply, a check, a removal and a rollback alike.  A thing without a line was never ours to make.
4. A removal makes the thing once more and drops the line: where that fails, the next removal finds the thing due.
5. What lasts no longer than a boot has the boot in its name (:func:`in_this_boot`), so that a reboot settles it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from .io import atomic, reading
from .rootdir import LoopError, inside, read_text

PATH = "/var/lib/gdsdeploy/derived.json"
VERSION = 1
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_OF_BOOT = " in boot "
#: Bytes of a source.
_LIMIT = 8 << 20


class Thing(NamedTuple):
    """``name``: unique on a host.  ``sources``: paths of files; those that are missing count, too."""

    name: str
    sources: Tuple[str, ...] = ()


def in_this_boot(name: str, sources: Sequence[str], root: str = "/") -> Thing:
    """A thing that a reboot makes again, such as a running service."""
    return Thing(f"{name}{_OF_BOOT}{read_text(root, _BOOT_ID).strip()}", tuple(sources))


def is_due(thing: Thing, root: str = "/") -> bool:
    """Whether the thing has to be made again.  With a damaged record each has."""
    lines = _read(root)
    return lines is None or (thing.name in lines and lines[thing.name] != _digest(thing, root))


def names(beginning: str, root: str = "/") -> List[str]:
    """The names on record that begin so, sorted."""
    return sorted(name for name in _read(root) or {} if name.startswith(beginning))


def outdate(things: Sequence[Thing], root: str = "/") -> None:
    """Mark the things as due, before their sources change.  Raises OSError."""
    _update(root, {thing.name: "" for thing in things})


def settle(things: Sequence[Thing], root: str = "/", *, keep: bool = True) -> None:
    """Note what the things were made from; without ``keep`` they are of no interest any more.  Raises OSError."""
    _update(root, {thing.name: _digest(thing, root) if keep else None for thing in things})


@contextlib.contextmanager
def remaking(things: Sequence[Thing], root: str = "/", *, keep: bool = True) -> Iterator[None]:
    """Around a block that changes sources and makes the things again; one that raises leaves them due.

    keep: as for :func:`settle`.  Raises OSError, before the block if the mark can't be written.
    """
    outdate(things, root)
    yield
    settle(things, root, keep=keep)


def _read(root: str) -> Optional[Dict[str, str]]:
    text = read_text(root, PATH)
    if not text:
        return {}
    try:
        value = json.loads(text)
        lines = value["made"]
        return {str(name): str(digest) for name, digest in lines.items()} if value["version"] == VERSION else None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _update(root: str, changes: Dict[str, Optional[str]]) -> None:
    before = _read(root)
    now = in_this_boot("", (), root).name
    lines: Dict[str, Optional[str]] = {**(before or {}), **changes}
    kept = {
        name: digest
        for name, digest in lines.items()
        if digest is not None and (_OF_BOOT not in name or name.endswith(now))
    }
    if kept == before:
        return
    place = inside(root, PATH)
    atomic.sweep(place)
    if kept:
        atomic.write(place, json.dumps({"version": VERSION, "made": kept}, sort_keys=True, indent=1) + "\n", 0o600)
    else:
        atomic.remove(place)


def _digest(thing: Thing, root: str) -> str:
    digest = hashlib.sha256()
    for path in thing.sources:
        digest.update(f"{path}\0".encode())
        try:
            digest.update(hashlib.sha256(reading.whole(inside(root, path), _LIMIT)).digest())
        except (OSError, LoopError) as error:
            digest.update(f"{getattr(error, 'errno', 0)}\0".encode())
    return digest.hexdigest()
