"""A local signed repository with exactly a lock's files, and the system packages that they need.

A host's package manager decides which system packages it installs.  So the mirror carries the first alternative on
offer, and both versions where two packages need different ones.

There is one rpm repository per system and architecture, with metadata by createrepo_c and module streams.  Its packages
keep their makers' signatures; the user's key signs repomd.xml.  A package of a repository whose own index isn't signed
is checked by its own signature first.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from gdsdeploy.errors import LockStale, NoSolution, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.files import yamlfile
from gdsdeploy.host.io import reading
from gdsdeploy.mirror import host_sources, writing
from gdsdeploy.mirror.host_sources import STACK, SYSTEM
from gdsdeploy.mirror.writing import Folder, MirroredPackage
from gdsdeploy.model.hostnames import grouped
from gdsdeploy.model.lock import Index, Lock, Package, Target
from gdsdeploy.platform import StackPlatform, stack_platform_for
from gdsdeploy.repo import apt, rpm
from gdsdeploy.repo.fetch import Fetcher, MissingFile, address
from gdsdeploy.repo.packages import Candidate, Group, IndexedList, Key, Order, Universe
from gdsdeploy.repo.repository import LARGEST_KEYRING, Repository, key_fingerprints, verify
from gdsdeploy.repo.rpm import ModularUniverse, Modules, nevra
from gdsdeploy.run import run, which


def closure(roots: Iterable[Candidate], universe: Universe, order: Order) -> tuple[list[Candidate], list[str]]:
    """The dependencies of ``roots`` without these themselves, and each dependency that nothing satisfies, in words.

    Depends and Pre-Depends are followed, as the roles install without Recommends.  A dependency beside another package,
    rpm's ``(a if b)``, is carried if it is on offer, and missing only if that package is locked.
    """
    locked = {candidate.key: candidate for candidate in roots}
    chosen: dict[Key, Candidate] = {}
    lacking: list[str] = []
    waiting = list(locked.values())
    visits: set[Group] = set()
    while waiting:
        owner = waiting.pop()
        for group in (*owner.pre_depends, *owner.depends):
            if group in visits:
                continue
            visits.add(group)
            answer = _answer(group, locked, chosen, universe, order)
            if answer is None:
                if not _absent(group, locked, universe):
                    lacking.append(f"{owner} needs {' | '.join(map(str, group))}")
            elif answer.key not in locked and answer.key not in chosen:
                chosen[answer.key] = answer
                waiting.append(answer)
    return sorted(chosen.values(), key=lambda c: c.key), lacking


def _answer(
    group: Group, locked: dict[Key, Candidate], chosen: dict[Key, Candidate], universe: Universe, order: Order
) -> Candidate | None:
    """The package that satisfies a group: a locked one, else a chosen one, else the newest of the first name."""
    group = tuple(relation for relation in group if not relation.negated)
    fitting = [universe.answering(relation) for relation in group]
    for packages in (locked, chosen):
        for candidate in itertools.chain.from_iterable(fitting):
            if candidate.key in packages:
                return candidate
    for relation, candidates in zip(group, fitting, strict=True):
        own = [candidate for candidate in candidates if candidate.package == relation.package]
        if own or candidates:
            return max(own or candidates, key=lambda candidate: order.key(candidate.version))
    return None


def _absent(group: Group, locked: dict[Key, Candidate], universe: Universe) -> bool:
    """Whether no locked package answers one of the negated relations."""
    unwanted = (universe.answering(relation) for relation in group if relation.negated)
    return any(not any(candidate.key in locked for candidate in candidates) for candidates in unwanted)


@dataclass(frozen=True)
class File:
    """A file of the mirror: its source, its expected content, its path below the mirror."""

    uri: str
    sha256: str
    size: int
    place: str
    #: checks the file's own signature where no signed index vouches for it; raises RepositoryUntrusted
    check: Callable[[Path], None] | None = None


@dataclass(frozen=True)
class Suite:
    """What the mirror offers for one operating system and architecture."""

    os: str
    architecture: str
    stack: int
    system: int


def locked_repository(index: Index, keyrings: Sequence[Path]) -> Repository:
    """The repository of a locked index, limited to that suite; raises as :func:`keyring`."""
    return Repository(
        name=index.repository,
        uri=index.uri,
        keyring=keyring(index, keyrings),
        fingerprints=(index.signed_by,) if index.signed_by else (),
        host_keyring=index.host_keyring,
        suites=(index.suite,) if index.suite else (),
        components=index.components,
        unsigned=index.why if index.metadata == "unsigned" else "",
        package_keys=index.package_keys,
    )


def keyring(index: Index, keyrings: Sequence[Path]) -> Path:
    """The file on this machine to check ``index`` with: the host's own, or one of ``keyrings`` that has its key.

    Raises RepositoryUnusable where there is none.
    """
    paths = [path for path in (Path(index.host_keyring), *keyrings) if path.is_file()]
    if len(paths) == 1:
        return paths[0]
    needed = [index.signed_by] if index.signed_by else list(index.package_keys)
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            if set(needed) <= set(key_fingerprints(reading.whole(str(path), LARGEST_KEYRING))):
                return path
    raise RepositoryUnusable(
        f"{index.host_keyring}: this machine has no such keyring to check repository {index.repository} with",
        hint=f"Name the file that has the key {' and '.join(needed)}: --keyring FILE",
    )


ListT = TypeVar("ListT", bound=IndexedList)


def _repositories(targets: Iterable[Target], keyrings: Sequence[Path]) -> list[Repository]:
    """Those of ``targets``, each once: two may differ in a single word, such as a component."""
    indices = (index for target in targets for index in target.indices)
    return list(dict.fromkeys(locked_repository(index, keyrings) for index in indices))


def _source(candidate: Candidate, sources: Sequence[tuple[Repository, ListT]]) -> tuple[Repository, ListT, Candidate]:
    """The first list with this file, its repository, and the file as it is listed there."""
    file = candidate.repository, candidate.sha256
    listed = ((origin, each, own) for origin, each in sources for own in each.named(candidate.package))
    return next(found for found in listed if (found[2].repository, found[2].sha256) == file)


_LOCK_AGAIN: Final = "Run `gdsdeploy lock` on the fleet file, review the change list, and mirror the new lock"


def locked_packages(packages: Iterable[Package], lists: Sequence[IndexedList]) -> list[Candidate]:
    """The locked packages as the repositories list them now; raises LockStale naming each that is gone or replaced."""
    listed: dict[Key, Candidate] = {}
    missing: set[str] = set()
    for package in packages:
        # Two suites may list the same version with different content.
        candidates = (c for each in lists for c in each.named(package.package))
        same = next((c for c in candidates if c.sha256 == package.sha256), None)
        if same is None:
            where = ", ".join(filter(None, (package.repository, package.suite)))
            missing.add(f"  - {package.package} {package.version} ({where})")
        else:
            listed[same.key] = same
    if missing:
        raise LockStale(
            "\n".join(["the repositories no longer list these locked files:", *sorted(missing)]), hint=_LOCK_AGAIN
        )
    return [listed[key] for key in sorted(listed)]


def needed_packages(
    stack: Sequence[Candidate], universe: Universe, platform: StackPlatform, name: str
) -> list[Candidate]:
    """The packages of the system ``name`` that ``stack`` needs; raises NoSolution naming missing ones."""
    packages, missing = closure(stack, universe, platform.order)
    if missing:
        raise NoSolution(
            "\n".join([f"{name}: the repositories lack what locked packages need:", *(f"  - {w}" for w in missing)]),
            hint="Add the operating system's own repositories to the profile, or mirror with --no-dependencies",
        )
    return packages


_HINT: Final = "Install createrepo_c (Debian and Ubuntu: createrepo-c), which writes the metadata of rpm repositories"
#: What the roles bring to hosts beside the lock; a repository need not have them.
_TOOLS: Final = ("python3-dnf-plugin-versionlock",)
_TIMESTAMP: Final = re.compile(rb"(<timestamp>)[^<]*(</timestamp>)")
#: A line that begins with three hyphens begins a document, and nothing inside one can look so (YAML 1.2, 9.1.2).
_DOCUMENT: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_END: Final = re.compile(r"^\.\.\.(?:\s|$)", re.MULTILINE)


@dataclass(frozen=True)
class _Content:
    """What one folder of the mirror has, before it is written."""

    suites: tuple[Suite, ...]
    #: below the mirror
    folder: str
    files: list[File]
    date: datetime


@dataclass(frozen=True)
class RpmContent(_Content):
    """One repository."""

    #: text of modules.yaml; empty where nothing belongs to a module
    modules: str

    def places(self) -> dict[str, str | None]:
        """Places of its index, for ``Folder.require``; the lists have their sha256 in their names."""
        return {f"{self.folder}/repodata/{name}": None for name in ("repomd.xml", "repomd.xml.asc")}

    def publish(self, folder: Folder, fingerprint: str, keyring: Path) -> None:
        """Write and sign the metadata, unless what is there is the same; the packages are all there."""
        with tempfile.TemporaryDirectory(prefix="gdsdeploy-") as scratch:
            metadata = self._metadata(folder.path, Path(scratch))
            lists = {path.name: path.read_bytes() for path in metadata.iterdir()}
        # Lists first, then the index with its signature; then what neither names goes.
        repodata, text = f"{self.folder}/repodata", lists.pop("repomd.xml")
        for name, data in lists.items():
            folder.write(f"{repodata}/{name}", data)
        index, signature = f"{repodata}/repomd.xml", f"{repodata}/repomd.xml.asc"
        has_signature = writing.has_signature(text, folder.read(signature), fingerprint, keyring)
        if folder.read(index) != text or not has_signature:
            fresh = writing.sign(fingerprint, text, "repomd.xml", clear=False)
            folder.write(index, text)
            folder.write(signature, fresh)
        folder.keep_only(repodata, {*lists, "repomd.xml", "repomd.xml.asc"})

    def _metadata(self, directory: Path, scratch: Path) -> Path:
        """The unsigned metadata of exactly these files; the same files give the same bytes."""
        names = scratch / "files"
        names.write_text("".join(f"{file.place.removeprefix(self.folder + '/')}\n" for file in self.files))
        stamp = str(int(self.date.timestamp()))
        argv: list[str | Path] = [
            which("createrepo_c", hint=_HINT), "--quiet", "--no-database", "--general-compress-type=gz",
            f"--revision={stamp}", "--set-timestamp-to-revision",
            "--pkglist", names, "--outputdir", scratch, directory / self.folder,
        ]  # fmt: skip
        run(argv, doing=f"write the metadata of {self.folder}", timeout=3600)
        metadata = scratch / "repodata"
        if self.modules:
            (scratch / "modules.yaml").write_text(self.modules)
            program, options = which("modifyrepo_c", hint=_HINT), ("--mdtype=modules", "--compress-type=gz")
            argv = [program, *options, scratch / "modules.yaml", metadata]
            run(argv, doing=f"add the module streams of {self.folder}", timeout=600)
        index = metadata / "repomd.xml"
        # modifyrepo_c has no way to be given a time.
        index.write_bytes(_TIMESTAMP.sub(rb"\g<1>" + stamp.encode() + rb"\g<2>", index.read_bytes()))
        return metadata


def rpm_content(
    folder: str, targets: Sequence[Target], fetcher: Fetcher, keyrings: Sequence[Path], *, dependencies: bool
) -> RpmContent:
    """What ``folder`` has to have for its profiles ``targets``; raises as ``mirror`` does."""
    for program in ("createrepo_c", "modifyrepo_c"):
        which(program, hint=_HINT)
    name = targets[0].os
    platform = stack_platform_for(name)
    architecture = platform.architecture(targets[0].arch)
    repositories = _repositories(targets, keyrings)
    contents = rpm.contents(fetcher, repositories, architecture)
    modules = Modules()
    texts = {each.repomd.files["modules"].uri: each.modules for each in contents if each.modules is not None}
    for uri, text in texts.items():
        modules.add(text, uri)
    lists = [each.primary for each in contents]
    stack: dict[Key, Candidate] = {}
    system: dict[Key, Candidate] = {}
    streams: set[tuple[str, str]] = set()
    for target in targets:
        modular = ModularUniverse(lists, modules).with_streams(_streams(target))
        own = locked_packages(target.packages, lists)
        _visible(own, modular, target)
        offered = filter(None, map(modular.named, _TOOLS if dependencies else ()))
        tools = [max(each, key=lambda candidate: platform.order.key(candidate.version)) for each in offered]
        needed = [*tools, *needed_packages([*own, *tools], modular, platform, name)] if dependencies else []
        stack |= {c.key: c for c in own}
        system |= {c.key: c for c in needed}
        streams |= _active(modules, _streams(target), [*own, *needed])
    system = {each: c for each, c in system.items() if each not in stack}
    sources = list(zip(repositories, lists, strict=True))
    files = [_file(c, folder, _source(c, sources)[0]) for c in (*stack.values(), *system.values())]
    return RpmContent(
        (Suite(name, architecture, len(stack), len(system)),),
        folder,
        files,
        max(each.repomd.date for each in contents),
        "".join(_documents(texts, streams)),
    )


def _streams(target: Target) -> dict[str, str]:
    """Module → stream that a host of this profile enables."""
    return dict(stream.split(":", 1) for stream in target.modules)


def _visible(stack: Iterable[Candidate], modular: ModularUniverse, target: Target) -> None:
    """Raise LockStale naming what a host would not see any more with the profile's streams enabled."""
    if hidden := [c for c in stack if c.key not in {other.key for other in modular.named(c.package)}]:
        raise LockStale(
            "\n".join([f"outside of {', '.join(target.modules) or 'every active module stream'} now:",
                       *(f"  - {c} ({c.repository})" for c in hidden)]),
            hint=_LOCK_AGAIN,
        )  # fmt: skip


