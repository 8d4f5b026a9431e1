"""Archives of built modules on the controller, by their content; safe under concurrent runs.

Layout below the folder::

    <sha256>/modules.tar, <sha256>/entry.json   one build; entry.json's time is that of its last use
    wants/<want>.<key>      what a host needs (see builds.py), and the signer's public key → sha256 of the build
    lock                                  held for every change of names, never while bytes are copied
    .new-…, .old-…, run-…                 folders of a process; it holds the lock of the file ``owner`` in its own

An entry appears whole, by one rename.  A process that copies from one holds a shared lock of its archive against
eviction.  All locks are flock(2)'s: the kernel releases them when a process dies, and the next process sweeps its rest.

What an archive claims decides nothing.  A build serves the want that it was put for, to machines that accept the key
that signed it: no other builder can change what they get.

Public keys of the machines that build are on record on the controller from the first archive on, below the state
folder: ``builders/<fleet file>/<name>.pub`` (PEM), where ``<fleet file>`` is a digest of its path.  In
``<name>.pub.new`` is a key that a machine has shown instead of it and that was refused.  A run writes them where a
builder hands its first archive over; see ``plugins/plugin_utils/files.py``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gdsdeploy import atomic, paths
from gdsdeploy.errors import BuildCacheUnusable, SigningKeyUnusable
from gdsdeploy.host.archive import pack, provenance
from gdsdeploy.host.archive.key import key_of
from gdsdeploy.host.archive.provenance import Origin, key_id
from gdsdeploy.host.errors import PackError
from gdsdeploy.host.io import jsontext
from gdsdeploy.host.secure_boot.openssl import OpensslError

#: Bytes, when nothing else is set.
DEFAULT_LIMIT = 20 << 30
SETTING = "GDSDEPLOY_BUILD_CACHE_SIZE"
_FORMAT = 2
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(?:iB|B)?\s*$")
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_ARCHIVE, _ENTRY, _OWNER = "modules.tar", "entry.json", "owner"
_CHUNK = 1 << 20
_SWEPT = (".new-", ".old-", "run-")


@dataclass(frozen=True)
class CacheEntry:
    """One build in the cache."""

    #: of the archive, hexadecimal: its name
    sha256: str
    #: the machine that signed it
    builder: str
    #: ``sha256:…`` of what it claims to be built from; only for people
    key: str
    #: bytes
    size: int
    #: seconds since the epoch of its last use
    used: float
    manifest: dict[str, Any]


def limit_from(text: str | None) -> int:
    """Bytes that ``text`` (``20 GiB``, ``500M``) means, the default for none; raises BuildCacheUnusable."""
    if not text:
        return DEFAULT_LIMIT
    match = _SIZE.match(text)
    if match is None:
        raise BuildCacheUnusable(f"{SETTING}: {text!r} isn't a size", hint="Write it as 20GiB or 500MiB")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


class BuildCache:
    """The cache in ``folder``, made if it is missing; ``warn`` gets a line for each damaged entry.

    Methods raise BuildCacheUnusable when the folder cannot be used.
    """

    def __init__(self, folder: Path, limit: int, warn: Callable[[str], None]) -> None:
        self.folder, self.limit, self._warn = folder, limit, warn
        with self._usable():
            (folder / "wants").mkdir(parents=True, exist_ok=True)
            with self._locked():
                self._sweep()

    def put(self, archive: Path, want: str, origin: Origin) -> CacheEntry:
        """Keep a copy of ``archive``, which serves ``want`` from now on; evicts the least recently used entries.

        Raises PackError, with nothing changed, unless ``origin`` has signed it and its content fits its manifest.
        """
        with self._usable(), self._own(".new-") as new:
            copy = new / _ARCHIVE
            with archive.open("rb") as source:
                digest = _copy(source, copy)
            pack.verify(str(copy), origin)
            size = copy.stat().st_size
            record = {"format": _FORMAT, "sha256": digest, "builder": origin.name, "size": size}
            atomic.write(new / _ENTRY, json.dumps(record, indent=2, sort_keys=True))
            with self._locked():
                # Room first: a process that is killed in between leaves a cache that is not too large.
                self._evict(self.limit - size, keep=digest)
                self._place(new, self._path(digest))
                atomic.write(self._want(want, origin), digest)
                entry = self._read(self._path(digest))
        if entry is None:
            words = f"{self._path(digest)} vanished while it was written"
            raise BuildCacheUnusable(words, hint="Look for another program that uses this folder")
        return entry

    def take(self, want: str, destination: Path, origins: Sequence[Origin]) -> CacheEntry | None:
        """Copy the build that serves ``want`` to ``destination``; None when none of ``origins`` has signed one.

        origins: in the order of preference.  A build whose bytes have changed is dropped, with a message.
        """
        with self._usable():
            with self._locked():
                entry, origin = next(self._serving(want, origins), (None, None))
                if entry is None or origin is None:
                    return None
                source = (self._path(entry.sha256) / _ARCHIVE).open("rb")
                fcntl.flock(source, fcntl.LOCK_SH)
            with source:
                read = os.fstat(source.fileno())
                copy = destination.with_name(f".{destination.name}.{os.getpid()}")
                try:
                    whole = _copy(source, copy) == entry.sha256 and _is_signed(copy, origin)
                    if whole:
                        copy.replace(destination)
                finally:
                    copy.unlink(missing_ok=True)
            with self._locked():
                if not whole:
                    self._drop_damaged(entry, read)
                    return None
                with contextlib.suppress(FileNotFoundError):
                    os.utime(self._path(entry.sha256) / _ENTRY)
        return entry

    def entries(self) -> list[CacheEntry]:
        """Every build, the last used first; what cannot be read is dropped with a message."""
        with self._usable(), self._locked():
            return self._entries()[::-1]

    def prune(self, limit: int) -> list[CacheEntry]:
        """Evict until at most ``limit`` bytes are left; what is in use stays.  Returns what went."""
        with self._usable(), self._locked():
            return self._evict(limit)

    def verify(self) -> list[CacheEntry]:
        """Read every archive, drop those whose bytes have changed, with a message, and return them."""
        damaged = []
        for entry in self.entries():
            with self._usable():
                try:
                    source = (self._path(entry.sha256) / _ARCHIVE).open("rb")
                except FileNotFoundError:
                    continue
                with source:
                    fcntl.flock(source, fcntl.LOCK_SH)
                    read, digest = os.fstat(source.fileno()), hashlib.file_digest(source, "sha256").hexdigest()
                if digest != entry.sha256:
                    damaged.append(entry)
                    with self._locked():
                        self._drop_damaged(entry, read)
        return damaged

    def run(self) -> contextlib.AbstractContextManager[Path]:
        """A folder for the archives of one run, which is gone afterwards, also when the process is killed."""
        return self._own("run-")

    def _path(self, digest: str) -> Path:
        return self.folder / digest

    def _want(self, want: str, origin: Origin) -> Path:
        return self.folder / "wants" / f"{want}.{key_id(origin.public)[:32]}"

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = f"Free some space, or set GDSDEPLOY_CACHE_DIR; {SETTING} bounds it"
            words = f"{error.filename or self.folder}: {error.strerror or error}"
            raise BuildCacheUnusable(f"the cache of builds cannot be used: {words}", hint=hint) from error
        except OpensslError as error:
            raise BuildCacheUnusable(f"the cache of builds cannot be used: {error}", hint=error.hint) from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _own(self, prefix: str) -> Iterator[Path]:
        """A folder of this process; it is locked before a sweep can see it as free."""
        with self._locked():
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self.folder))
            owner = (folder / _OWNER).open("w")
            fcntl.flock(owner, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            owner.close()

    def _sweep(self) -> None:
        """Delete the folders of processes that have died; with the lock."""
        for path in list(self.folder.iterdir()):
            if path.name.startswith(_SWEPT) and _is_free(path / _OWNER):
                shutil.rmtree(path, ignore_errors=True)

    def _place(self, new: Path, path: Path) -> None:
        self._remove(path)
        # Not the folder of this process itself: it would go with its owner.
        ready = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        for name in (_ARCHIVE, _ENTRY):
            (new / name).rename(ready / name)
        ready.chmod(0o755)
        ready.rename(path)
        handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _remove(self, path: Path) -> None:
        """Move an entry away by one rename, then delete it; with the lock."""
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=".old-", dir=self.folder))
            path.rename(old / "entry")
            shutil.rmtree(old, ignore_errors=True)

    def _drop_damaged(self, entry: CacheEntry, read: os.stat_result) -> None:
        """``read``: of the archive that was found to be damaged."""
        with contextlib.suppress(FileNotFoundError):
            # Another process may have put a good one there meanwhile.
            if (self._path(entry.sha256) / _ARCHIVE).stat().st_ino == read.st_ino:
                self._remove(self._path(entry.sha256))
        self._warn(
            f"the build {entry.sha256[:12]}… in {self.folder} was damaged on disk and is dropped; it is built again"
        )

    def _serving(self, want: str, origins: Sequence[Origin]) -> Iterator[tuple[CacheEntry, Origin]]:
        for origin in origins:
            with contextlib.suppress(FileNotFoundError):
                digest = _digest_in(self._want(want, origin))
                entry = self._read(self._path(digest)) if digest else None
                if entry is not None and entry.builder == origin.name:
                    yield entry, origin

    def _entries(self) -> list[CacheEntry]:
        """In the order of their last use; with the lock."""
        entries = (self._read(path) for path in list(self.folder.iterdir()) if _DIGEST.match(path.name))
        return sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.used)

    def _read(self, path: Path) -> CacheEntry | None:
        """The entry at ``path``; one that cannot be read is dropped; with the lock."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, PackError):
            value = jsontext.loads((path / _ENTRY).read_text())
            size = (path / _ARCHIVE).stat().st_size
            if (value["format"], value["size"], value["sha256"]) == (_FORMAT, size, path.name):
                used, manifest = (path / _ENTRY).stat().st_mtime, pack.read_manifest(str(path / _ARCHIVE))
                key = key_of(manifest["key"])
                return CacheEntry(path.name, str(value["builder"]), key, size, used, manifest)
        if path.exists():
            self._remove(path)
            self._warn(f"the build {path.name[:12]}… in {self.folder} was damaged on disk and is dropped")
        return None

    def _evict(self, limit: int, keep: str = "") -> list[CacheEntry]:
        """With the lock; ``keep`` is never evicted."""
        entries = self._entries()
        total, evicted = sum(entry.size for entry in entries), []
        for entry in entries:
            if total > limit and entry.sha256 != keep and _is_free(self._path(entry.sha256) / _ARCHIVE):
                self._remove(self._path(entry.sha256))
                total -= entry.size
                evicted.append(entry)
        digests = {entry.sha256 for entry in self._entries()}
        for want in (self.folder / "wants").iterdir():
            if not want.name.startswith(".") and _digest_in(want) not in digests:
                want.unlink()
        return evicted


