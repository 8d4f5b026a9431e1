"""Signed rpm repositories: repomd.xml with its detached signature, and the lists that it names.

Trust runs from a pinned fingerprint over repomd.xml's signature to the sha256 of each list, and from primary.xml to
each package.  A fleet file may accept an index without a signature; each package's own is checked then (rpmfile.py).
repomd.xml has no Valid-Until; the newest of its timestamps goes into the lock.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from gdsdeploy.errors import ProgramFailed, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.model.lock import Index, Package
from gdsdeploy.repo import rpmfile, rpmxml
from gdsdeploy.repo.fetch import BETWEEN_UPDATES, Fetcher, MissingFile, address
from gdsdeploy.repo.index import FETCHES_AT_ONCE, Repository, require_past
from gdsdeploy.repo.packages import Origin, Universe
from gdsdeploy.repo.rpmmodules import ModularUniverse, Modules
from gdsdeploy.repo.rpmprimary import Primary
from gdsdeploy.repo.signature import Signed, verify
from gdsdeploy.run import run, which

#: Bytes that a list may have, compressed or not; the largest of a distribution's has some hundred megabytes.
MAX_LIST: Final = 2 * 1024**3
_REPO: Final = "{http://linux.duke.edu/metadata/repo}"
_FORMATS: Final = {".gz": gzip.GzipFile, ".xz": lzma.LZMAFile, ".bz2": bz2.BZ2File}


@dataclass(frozen=True)
class Listed:
    """A file that repomd.xml names."""

    uri: str
    sha256: str
    #: bytes, as it lies in the repository
    size: int
    #: bytes, decompressed
    open_size: int


@dataclass(frozen=True)
class Repomd:
    """A verified repomd.xml."""

    repository: Repository
    uri: str
    #: type (``primary``, ``modules``) → file
    files: dict[str, Listed]
    date: datetime
    signed_by: tuple[str, ...]

    def index(self) -> Index:
        """The lock's record of it."""
        return self.repository.index("rpm", self.date, "".join(self.signed_by[:1]))


@dataclass(frozen=True)
class Content:
    """What one repository has."""

    repomd: Repomd
    primary: Primary
    #: text of modules.yaml, if it has one
    modules: bytes | None