def _active(modules: Modules, enabled: Mapping[str, str], carried: Iterable[Candidate]) -> set[tuple[str, str]]:
    """The streams (module, stream) that hosts need to know of: those they enable, and defaults that are carried."""
    names = {nevra(candidate) for candidate in carried}
    defaults = {
        (name, stream)
        for name, stream in modules.defaults.items()
        if name not in enabled and names & modules.artifacts.get(name, {}).get(stream, set())
    }
    return {(name, stream) for name, stream in enabled.items() if name in modules.artifacts} | defaults


def _documents(texts: Mapping[str, bytes], streams: set[tuple[str, str]]) -> Iterable[str]:
    """The documents about ``streams`` in modules.yaml files (address → text), as they are written there."""
    for uri, text in texts.items():
        for piece in _DOCUMENT.split(text.decode("utf-8", "replace")):
            document = _END.split(piece, maxsplit=1)[0].strip("\n")
            try:
                read = next(yamlfile.documents(document.encode()), None) or {}
            except yaml.YAMLError as error:
                raise RepositoryUnusable(f"{uri}: not module metadata: {error!r}") from error
            if _is_about(read, streams):
                yield f"---\n{document}\n...\n"


def _is_about(document: Mapping[str, Any], streams: set[tuple[str, str]]) -> bool:
    data = document.get("data") or {}
    if document.get("document") == "modulemd":
        return (data.get("name"), data.get("stream")) in streams
    # A default that points to a stream that is left out would be none.
    return document.get("document") == "modulemd-defaults" and (data.get("module"), data.get("stream")) in streams


