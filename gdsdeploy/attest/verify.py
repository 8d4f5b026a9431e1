"""Verify files, folders and tar files against a policy, offline; in a folder, a statement has to cover every file.

A statement is a file ``*.intoto.json``; an archive of modules contains its own.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from gdsdeploy.attest import dsse, statement
from gdsdeploy.attest.policy import Policy
from gdsdeploy.attest.statement import Kind, ModulesPredicate, Statement
from gdsdeploy.errors import AttestationInvalid, AttestationRefused, GdsError
from gdsdeploy.host.archive import pack, provenance
from gdsdeploy.host.errors import PackError
from gdsdeploy.host.io import reading, tarball

SUFFIX = ".intoto.json"
#: Limits of a folder or tar file: number of files, bytes.
_MANY, _LARGE = 10_000, 1 << 33
_TAR = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class VerifiedStatement:
    """A verified statement: the policy's name of its key, and the files that it is about."""

    place: str
    kind: Kind
    signer: str
    key_id: str
    files: tuple[str, ...]
    statement: Statement


@dataclass
class Verification:
    """Verified statements, and errors."""

    verified: list[VerifiedStatement] = field(default_factory=list)
    errors: list[GdsError] = field(default_factory=list)


@dataclass(frozen=True)
class _Files:
    """A folder or tar file: name → SHA-256, and the content of statements."""

    digests: Mapping[str, str]
    statements: Mapping[str, bytes]
    #: names → (name, the file or a copy that exists until the next iteration)
    open: Callable[[AbstractSet[str]], Iterator[tuple[str, Path]]]


def verify(path: Path, policy: Policy) -> Verification:
    """Verify a folder, a tar file of one, an archive of modules, a statement, or a file beside its statement."""
    result = Verification()
    try:
        if path.is_dir():
            _verify_folder(str(path), _folder(path), policy, result)
        elif not path.name.endswith(_TAR):
            _verify_file(path, policy, result)
        elif not _verify_archive(str(path), path, policy, result):
            _verify_folder(str(path), _tar(path), policy, result)
    except GdsError as error:
        result.errors.append(error)
    except OSError as error:
        result.errors.append(AttestationInvalid(f"{error.filename or path}: cannot be read: {error.strerror or error}"))
    return result


def _verify_folder(place: str, files: _Files, policy: Policy, result: Verification) -> None:
    """Every statement is valid, its files are as signed, and there is no other file."""
    covered: set[str] = set()
    for name, data in files.statements.items():
        # Files are named from the folder of their statement.
        covered |= _verify_statement(
            f"{place}/{name}", data, files.digests, str(PurePosixPath(name).parent), policy, result
        )
    uncovered = set(files.digests) - covered - files.statements.keys()
    for name, file in files.open({name for name in uncovered if name.endswith(".tar")}):
        if _verify_archive(f"{place}/{name}", file, policy, result):
            uncovered.discard(name)
    for name in sorted(uncovered):
        result.errors.append(AttestationInvalid(f"{place}/{name}: no statement that holds is about this file"))
    if not files.digests:
        result.errors.append(AttestationInvalid(f"{place}: there is nothing in it to verify"))


def _verify_file(path: Path, policy: Policy, result: Verification) -> None:
    """A statement with the files beside it, or a file with its statement."""
    beside = path if path.name.endswith(SUFFIX) else path.with_name(path.name + SUFFIX)
    if beside != path and not path.exists():
        raise AttestationInvalid(f"{path}: there is no such file")
    if not beside.is_file():
        hint = "Name its statement or its folder; `gdsdeploy lock --sign` makes a lock's statement"
        raise AttestationInvalid(f"{path}: there is no {beside.name} beside it", hint=hint)
    data = _beginning(beside)
    names = statement.read(dsse.read(data, str(beside)).payload, str(beside)).files()
    plain = {name: path.parent / name for name in names if PurePosixPath(name).name == name}
    digests = {name: _sha256(file) for name, file in plain.items() if file.is_file() and not file.is_symlink()}
    covered = _verify_statement(str(beside), data, digests, ".", policy, result)
    if beside != path and path.name not in covered and not result.errors:
        result.errors.append(AttestationInvalid(f"{path}: {beside.name} is not about this file"))


