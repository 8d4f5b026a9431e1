"""Verify files, folders and tar files against a policy, offline; in a folder every file has to be covered.

A statement is a file ``*.intoto.json``; an archive of modules has its own inside.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gdsdeploy.attest import dsse, statement
from gdsdeploy.attest.policy import Policy
from gdsdeploy.attest.statement import Built, Kind, Statement
from gdsdeploy.errors import AttestationInvalid, AttestationRefused, GdsError
from gdsdeploy.host.archive import pack, provenance
from gdsdeploy.host.errors import PackError
from gdsdeploy.host.io import reading, tarball

SUFFIX = ".intoto.json"
#: Files and bytes of a folder or tar file that are looked at.
_MANY, _LARGE = 10_000, 1 << 33
_TAR = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class Verified:
    """A statement that holds: who has signed it, as the policy names the key, and the files that it is about."""

    place: str
    kind: Kind
    signer: str
    key_id: str
    files: tuple[str, ...]
    #: as it was signed, with every digest
    statement: Statement


@dataclass
class Result:
    """What holds, and what does not."""

    verified: list[Verified] = field(default_factory=list)
    errors: list[GdsError] = field(default_factory=list)


@dataclass(frozen=True)
class _Files:
    """A folder or tar file: name → SHA-256, and the content of statements."""

    digests: Mapping[str, str]
    statements: Mapping[str, bytes]
    #: the files of these names, or copies that are there until the next one is asked for; (name, file)
    opened: Callable[[AbstractSet[str]], Iterator[tuple[str, Path]]]


def verify(path: Path, policy: Policy) -> Result:
    """Judge a folder, a tar file of one, an archive of modules, a statement, or a file that has one beside it."""
    result = Result()
    try:
        if path.is_dir():
            _closed(str(path), _folder(path), policy, result)
        elif not path.name.endswith(_TAR):
            _single(path, policy, result)
        elif not _archive(str(path), path, policy, result):
            _closed(str(path), _tar(path), policy, result)
    except GdsError as error:
        result.errors.append(error)
    except OSError as error:
        result.errors.append(AttestationInvalid(f"{error.filename or path}: cannot be read: {error.strerror or error}"))
    return result


def _closed(place: str, found: _Files, policy: Policy, result: Result) -> None:
    """Every statement holds, its files are there as signed, and there is no other file."""
    covered: set[str] = set()
    for name, data in found.statements.items():
        # Files are named from the folder of their statement.
        covered |= _about(f"{place}/{name}", data, found.digests, str(PurePosixPath(name).parent), policy, result)
    left = set(found.digests) - covered - found.statements.keys()
    for name, file in found.opened({name for name in left if name.endswith(".tar")}):
        if _archive(f"{place}/{name}", file, policy, result):
            left.discard(name)
    for name in sorted(left):
        result.errors.append(AttestationInvalid(f"{place}/{name}: no statement that holds is about this file"))
    if not found.digests:
        result.errors.append(AttestationInvalid(f"{place}: there is nothing in it to verify"))


def _single(path: Path, policy: Policy, result: Result) -> None:
    """A statement with the files beside it, or a file with its statement."""
    beside = path if path.name.endswith(SUFFIX) else path.with_name(path.name + SUFFIX)
    if beside != path and not path.exists():
        raise AttestationInvalid(f"{path}: there is no such file")
    if not beside.is_file():
        hint = "Name the statement that is about it, or its folder; gdsdeploy lock --sign makes one for a lock"
        raise AttestationInvalid(f"{path}: there is no {beside.name} beside it", hint=hint)
    data = _beginning(beside)
    names = statement.read(dsse.read(data, str(beside)).payload, str(beside)).files()
    there = {name: path.parent / name for name in names if PurePosixPath(name).name == name}
    digests = {name: _sha256(file) for name, file in there.items() if file.is_file() and not file.is_symlink()}
    covered = _about(str(beside), data, digests, ".", policy, result)
    if beside != path and path.name not in covered and not result.errors:
        result.errors.append(AttestationInvalid(f"{path}: {beside.name} is not about this file"))


def _about(
    place: str, data: bytes, digests: Mapping[str, str], folder: str, policy: Policy, result: Result
) -> set[str]:
    """The files that a statement covers; what is wrong goes to ``result``."""
    try:
        made, signer, key_id = _accepted(data, place, policy)
    except GdsError as error:
        result.errors.append(error)
        return set()
    files = {str(PurePosixPath(folder) / name): digest for name, digest in made.files().items()}
    missing = [name for name in files if name not in digests]
    other = [name for name in files if name in digests and digests[name] != files[name]]
    result.errors += [AttestationInvalid(f"{place}: {name}, which it is about, is missing") for name in missing]
    result.errors += [AttestationInvalid(f"{place}: {name} is not what was signed") for name in other]
    if made.kind is not None and not missing and not other:
        result.verified.append(Verified(place, made.kind, signer, key_id, tuple(files), made))
    return set(files)


def _accepted(data: bytes, place: str, policy: Policy) -> tuple[Statement, str, str]:
    """A statement with the name and the id of the key that has signed it; raises AttestationInvalid or -Refused."""
    envelope = dsse.read(data, place)
    made = statement.read(envelope.payload, place)
    accepted = policy.accepted.get(made.kind, {}) if made.kind is not None else {}
    key_id = dsse.signed_by(envelope, accepted.values())
    if key_id is None:
        shown = ", ".join(key[:16] for key in envelope.signatures) or "nobody"
        message = f"{place}: no key that {policy.path} accepts for {made.kind} has a good signature of it"
        raise AttestationRefused(f"{message} (signed by {shown})", hint="Accept the key, or do not trust the file")
    return made, next(name for name, key in accepted.items() if key.keyid == key_id), key_id


def _archive(place: str, file: Path, policy: Policy, result: Result) -> bool:
    """Whether ``file`` is a signed archive of modules, which is then judged; ``place``: as it is called."""
    try:
        envelope = pack.read_provenance(str(file))
    except PackError:
        return False
    if envelope:
        try:
            result.verified.append(_modules(place, file, envelope, policy))
        except GdsError as error:
            result.errors.append(error)
    return bool(envelope)


def _modules(place: str, file: Path, envelope: bytes, policy: Policy) -> Verified:
    made, signer, key_id = _accepted(envelope, place, policy)
    about = made.about()
    if not isinstance(about, Built):
        raise AttestationInvalid(f"{place}: an archive of modules has a statement about a {made.kind}")
    raw = bytes.fromhex(policy.accepted["modules"][signer].keyval["public"])
    try:
        pack.verify(str(file), provenance.Origin(about.builder, provenance.pem_of(raw)))
    except PackError as error:
        raise AttestationInvalid(f"{place}: is not what was signed: {error}") from None
    return Verified(place, "modules", signer, key_id, tuple(made.files()), made)


def _folder(path: Path) -> _Files:
    digests: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    for file in _walk(path):
        name = file.relative_to(path).as_posix()
        if file.is_symlink() or not file.is_file():
            raise AttestationInvalid(f"{file}: is not a plain file: a link could lead anywhere")
        if len(digests) >= _MANY:
            raise AttestationInvalid(f"{path}: more than {_MANY} files")
        digests[name] = _sha256(file)
        if name.endswith(SUFFIX):
            contents[name] = _beginning(file)
    return _Files(digests, contents, lambda names: ((name, path / name) for name in sorted(names)))


def _walk(path: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(path):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in sorted([*files, *links]))


def _tar(path: Path) -> _Files:
    digests: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    with _damage(path):
        for member, _, pieces in tarball.members(str(path), _LARGE):
            name = _name(member)
            if name in digests or len(digests) >= _MANY:
                raise AttestationInvalid(f"{path}: {name[:100]}: a second file of this name, or one too many")
            digest, content = hashlib.sha256(), b""
            for piece in pieces:
                digest.update(piece)
                if name.endswith(SUFFIX):
                    content = (content + piece)[: provenance.LIMIT + 1]
            digests[name] = digest.hexdigest()
            if name.endswith(SUFFIX):
                contents[name] = content
    return _Files(digests, contents, lambda names: _unpacked(path, names))


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """What is wrong with the tar file as an AttestationInvalid."""
    try:
        yield
    except (EOFError, ValueError, zlib.error) as error:
        raise AttestationInvalid(f"{path}: not a tar file, or damaged: {error}") from None


def _name(member: str) -> str:
    """The name in a folder that a member of a tar file has; raises ValueError where it leads elsewhere."""
    name = member.removeprefix("./")
    if name.startswith("/") or ".." in name.split("/") or str(PurePosixPath(name)) != name:
        raise ValueError(f"{member[:100]!r} is not the plain name of a file below its folder")
    return name


def _unpacked(packed: Path, names: AbstractSet[str]) -> Iterator[tuple[str, Path]]:
    """Copies of these files of a tar file, which is read once."""
    with _damage(packed):
        for member, _, pieces in tarball.members(str(packed), _LARGE) if names else ():
            name = _name(member)
            if name in names:
                with tempfile.NamedTemporaryFile(prefix="gdsdeploy-verify-") as copy:
                    copy.writelines(pieces)
                    copy.flush()
                    yield name, Path(copy.name)


def _beginning(path: Path) -> bytes:
    """As much as a statement may have, and a byte more."""
    return reading.beginning(str(path), provenance.LIMIT)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
