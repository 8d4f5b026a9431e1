"""Signed rpm repositories: repomd.xml with its detached signature, the lists that it names, and module streams.

Trust runs from a pinned fingerprint over repomd.xml's signature to the sha256 of each list, and from primary.xml to
each package.  A fleet file may accept an index without a signature; each package's own is checked then
(packagefile.py).  repomd.xml has no Valid-Until; the newest of its timestamps goes into the lock.

Modules hide packages as in dnf: those of inactive streams, and where an active stream has a package, all packages of
that name from outside the stream.  A test compares it with the real dnf.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from gdsdeploy.errors import NoSolution, ProgramFailed, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.files import yamlfile
from gdsdeploy.model.lock import Index, Package
from gdsdeploy.repo import packagefile, rpmprimary
from gdsdeploy.repo.fetch import BETWEEN_UPDATES, Fetcher, MissingFile, address
from gdsdeploy.repo.packages import Candidate, Origin, Universe
from gdsdeploy.repo.repository import FETCHES_AT_ONCE, Repository, Signed, require_past, verify
from gdsdeploy.repo.rpmprimary import Primary
from gdsdeploy.run import run, which


@dataclass
class Modules:
    """The module streams of some repositories."""

    #: module → stream → packages as ``NAME-EPOCH:VERSION-RELEASE.ARCH``
    artifacts: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    #: module → the stream that is active by default
    defaults: dict[str, str] = field(default_factory=dict)

    def add(self, text: bytes, uri: str) -> None:
        """Add one modules.yaml; raises RepositoryUnusable naming ``uri`` if it cannot be read."""
        try:
            for document in yamlfile.documents(text):
                self._document(document or {})
        except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
            raise RepositoryUnusable(f"{uri}: not module metadata: {error!r}") from error

    def _document(self, document: Mapping[str, Any]) -> None:
        data = document.get("data") or {}
        if document.get("document") == "modulemd":
            streams = self.artifacts.setdefault(_name(data["name"]), {})
            rpms = (data.get("artifacts") or {}).get("rpms") or ()
            streams.setdefault(_name(data["stream"]), set()).update(map(_name, rpms))
        elif document.get("document") == "modulemd-defaults" and data.get("stream"):
            self.defaults[_name(data["module"])] = _name(data["stream"])

    def enable(self, streams: Mapping[str, str]) -> Callable[[Candidate], bool]:
        """The filter with ``streams`` enabled: whether dnf would see a package.

        A module that no repository has is ignored.  Raises NoSolution for a stream that its module doesn't have.
        """
        active = {name: stream for name, stream in self.defaults.items() if stream in self.artifacts.get(name, ())}
        for name, stream in streams.items():
            artifacts = self.artifacts.get(name)
            if artifacts is None:
                continue
            if stream not in artifacts:
                raise NoSolution(
                    f"the repositories have no module stream {name}:{stream}; there are {', '.join(sorted(artifacts))}",
                    hint="Pin a driver branch that has a stream, or add a repository that has this one",
                )
            active[name] = stream
        active_rpms: set[str] = set()
        for name, stream in active.items():
            active_rpms |= self.artifacts[name][stream]
        hidden = {rpm for each in self.artifacts.values() for rpms in each.values() for rpm in rpms} - active_rpms
        names = {rpm.rsplit("-", 2)[0] for rpm in active_rpms if not rpm.endswith((".src", ".nosrc"))}

        def visible(candidate: Candidate) -> bool:
            rpm = nevra(candidate)
            if rpm in active_rpms:
                return True
            # Every package provides its own name.
            return rpm not in hidden and not any(offer.package in names for offer in candidate.provides)

        return visible


def _name(value: object) -> str:
    """A name or a stream; raises TypeError for a list or mapping.  An unquoted stream may look like a number."""
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError(f"a name or a stream, rather than {type(value).__name__}")


def nevra(candidate: Candidate) -> str:
    """A package as module metadata names it."""
    version = candidate.version if ":" in candidate.version else f"0:{candidate.version}"
    return f"{candidate.package}-{version}.{candidate.architecture}"


class ModularUniverse(Universe):
    """Package lists with module streams; before ``with_streams``, all streams are visible."""

    def __init__(
        self,
        lists: Sequence[Primary],
        modules: Modules,
        visible: Callable[[Candidate], bool] | None = None,
        enabled: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(lists)
        self._primaries = lists
        self._modules = modules
        self._visible = visible
        self._enabled = dict(enabled or {})

    def with_streams(self, streams: Mapping[str, str]) -> ModularUniverse:
        enabled = {name: stream for name, stream in streams.items() if name in self._modules.artifacts}
        return ModularUniverse(self._primaries, self._modules, self._modules.enable(streams), enabled)

    def streams(self) -> tuple[str, ...]:
        return tuple(sorted(f"{name}:{stream}" for name, stream in self._enabled.items()))

    def named(self, name: str) -> list[Candidate]:
        return self._only_visible(super().named(name))

    def providing(self, name: str) -> list[Candidate]:
        return self._only_visible(super().providing(name))

    def _only_visible(self, candidates: list[Candidate]) -> list[Candidate]:
        return candidates if self._visible is None else [c for c in candidates if self._visible(c)]


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
    root = rpmprimary.parse_xml(signed.text, uri)
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
    expected = packagefile.Expected(package.package, package.version, package.architecture)
    packagefile.check_signature(
        path, expected, keyring=repository.keyring, fingerprints=repository.package_keys, name=uri
    )


def _listed(data: rpmprimary.Element, base: str) -> Listed:
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