def _verify_statement(
    place: str, data: bytes, digests: Mapping[str, str], folder: str, policy: Policy, result: Verification
) -> set[str]:
    """The files that a statement covers; adds the statement or its errors to ``result``."""
    try:
        verified = _open_statement(data, place, policy)
    except GdsError as error:
        result.errors.append(error)
        return set()
    files = {str(PurePosixPath(folder) / name): digest for name, digest in verified.statement.files().items()}
    missing = [name for name in files if name not in digests]
    changed = [name for name in files if name in digests and digests[name] != files[name]]
    result.errors += [AttestationInvalid(f"{place}: {name}, which it is about, is missing") for name in missing]
    result.errors += [AttestationInvalid(f"{place}: {name} is not what was signed") for name in changed]
    if not missing and not changed:
        result.verified.append(replace(verified, files=tuple(files)))
    return set(files)


def _open_statement(data: bytes, place: str, policy: Policy) -> VerifiedStatement:
    """The statement in ``data``, whose files aren't verified yet; raises AttestationInvalid or AttestationRefused."""
    envelope = dsse.read(data, place)
    signed = statement.read(envelope.payload, place)
    assert signed.kind is not None
    keys = policy.accepted.get(signed.kind, {})
    key_id = dsse.signed_by(envelope, keys.values())
    if key_id is None:
        signers = ", ".join(key[:16] for key in envelope.signatures) or "no key"
        message = f"{place}: no key that {policy.path} accepts for {signed.kind} has a good signature of it"
        raise AttestationRefused(f"{message} (signed by {signers})", hint="Accept the key, or do not trust the file")
    signer = next(name for name, key in keys.items() if key.keyid == key_id)
    return VerifiedStatement(place, signed.kind, signer, key_id, tuple(signed.files()), signed)


def _verify_archive(place: str, file: Path, policy: Policy, result: Verification) -> bool:
    """Whether ``file`` is a signed archive of modules, which is then verified; ``place``: its name in messages."""
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


def _modules(place: str, file: Path, envelope: bytes, policy: Policy) -> VerifiedStatement:
    verified = _open_statement(envelope, place, policy)
    predicate = verified.statement.about()
    if not isinstance(predicate, ModulesPredicate):
        raise AttestationInvalid(f"{place}: an archive of modules has a statement about a {verified.kind}")
    raw = bytes.fromhex(policy.accepted["modules"][verified.signer].keyval["public"])
    try:
        pack.verify(str(file), provenance.Origin(predicate.builder, provenance.pem_of(raw)))
    except PackError as error:
        raise AttestationInvalid(f"{place}: is not what was signed: {error}") from None
    return verified


def _folder(path: Path) -> _Files:
    digests: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    for file in _walk(path):
        name = file.relative_to(path).as_posix()
        if file.is_symlink() or not file.is_file():
            raise AttestationInvalid(f"{file}: is not a plain file")
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
    return _Files(digests, contents, lambda names: _copies(path, names))


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    """Raise a tar file's problems as AttestationInvalid."""
    try:
        yield
    except (EOFError, ValueError, zlib.error) as error:
        raise AttestationInvalid(f"{path}: not a tar file, or damaged: {error}") from None


def _name(member: str) -> str:
    """A tar member's name in its folder; raises ValueError for a path outside of it."""
    name = member.removeprefix("./")
    if name.startswith("/") or ".." in name.split("/") or str(PurePosixPath(name)) != name:
        raise ValueError(f"{member[:100]!r} is not the plain name of a file below its folder")
    return name


def _copies(packed: Path, names: AbstractSet[str]) -> Iterator[tuple[str, Path]]:
    """Temporary copies of these members of a tar file, which is read once."""
    with _damage(packed):
        for member, _, pieces in tarball.members(str(packed), _LARGE) if names else ():
            name = _name(member)
            if name in names:
                with tempfile.NamedTemporaryFile(prefix="gdsdeploy-verify-") as copy:
                    copy.writelines(pieces)
                    copy.flush()
                    yield name, Path(copy.name)


def _beginning(path: Path) -> bytes:
    """The limit of a statement, and a byte more."""
    return reading.beginning(str(path), provenance.LIMIT)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