def _file(candidate: Candidate, folder: str, origin: Repository) -> File:
    place = f"{folder}/packages/{candidate.repository}/{candidate.filename.removeprefix('Packages/')}"
    uri = address(origin.uri, candidate.filename)
    check = rpm.signature_check(origin, candidate, uri) if origin.unsigned else None
    return File(uri, candidate.sha256, candidate.size, place, check)


#: The public key, beside it armoured as ``.asc``, for the fleet file's ``mirror.keyring``.
KEYRING: Final = "gdsdeploy-mirror.gpg"
KEYRING_ARMOURED: Final = "gdsdeploy-mirror.asc"


@dataclass(frozen=True)
class Mirrored:
    directory: Path
    keyring: Path
    fingerprint: str
    suites: tuple[Suite, ...]
    #: files and bytes that were downloaded now, and files that were there already
    downloaded: int
    bytes: int
    present: int


@dataclass(frozen=True)
class AptContent(_Content):
    """One suite of apt: its entries by component and architecture, and the files behind them."""

    lists: dict[tuple[str, str], list[MirroredPackage]]

    def index(self) -> dict[str, bytes]:
        """Place → content of the lists and, at last, of the Release file."""
        lists = {key: writing.package_list(entries) for key, entries in self.lists.items()}
        return writing.suite_files(self.suites[0].os, lists, self.date)

    def places(self) -> dict[str, str | None]:
        """Places of its index, for ``Folder.require``."""
        digests = {place: hashlib.sha256(data).hexdigest() for place, data in self.index().items()}
        return {**digests, **{f"{self.folder}/{name}": None for name in ("InRelease", "Release.gpg")}}

    def publish(self, folder: Folder, fingerprint: str, keyring: Path) -> None:
        """Write and sign the suite, whose files are all there, unless good signatures of the same text are there."""
        index = self.index()
        release, text = list(index.items())[-1]
        for place, data in index.items():
            folder.write(place, data)
        clear, detached = release.replace("Release", "InRelease"), f"{release}.gpg"
        try:
            name, pinned = str(folder.path / clear), [fingerprint]
            signed = verify(folder.read(clear) or b"", keyring=keyring, fingerprints=pinned, name=name)
            if signed.text == text and writing.has_signature(text, folder.read(detached), fingerprint, keyring):
                return
        except RepositoryUntrusted:
            pass
        folder.write(detached, writing.sign(fingerprint, text, "Release", clear=False))
        folder.write(clear, writing.sign(fingerprint, text, "Release", clear=True))