def read(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> tuple[Universe, tuple[Index, ...]]:
    """Fetch and verify everything that ``repositories`` offer for ``architecture`` (rpm's name).

    now: aware; the time that the indices' dates are compared with.  File lists are fetched when a package needs a file
    that no primary list has, so ``fetcher`` must stay open while the universe is in use.
    Raises RepositoryUnusable naming the address, RepositoryUntrusted naming the file.
    """
    modules, lists, indices = Modules(), list[Primary](), list[Index]()
    for content in contents(fetcher, repositories, architecture, now=now):
        if content.modules is not None:
            modules.add(content.modules, content.repomd.files["modules"].uri)
        lists.append(content.primary)
        indices.append(content.repomd.index())
    return ModularUniverse(lists, modules), tuple(indices)


def contents(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> list[Content]:
    """What each of ``repositories`` has, verified, in their order; as for ``read``."""
    moment = now or datetime.now(UTC)
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        indices = list(pool.map(lambda repository: repomd(fetcher, repository, now=moment), repositories))
        lists = list(pool.map(lambda index: _primary(fetcher, index, architecture), indices))
        texts = list(pool.map(lambda i: _text(fetcher, i, "modules") if "modules" in i.files else None, indices))
    return list(map(Content, indices, lists, texts))


def repomd(fetcher: Fetcher, repository: Repository, *, now: datetime) -> Repomd:
    """Fetch and verify a repository's repomd.xml; raises as ``read`` does."""
    uri = repository.uri.rstrip("/") + "/repodata/repomd.xml"
    try:
        document = fetcher.small(uri)
    except MissingFile as error:
        raise RepositoryUnusable(
            f"{uri}: there is no such file", hint=f"Check `uri` of repository {repository.name}"
        ) from error
    signed = Signed(document, ()) if repository.unsigned else _signed(fetcher, repository, uri, document)
    root = rpmxml.parse(signed.text, uri)
    files, date = {}, 0.0
    for data in root.findall(f"{_REPO}data"):
        try:
            files[data.get("type", "")] = _listed(data, repository.uri.rstrip("/") + "/")
            date = max(date, float(data.findtext(f"{_REPO}timestamp") or 0))
        except ValueError as error:
            raise RepositoryUnusable(f"{uri}: {data.get('type')}: {error}") from error
    try:
        moment = datetime.fromtimestamp(date, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise RepositoryUnusable(f"{uri}: its timestamp {date:g} is not a date") from error
    require_past(uri, moment, now)
    if "primary" not in files:
        raise RepositoryUnusable(f"{uri}: it lists no primary")
    return Repomd(repository, uri, files, moment, signed.fingerprints)


def _signed(fetcher: Fetcher, repository: Repository, uri: str, document: bytes) -> Signed:
    try:
        signature = fetcher.small(uri + ".asc")
    except MissingFile as error:
        raise RepositoryUntrusted(
            f"{uri}: it is not signed: there is no repomd.xml.asc beside it",
            hint="Take a mirror that is signed, or sign your own; where packages are signed, `metadata: unsigned` with"
            f" `package_keys` and `why` in repositories.{repository.name} accepts it (docs/repositories.md)",
        ) from error
    return verify(
        document, detached=signature, keyring=repository.keyring, fingerprints=repository.fingerprints, name=uri
    )


def check_packages(fetcher: Fetcher, repositories: Sequence[Repository], packages: Sequence[Package]) -> None:
    """Fetch each of ``packages`` that no signed index vouches for, and check its own signature.

    Raises RepositoryUntrusted naming the file, RepositoryUnusable as ``read`` does.
    """
    unsigned = {repository.name: repository for repository in repositories if repository.unsigned}
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        chosen = [package for package in packages if package.repository in unsigned]
        for _ in pool.map(lambda package: _check_package(fetcher, unsigned[package.repository], package), chosen):
            pass


def _check_package(fetcher: Fetcher, repository: Repository, package: Package) -> None:
    uri = address(repository.uri, package.file)
    try:
        path = fetcher.file(uri, sha256=package.sha256, size=package.size)
    except MissingFile as error:
        words = f"{uri}: the index lists this package, but the repository does not have it"
        raise RepositoryUnusable(words, hint=BETWEEN_UPDATES) from error
    expected = rpmfile.Expected(package.package, package.version, package.architecture)
    rpmfile.check(path, expected, keyring=repository.keyring, fingerprints=repository.package_keys, name=uri)


def _listed(data: rpmxml.Element, base: str) -> Listed:
    checksum, location = data.find(f"{_REPO}checksum"), data.find(f"{_REPO}location")
    path = location.get("href", "") if location is not None else ""
    if not path or path.startswith("/") or "://" in path or ".." in path.split("/"):
        raise ValueError(f"it is not inside the repository: {path!r}")
    if checksum is None or checksum.get("type") != "sha256":
        raise ValueError(f"its checksum is a {checksum.get('type') if checksum is not None else None}, not a sha256")
    size = int(data.findtext(f"{_REPO}size") or 0)
    open_size = int(data.findtext(f"{_REPO}open-size") or size)
    if not 0 < size <= MAX_LIST or not 0 < open_size <= MAX_LIST:
        raise ValueError(f"{size} bytes, {open_size} decompressed, are not what a list can have")
    return Listed(base + path, (checksum.text or "").strip(), size, open_size)


def _primary(fetcher: Fetcher, index: Repomd, architecture: str) -> Primary:
    name = index.repository.name
    where = Origin(name, "", "", name.lower(), (architecture, "noarch"), index.files["primary"].uri)
    return Primary(_text(fetcher, index, "primary"), where, partial(_text, fetcher, index, "filelists"))


def _text(fetcher: Fetcher, index: Repomd, kind: str) -> bytes:
    """One list, verified and decompressed."""
    listed = index.files.get(kind)
    if listed is None:
        raise RepositoryUnusable(f"{index.uri}: it lists no {kind}, which a package's file dependency needs")
    try:
        path = fetcher.file(listed.uri, sha256=listed.sha256, size=listed.size)
    except MissingFile as error:
        raise RepositoryUnusable(
            f"{listed.uri}: the signed index names this list, but the repository does not have it",
            hint=BETWEEN_UPDATES,
        ) from error
    text = _decompress(path, listed)
    if len(text) != listed.open_size:
        raise RepositoryUntrusted(f"{listed.uri}: it does not decompress to the {listed.open_size} bytes it may have")
    return text


def _decompress(path: Path, listed: Listed) -> bytes:
    """At most one byte more than the index allows."""
    ending = Path(listed.uri).suffix
    if ending == ".zst":
        return _zstd(path, listed)
    reader = _FORMATS.get(ending)
    if reader is None:
        return path.read_bytes()
    try:
        with reader(path) as file:
            text: bytes = file.read(listed.open_size + 1)
            return text
    except (lzma.LZMAError, OSError, EOFError, zlib.error) as error:
        raise RepositoryUnusable(f"{listed.uri}: cannot be decompressed: {error}") from error


def _zstd(path: Path, listed: Listed) -> bytes:
    """By the zstd program, as Python's own library has zstd from 3.14 on only."""
    zstd = which("zstd", hint=f"Install the package zstd: {listed.uri} is compressed with it")
    with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as folder:
        plain = Path(folder) / "plain"
        try:
            run([zstd, "-d", "-q", "-o", plain, path], doing=f"decompress {listed.uri}", timeout=300)
        except ProgramFailed as error:
            raise RepositoryUnusable(f"{listed.uri}: cannot be decompressed: {error.message}") from error
        with plain.open("rb") as file:
            return file.read(listed.open_size + 1)
