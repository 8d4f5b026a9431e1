"""The files of a mirror: its folder, apt's package lists with their Release file, and signatures by the user's key.

gpg and its agent sign; this program never reads the secret key.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Final

from gdsdeploy.errors import Busy, GdsError, ProgramFailed, RepositoryUntrusted
from gdsdeploy.repo import names
from gdsdeploy.repo.repository import verify
from gdsdeploy.run import run, which

#: Fields that the mirror writes itself, or leaves out: where the file lies, and checksums that are too weak.
_DROPPED = re.compile(r"^(?:Filename|MD5sum|SHA1|SHA512)[ \t]*:.*\n(?:[ \t].*\n)*", re.MULTILINE | re.IGNORECASE)
#: What apt, unlike the reader of the original list, takes for the end of a line or for blanks before a colon.
_BLANK = re.compile("[\r\x0b\x0c]")


@dataclass(frozen=True)
class MirroredPackage:
    """A package in a list: its stanza in the original index, and where its file lies in the mirror."""

    package: str
    version: str
    stanza: str
    filename: str


def place(repository: str, filename: str) -> str:
    """Where a file of ``repository`` lies, relative to the mirror; raises ValueError unless it is inside of both."""
    return names.path(f"pool/{repository}/{names.path(filename).removeprefix('pool/')}")


def package_list(entries: Iterable[MirroredPackage]) -> bytes:
    """The text of a package list, sorted; apt 2.6 can't read some last stanzas that no empty line follows."""
    blocks = []
    for entry in sorted(entries, key=lambda entry: (entry.package, entry.version)):
        text = _DROPPED.sub("", _BLANK.sub(" ", entry.stanza).strip("\n") + "\n")
        blocks.append(f"{text}Filename: {entry.filename}\n\n")
    return "".join(blocks).encode()


def suite_files(suite: str, lists: Mapping[tuple[str, str], bytes], date: datetime) -> dict[str, bytes]:
    """Place → content of all package lists of a suite and, at last, of its unsigned Release file.

    lists: (component, architecture) → text.

    The same lists and date give the same bytes.  There is no Valid-Until: a mirror is what it was when it was made.
    """
    folder = f"dists/{suite}"
    written: dict[str, bytes] = {}
    listed = []
    for (component, architecture), text in sorted(lists.items()):
        for ending, data in (("", text), (".gz", gzip.compress(text, mtime=0)), (".xz", lzma.compress(text))):
            name = f"{component}/binary-{architecture}/Packages{ending}"
            listed.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}")
            written[f"{folder}/{name}"] = data
    fields = {
        "Origin": "gdsdeploy mirror",
        "Label": "gdsdeploy mirror",
        "Suite": suite,
        "Codename": suite,
        "Date": format_datetime(date.astimezone(UTC), usegmt=True),
        "Architectures": " ".join(sorted({architecture for _, architecture in lists})),
        "Components": " ".join(sorted({component for component, _ in lists})),
        "Description": "The packages of a gdsdeploy.lock, and what they need",
    }
    release = "\n".join([*(f"{key}: {value}" for key, value in fields.items()), "SHA256:", *listed, ""])
    return written | {f"{folder}/Release": release.encode()}