def mirror(
    lock: Lock,
    folder: Folder,
    fingerprint: str,
    *,
    indices: Fetcher,
    files: Fetcher,
    dependencies: bool = True,
    keyrings: Sequence[Path] = (),
    jobs: int = 4,
    step: Callable[[str], AbstractContextManager[object]],
    progress: Callable[[str], None],
) -> Mirrored:
    """Write a mirror of ``lock`` to ``folder``, signed with the user's secret key ``fingerprint``.

    indices: fetches the original indices.  files: fetches packages into ``folder.work``, from where they are moved.
    dependencies: also carry the system packages that the locked packages need.
    keyrings: for original indices whose keyring is not on this machine.
    A second run downloads missing or damaged files and signs changed indices.  Raises LockStale when a repository no
    longer lists a locked file, RepositoryUntrusted, RepositoryUnusable, and GdsError for the key, or for what is in the
    way; then nothing was changed.
    """
    groups = grouped((target, host_sources.folder(target)) for target in lock.targets.values())
    contents: list[AptContent | RpmContent] = []
    for place, targets in sorted(groups.items()):
        _require_one_file_each(targets)
        name, arches = targets[0].os, sorted({target.arch for target in targets})
        with step(f"Reading the repositories of {name} {' and '.join(arches)}"):
            read = rpm_content if stack_platform_for(name).kind == "rpm" else apt_content
            contents.append(read(place, targets, indices, keyrings, dependencies=dependencies))
    files_by_place = _by_place(file for content in contents for file in content.files)
    keys = {KEYRING: writing.export(fingerprint), KEYRING_ARMOURED: writing.export(fingerprint, armour=True)}
    folder.require(
        {
            **{place: hashlib.sha256(key).hexdigest() for place, key in keys.items()},
            **{place: sha256 for content in contents for place, sha256 in content.places().items()},
            **{place: file.sha256 for place, file in files_by_place.items()},
        }
    )
    downloaded, size = _download(list(files_by_place.values()), folder, files, jobs, progress)
    for place, key in keys.items():
        folder.write(place, key)
    keyring = folder.path / KEYRING
    for content in contents:
        content.publish(folder, fingerprint, keyring)
    suites = tuple(suite for content in contents for suite in content.suites)
    return Mirrored(folder.path, keyring, fingerprint, suites, downloaded, size, len(files_by_place) - downloaded)