def default(warn: Callable[[str], None]) -> BuildCache:
    """The user's cache, in the size that is set; raises BuildCacheUnusable."""
    return BuildCache(paths.cache() / "builds", limit_from(os.environ.get(SETTING)), warn)


def _digest_in(want: Path) -> str:
    """The digest of the build that serves; empty where the file has none."""
    text = want.read_bytes().decode("ascii", "replace")
    return text if _DIGEST.match(text) else ""


def _is_signed(archive: Path, origin: Origin) -> bool:
    with contextlib.suppress(PackError):
        pack.read_manifest(str(archive), origin)
        return True
    return False


def _copy(source: IO[bytes], target: Path) -> str:
    """Copy from where ``source`` is to its end, onto the disk; the sha256 of what was copied."""
    digest = hashlib.sha256()
    with target.open("wb") as file:
        for chunk in iter(lambda: source.read(_CHUNK), b""):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _is_free(path: Path) -> bool:
    """Whether no process holds a lock of ``path``; also when there is no such file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.EWOULDBLOCK, errno.EACCES}:
            raise
        return error.errno == errno.ENOENT
    return True


_SUFFIX = ".pub"


@dataclass(frozen=True)
class BuilderKeys:
    """Of one fleet, in ``folder``."""

    folder: Path

    @classmethod
    def of(cls, fleet_path: Path) -> BuilderKeys:
        """The record of a fleet, whose folder is there afterwards.  Raises SigningKeyUnusable."""
        folder = paths.state() / "builders" / paths.fleet_digest(fleet_path)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            hint = "Set GDSDEPLOY_STATE_DIR to a folder that you can write to"
            raise SigningKeyUnusable(f"{folder}: cannot be made: {error.strerror}", hint=hint) from None
        return cls(folder)

    def path(self, name: str) -> Path:
        """Where the key of the machine ``name`` is, or would be."""
        return self.folder / f"{name}{_SUFFIX}"

    def origin(self, name: str) -> Origin | None:
        """The machine with its key; None where none is on record.  Raises SigningKeyUnusable."""
        pem = self._pem(self.path(name))
        return None if pem is None else Origin(name, pem)

    def refused(self, name: str) -> str | None:
        """The fingerprint of the key that the machine has shown instead; None: none."""
        pem = self._pem(self._new(name))
        return None if pem is None else fingerprint(pem)

    def accept(self, name: str) -> str:
        """Put the key on record that was refused, and return its fingerprint; raises SigningKeyUnusable without one."""
        key = self.refused(name)
        if key is None:
            words = f"{name} has shown no other key than the one on record"
            raise SigningKeyUnusable(words, hint="Provision it: it shows its key then")
        try:
            self._new(name).replace(self.path(name))
        except OSError as error:
            raise SigningKeyUnusable(f"{self.path(name)}: cannot be written: {error.strerror}") from None
        return key

    def fingerprints(self) -> dict[str, str]:
        """Machine → fingerprint, of all that are on record."""
        pems = {path.name.removesuffix(_SUFFIX): self._pem(path) for path in sorted(self.folder.glob(f"*{_SUFFIX}"))}
        return {name: fingerprint(pem) for name, pem in pems.items() if pem is not None}

    def _new(self, name: str) -> Path:
        return self.folder / f"{name}{_SUFFIX}.new"

    def _pem(self, path: Path) -> str | None:
        try:
            pem = path.read_text(encoding="ascii", errors="replace")
            provenance.public_bytes(pem)
        except FileNotFoundError:
            return None
        except (OSError, PackError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            hint = "Remove the file: the machine shows its key when it hands modules over the next time"
            raise SigningKeyUnusable(f"{path}: {why}", hint=hint) from None
        return pem


def fingerprint(pem: str) -> str:
    """As people compare it: ``SHA256:`` and hexadecimal digits."""
    return f"SHA256:{provenance.key_id(pem)}"