#: The record, in the mirror's folder, of what the mirror wrote there: the only files that it replaces or removes.
RECORD: Final = "gdsdeploy-mirror.json"
_RECORD_LIMIT: Final = 64 << 20
_WORK: Final = ".part-"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Folder:
    """The folder of a mirror, which writing never leaves: each place is reached part by part, and no link is followed.

    Methods raise GdsError that names what is in the way, and OSError.
    """

    def __init__(self, path: Path, root: int, work: str) -> None:
        """root: descriptor of ``path``.  work: name of a new folder in it."""
        self.path = path
        self._root = root
        #: folder for unfinished downloads, on the file system of the mirror
        self.work = path / work
        self._record = self._read_record()

    def require(self, places: Mapping[str, str | None]) -> None:
        """Raise GdsError unless nothing foreign is at any of ``places``; they are on record then.

        places: place → sha256 of a content that may be there although it isn't on record, or None.
        """
        foreign = []
        for place, sha256 in places.items():
            with self._open(place) as file:
                if file is None or place in self._record:
                    continue
                if sha256 is None or hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                    foreign.append(place)
        if foreign:
            words = "the mirror didn't write these files, and doesn't replace them"
            raise self._blocked("", "\n".join([words, *(f"  - {self.path / place}" for place in foreign)]))
        if not self._record.issuperset(places):
            self._record |= set(places)
            self._save()

    def write(self, place: str, data: bytes) -> None:
        """Write a file in one step if its content differs."""
        self.require({place: hashlib.sha256(data).hexdigest()})
        if self.read(place) != data:
            self._replace(place, data)

    def read(self, place: str) -> bytes | None:
        """The content of a file; None where there is none."""
        with self._open(place) as file:
            return None if file is None else file.read()

    def has(self, place: str, sha256: str, size: int) -> bool | None:
        """Whether a file has this content; None where there is no file."""
        with self._open(place) as file:
            if file is None:
                return None
            same = os.fstat(file.fileno()).st_size == size
            return same and hashlib.file_digest(file, "sha256").hexdigest() == sha256

    def take(self, download: Path, place: str) -> None:
        """Move a file from ``work`` to ``place``, which ``require`` has allowed."""
        download.chmod(0o644)
        with self._parent(place, make=True) as (folder, name):
            os.replace(download, name, dst_dir_fd=folder)

    def keep_only(self, above: str, kept: Collection[str]) -> None:
        """Remove the files of the mirror in the folder ``above`` whose names aren't ``kept``."""
        gone = {p for p in self._record if p.rpartition("/")[0] == above and p.rpartition("/")[2] not in kept}
        for place in gone:
            with self._parent(place) as (folder, name), contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        if gone:
            self._record -= gone
            self._save()

    @contextlib.contextmanager
    def _parent(self, place: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A descriptor of the folder that ``place`` is in, and the name in it."""
        *above, name = names.path(place).split("/")
        folder = os.dup(self._root)
        try:
            for number, part in enumerate(above):
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=folder)
                try:
                    inner = os.open(part, _FOLDER, dir_fd=folder)
                except OSError as error:
                    if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                        raise
                    way = "/".join(above[: number + 1])
                    raise self._blocked(way, "a link or a file is where a folder is needed") from None
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _open(self, place: str) -> Iterator[io.BufferedReader | None]:
        """The file at ``place``, None where there is none; anything else in its place is an error."""
        file = None
        with contextlib.suppress(FileNotFoundError), self._parent(place) as (folder, name):
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise self._blocked(place, "a link, a folder or another thing is where a file is needed")
            file = os.fdopen(os.open(name, _FILE, dir_fd=folder), "rb")
        with file or contextlib.nullcontext():
            yield file

    def _replace(self, place: str, data: bytes) -> None:
        with self._parent(place, make=True) as (folder, name):
            part = f".{secrets.token_hex(8)}.part"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with os.fdopen(os.open(part, flags, 0o644, dir_fd=folder), "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), 0o644)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part, dir_fd=folder)
                raise

    def _read_record(self) -> set[str]:
        with self._open(RECORD) as file:
            text = b"" if file is None else file.read(_RECORD_LIMIT)
        try:
            return {names.path(place) for place in json.loads(text)["files"]} if text else set()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise self._blocked(RECORD, "this isn't a record of what the mirror wrote") from None

    def _save(self) -> None:
        self._replace(RECORD, json.dumps({"files": sorted(self._record)}, indent=1).encode())

    def _blocked(self, place: str, why: str) -> GdsError:
        return GdsError(
            f"{self.path / place}: {why}",
            hint="Move it away, or name another folder (docs/mirror.md)",
        )


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Folder]:
    """The folder of a mirror, made if need be, for one run at a time.

    Raises GdsError for one that can't be written, also from the block, and Busy where another run writes.
    """
    root = -1
    try:
        path.mkdir(parents=True, exist_ok=True)
        root = os.open(path, _FOLDER & ~os.O_NOFOLLOW)
        work = _new_work(path, root)
        try:
            yield Folder(path, root, work)
        finally:
            shutil.rmtree(work, dir_fd=root, ignore_errors=True)
    except OSError as error:
        problem = f"{path}: cannot be written: {error.strerror or error}"
        raise GdsError(problem, hint="Name a folder that you may write to, with enough space") from error
    finally:
        if root >= 0:
            os.close(root)


def _new_work(path: Path, root: int) -> str:
    try:
        fcntl.flock(root, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Busy(f"{path}: another run writes this mirror", hint="Wait for its end") from None
    with os.scandir(root) as entries:
        left = [entry.name for entry in entries if re.fullmatch(_WORK + "[0-9a-f]{16}", entry.name)]
    for name in left:
        # Of a run that was killed.
        shutil.rmtree(name, dir_fd=root, ignore_errors=True)
    name = _WORK + secrets.token_hex(8)
    os.mkdir(name, 0o700, dir_fd=root)
    return name


_MAKE = 'gpg --quick-generate-key "Our mirror" ed25519 sign never'


def signing_key(name: str | None) -> str:
    """The full fingerprint of the user's secret key ``name``; raises GdsError that lists the user's keys."""
    keys = secret_keys()
    listed = "\n".join(f"  {fingerprint}  {name}" for fingerprint, name in keys.items()) or "  (none)"
    if name is None:
        raise GdsError(
            f"a mirror is signed, and no key was named; your secret keys are:\n{listed}",
            hint=f"Name one with --key FINGERPRINT, or create one: {_MAKE}",
        )
    fingerprint = re.sub(r"\s|^0x", "", name).upper()
    if fingerprint not in keys:
        raise GdsError(
            f"--key {name}: there is no secret key with this fingerprint; there are:\n{listed}",
            hint=f"Name all 40 digits of one of these, or create a key: {_MAKE}",
        )
    return fingerprint


def secret_keys(*, home: Path | None = None) -> dict[str, str]:
    """Full fingerprint → user id of the primary secret keys in the user's keyring, or in the one in ``home``."""
    argv = [*_gpg(home), "--batch", "--with-colons", "--list-secret-keys"]
    names: dict[str, str] = {}
    fingerprint, primary = "", False
    for line in run(argv, doing="list your secret keys", timeout=60).stdout.splitlines():
        fields = line.split(":")
        match fields[0]:
            case "sec" | "ssb":
                primary, fingerprint = fields[0] == "sec", ""
            case "fpr" if primary and not fingerprint:
                fingerprint = fields[9]
                names[fingerprint] = ""
            case "uid" if fingerprint and not names[fingerprint]:
                names[fingerprint] = fields[9]
    return names


def has_signature(text: bytes, signature: bytes | None, fingerprint: str, keyring: Path) -> bool:
    """Whether ``signature`` is a good detached one of ``text`` by this key."""
    try:
        verify(text, detached=signature or b"", keyring=keyring, fingerprints=[fingerprint], name="the signature")
    except RepositoryUntrusted:
        return False
    return True


def export(fingerprint: str, *, armour: bool = False, home: Path | None = None) -> bytes:
    """The public key as gpgv and apt read it, or armoured, as rpm does."""
    argv = [*_gpg(home), "--batch", *(["--armor"] if armour else []), "--export", fingerprint]
    return _output(argv, f"export the public key {fingerprint}", timeout=60)


def sign(fingerprint: str, text: bytes, name: str, *, clear: bool, home: Path | None = None) -> bytes:
    """A clear-signed copy of ``text``, or an armoured detached signature; gpg's agent asks for a passphrase.

    name: of the document, for messages.  Raises GdsError when the key cannot be used.
    """
    kind = ["--clearsign"] if clear else ["--armor", "--detach-sign"]
    argv = [*_gpg(home), "--local-user", fingerprint, "--digest-algo", "SHA256", *kind]
    try:
        return _output(argv, f"sign {name}", text)
    except ProgramFailed as error:
        hint = 'Try `gpg --clearsign` by hand; in a terminal, set GPG_TTY="$(tty)" for its questions'
        raise GdsError(error.message, hint=hint) from None


def _output(argv: Sequence[str | Path], doing: str, text: bytes | None = None, timeout: float | None = None) -> bytes:
    """What a gpg command makes of ``text``, as bytes."""
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as folder:
        document, result = Path(folder) / "document", Path(folder) / "result"
        if text is not None:
            document.write_bytes(text)
        run(
            [argv[0], "--output", result, *argv[1:], *([] if text is None else [document])],
            doing=doing,
            timeout=timeout,
        )
        return result.read_bytes()


def _gpg(home: Path | None = None) -> list[str]:
    return [which("gpg", hint="Install the package gnupg"), *(["--homedir", str(home)] if home else [])]