def _by_place(files: Iterable[File]) -> dict[str, File]:
    """Raises RepositoryUnusable where two different files would have one place."""
    placed: dict[str, File] = {}
    for file in files:
        other = placed.setdefault(file.place, file)
        if other.sha256 != file.sha256:
            problem = f"{file.uri} and {other.uri} have one place in the mirror, {file.place}, and aren't the same file"
            raise RepositoryUnusable(problem, hint="Leave one of their suites or repositories out of the profile")
    return placed


def _require_one_file_each(targets: Iterable[Target]) -> None:
    """Raise RepositoryUnusable where two profiles of one system lock different files of one version."""
    locked: dict[tuple[str, Key], Package] = {}
    for arch, package in ((target.arch, package) for target in targets for package in target.packages):
        other = locked.setdefault((arch, package.key), package)
        if other.sha256 != package.sha256:
            words = f"{package.package} {package.version} of {other.repository} and of {package.repository}"
            problem = f"{words} aren't the same file, and hosts of one mirror couldn't ask for one of them"
            raise RepositoryUnusable(problem, hint="Lock both profiles from one of these repositories")


def apt_content(
    folder: str, targets: Sequence[Target], fetcher: Fetcher, keyrings: Sequence[Path], *, dependencies: bool
) -> AptContent:
    """What the suite in ``folder`` has to have for its profiles ``targets``; raises as ``mirror`` does."""
    name, suites, dates = targets[0].os, list[Suite](), list[datetime]()
    platform = stack_platform_for(name)
    written: dict[tuple[str, str], list[MirroredPackage]] = {}
    files: list[File] = []
    taken: dict[str, str] = {}
    # A file keeps its place when a second architecture comes.
    for arch in sorted({target.arch for target in targets}, reverse=True):
        architecture, own = platform.architecture(arch), [target for target in targets if target.arch == arch]
        releases, sources = apt.contents(fetcher, _repositories(own, keyrings), architecture)
        lists = [each for _, each in sources]
        stack = locked_packages((package for target in own for package in target.packages), lists)
        system = needed_packages(stack, Universe(lists), platform, name) if dependencies else []
        for component, candidates in ((STACK, stack), (SYSTEM, system)):
            entries = written[component, architecture] = list[MirroredPackage]()
            for candidate in candidates:
                origin, listing, c = _source(candidate, sources)
                place = writing.place(c.repository, c.filename)
                if taken.setdefault(place, c.sha256) != c.sha256:
                    # Of all architectures, in a repository of that name that each architecture has elsewhere.
                    place = writing.place(f"{c.repository}-{architecture}", c.filename)
                entries.append(MirroredPackage(c.package, c.version, listing.stanza(c), place))
                files.append(File(address(origin.uri, c.filename), c.sha256, c.size, place))
        suites.append(Suite(name, architecture, len(stack), len(system)))
        dates += [release.date for release in releases]
    return AptContent(tuple(suites), folder, files, max(dates), written)


