"""Signed apt repositories: Release files and package lists, for suites with components and for flat layouts.

A pinned key signs the Release file; that has each list's sha256, which has each package's.  Dates are checked, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.model.lock import Index
from gdsdeploy.repo import names, unpack
from gdsdeploy.repo.fetch import BETWEEN_UPDATES, Fetcher, MissingFile
from gdsdeploy.repo.packages import NVIDIA, Origin, PackageList, Universe
from gdsdeploy.repo.repository import (
    FETCHES_AT_ONCE,
    Repository,
    Signed,
    VerifiedIndex,
    require_past,
    rfc3339,
    verify,
)

#: Endings of compressed lists, best first.
_ENDINGS: Final = (".xz", ".zst", ".gz", ".bz2", "")

#: A package that no repository has but NVIDIA's and those of distributions.
_NVIDIA_PACKAGE: Final = re.compile(
    rb"^Package: (?:nvidia-fs-dkms|libcufile-|nvidia-dkms-|nvidia-kernel-)", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Release(VerifiedIndex):
    #: address of the folder it lies in, with ``/`` at its end
    base: str
    #: lower-case field names
    fields: dict[str, str]
    #: path relative to ``base`` → (sha256, bytes)
    files: dict[str, tuple[str, int]]

    @property
    def flat(self) -> bool:
        """Whether the repository has neither suites nor components."""
        return self.suite.endswith("/")


def read(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> tuple[Universe, tuple[Index, ...]]:
    """Fetch and verify everything that ``repositories`` offer for ``architecture`` (dpkg's name).

    now: aware; the time that Date and Valid-Until are compared with.
    Raises RepositoryUnusable naming the address, RepositoryUntrusted naming the file.
    """
    releases, lists = contents(fetcher, repositories, architecture, now=now)
    return Universe(packages for _, packages in lists), tuple(each.index() for each in releases)


def contents(
    fetcher: Fetcher, repositories: Sequence[Repository], architecture: str, *, now: datetime | None = None
) -> tuple[list[Release], list[tuple[Repository, PackageList]]]:
    """The suites of ``repositories`` and each of their lists, verified, in their order; as for ``read``."""
    moment = now or datetime.now(UTC)
    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        suites = [(repository, suite) for repository in repositories for suite in repository.suites]
        releases = list(pool.map(lambda pair: release(fetcher, pair[0], pair[1], now=moment), suites))
        stems = [(each, stem) for each in releases for stem in list_stems(each, architecture)]
        lists = list(pool.map(lambda pair: package_list(fetcher, pair[0], pair[1], architecture), stems))
    return releases, [(each.repository, packages) for (each, _), packages in zip(stems, lists, strict=True)]


def release(fetcher: Fetcher, repository: Repository, suite: str, *, now: datetime) -> Release:
    """Fetch and verify one suite's Release file; raises as ``read`` does."""
    root = repository.uri.rstrip("/") + "/"
    base = root + (suite.removeprefix("./").removeprefix("/") if suite.endswith("/") else f"dists/{suite}/")
    try:
        uri = base + "InRelease"
        signed = _verified(repository, uri, fetcher.small(uri))
    except MissingFile:
        uri = base + "Release"
        try:
            text, signature = fetcher.small(uri), fetcher.small(uri + ".gpg")
        except MissingFile as error:
            raise RepositoryUnusable(
                f"{base}: there is neither InRelease nor Release with Release.gpg",
                hint=f"Check `uri` and `suites` of repository {repository.name}; an unsigned repository is not used",
            ) from error
        signed = _verified(repository, uri, text, signature)
    fields, files = parse_release(signed.text.decode("utf-8", "replace"), uri)
    date = _date(fields.get("date"), uri, "Date")
    if date is None:
        raise RepositoryUntrusted(f"{uri}: it has no Date")
    valid_until = _date(fields.get("valid-until"), uri, "Valid-Until")
    _check_time(uri, date, valid_until, now)
    _check_suite(uri, suite, sorted(filter(None, {fields.get("suite"), fields.get("codename")})))
    return Release(
        repository=repository,
        suite=suite,
        base=base,
        fields=fields,
        files=files,
        date=date,
        valid_until=valid_until,
        signed_by=signed.fingerprints,
    )


def list_stems(release: Release, architecture: str) -> list[str]:
    """Paths, without endings, of the package lists that apt reads of ``release`` for an architecture.

    Those of all architectures may be apart, which ``No-Support-for-Architecture-all`` denies (Debian wiki,
    DebianRepository/Format).  A supported architecture without a list has no packages.
    Raises RepositoryUnusable where the repository has neither.
    """
    supported = release.fields.get("architectures", f"{architecture} all").split()
    apart = "Packages" not in release.fields.get("no-support-for-architecture-all", "").split()
    kinds = (architecture, "all") if apart and "all" in supported else (architecture,)
    stems: list[str] = []
    for component in release.repository.components if not release.flat else ("",):
        wanted = [f"{component}/binary-{kind}/Packages" for kind in kinds] if component else ["Packages"]
        listed = [stem for stem in wanted if any(stem + ending in release.files for ending in _ENDINGS)]
        if not listed:
            _require_support(release, component, wanted[0], {architecture, *kinds} & set(supported))
        stems += listed
    return stems


def _require_support(release: Release, component: str, stem: str, supported: set[str]) -> None:
    """Raise RepositoryUnusable unless ``stem`` may be missing, as one without packages."""
    where = release.base + "Release"
    if component and component not in _components(release):
        raise RepositoryUnusable(
            f"{where}: {release.suite} has no component {component}; it has {', '.join(sorted(_components(release)))}",
            hint=f"Correct `components` of repository {release.repository.name}",
        )
    if not component or not supported or "architectures" not in release.fields:
        raise RepositoryUnusable(
            f"{where}: {release.suite} lists no {stem}",
            hint=f"This repository offers {release.fields.get('architectures', 'no architectures')}",
        )


def package_list(fetcher: Fetcher, release: Release, stem: str, architecture: str) -> PackageList:
    """Fetch, verify and decompress one of the lists of ``list_stems``."""
    paths = [stem + ending for ending in _ENDINGS if stem + ending in release.files]
    where_from = Origin(
        repository=release.repository.name,
        suite=release.suite,
        component=stem.rpartition("/binary-")[0],
        origin="",
        architectures=(architecture, "all"),
        uri=release.base + paths[0],
    )
    # Unpacking Debian's list takes longer than everything else together; the signed index has its sha256 as well.
    plain = release.files.get(stem)
    declared = plain[1] if plain else None
    unpack.require_size(where_from.uri, release.files[paths[0]][1], declared)
    unpacked = fetcher.find_cached(*plain) if plain else None
    if unpacked is not None:
        return _read_list(unpack.index(unpacked, release.base + stem, declared), release, where_from)
    missing: MissingFile | None = None
    attempts = [(path, uri) for path in paths for uri in _addresses(release, path)]
    for path, uri in attempts:
        sha256, size = release.files[path]
        try:
            file = fetcher.file(uri, sha256=sha256, size=size, optional=(path, uri) != attempts[-1])
        except MissingFile as error:
            missing = error
            continue
        data = unpack.index(file, release.base + path, declared)
        if plain and path != stem:
            fetcher.keep(data, plain[0])
        return _read_list(data, release, where_from)
    raise RepositoryUnusable(
        f"{release.base}{stem}: the signed index names this list, but the repository does not have it",
        hint=BETWEEN_UPDATES,
    ) from missing


def _read_list(data: bytes, release: Release, where: Origin) -> PackageList:
    return PackageList(data, replace(where, origin=_maker(release, data)))


def _maker(release: Release, data: bytes) -> str:
    """Who made the packages in the list ``data``, in lower case.

    A local installer of NVIDIA's is its repository in a folder, and needn't name its maker as the network's does.
    """
    # Debian's backports say "Debian Backports", and need what only the main archive has: they have one maker.
    origin = release.fields.get("origin", "").lower().removesuffix(" backports")
    named = origin or release.fields.get("label", "").lower()
    is_nvidia = named.startswith(NVIDIA) or (not named and _NVIDIA_PACKAGE.search(data))
    return NVIDIA if release.flat and is_nvidia else origin


def parse_release(text: str, uri: str) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
    """A Release file's one-line fields by lower-case name, and its SHA256 section: path → (sha256, bytes).

    Raises RepositoryUnusable naming the line of a malformed checksum or path, or of a size that is malformed or too
    large.
    """
    fields: dict[str, str] = {}
    files: dict[str, tuple[str, int]] = {}
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith((" ", "\t")):
            words = line.split() if section == "sha256" else []
            if len(words) == 3:
                try:
                    digest, size = names.sha256(words[0]), names.size(words[1])
                    files[names.path(words[2])] = digest, size
                except ValueError as error:
                    raise RepositoryUnusable(f"{uri}: line {number}: {error}") from error
        elif ":" in line:
            section, _, value = line.partition(":")
            section = section.lower()
            fields[section] = value.strip()
    return fields, files


def _verified(repository: Repository, uri: str, document: bytes, detached: bytes | None = None) -> Signed:
    keyring, fingerprints = repository.keyring, repository.fingerprints
    return verify(document, detached=detached, keyring=keyring, fingerprints=fingerprints, name=uri)


def _components(release: Release) -> set[str]:
    """Debian's security archive writes ``updates/main`` for what its paths call ``main``."""
    return {word.rsplit("/", 1)[-1] for word in release.fields.get("components", "").split()}


def _addresses(release: Release, path: str) -> Iterator[str]:
    if release.fields.get("acquire-by-hash", "").lower() == "yes":
        folder, slash, _ = path.rpartition("/")
        yield f"{release.base}{folder}{slash}by-hash/SHA256/{release.files[path][0]}"
    yield release.base + path


def _date(text: str | None, uri: str, field: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise RepositoryUntrusted(f"{uri}: {field} is not a date: {text[:80]!r}") from error


def _check_suite(uri: str, suite: str, own: list[str]) -> None:
    if suite in own or suite.endswith("/"):
        return
    if not own:
        raise RepositoryUntrusted(
            f"{uri}: it has neither Suite nor Codename, so nothing says that this is the index of {suite}",
            hint="Have the repository write `Suite` or `Codename` into its Release file, as reprepro and aptly do",
        )
    raise RepositoryUntrusted(
        f"{uri}: this is the index of {' or '.join(own)}, not of {suite}",
        hint="The mirror serves another suite's index under this name; use another mirror",
    )


def _check_time(uri: str, date: datetime, valid_until: datetime | None, now: datetime) -> None:
    if valid_until is not None and valid_until < now:
        raise RepositoryUntrusted(
            f"{uri}: this index was valid until {rfc3339(valid_until)}, and it is {rfc3339(now)}",
            hint="The mirror is out of date: take another one. If this machine's clock is wrong, correct it",
        )
    require_past(uri, date, now)