def _download(
    files: Sequence[File], folder: Folder, fetcher: Fetcher, jobs: int, progress: Callable[[str], None]
) -> tuple[int, int]:
    """Have every file; returns the number and the bytes of those that were downloaded."""
    stopped = threading.Event()
    done: list[int] = []

    def have(file: File) -> None:
        present = None if stopped.is_set() else folder.has(file.place, file.sha256, file.size)
        if stopped.is_set() or present:
            if file.check is not None and present:
                file.check(folder.path / file.place)
            return
        if present is not None:
            progress(f"  {file.place}: damaged; fetching it again")
        try:
            download = fetcher.file(file.uri, sha256=file.sha256, size=file.size)
        except MissingFile as error:
            hint = "Run `gdsdeploy lock` on the fleet file, and mirror the new lock"
            raise LockStale(str(error), hint=hint) from None
        if file.check is not None:
            file.check(download)
        folder.take(download, file.place)
        done.append(file.size)
        progress(f"  {file.place.rpartition('/')[2]} ({file.size / 1e6:.1f} MB; {len(done)})")

    pool = ThreadPoolExecutor(jobs)
    try:
        waiting: list[Future[None]] = [pool.submit(have, file) for file in files]
        finished, _ = wait(waiting, return_when=FIRST_EXCEPTION)
        for future in finished:
            future.result()
    finally:
        # Also after Ctrl-C: running downloads end, and no new one starts.
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return len(done), sum(done)
