"""A local signed repository with exactly a lock's files, and the system packages that they need."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gdsdeploy.errors import GdsError, LockStale, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.mirror import aptrepo, choice, openpgp, rpm
from gdsdeploy.mirror.aptrepo import MirroredPackage
from gdsdeploy.mirror.choice import File, Suite
from gdsdeploy.mirror.host_vars import STACK, SYSTEM
from gdsdeploy.model.lock import Index, Lock, Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo import apt
from gdsdeploy.repo.fetch import Fetcher, MissingFile, address
from gdsdeploy.repo.packages import Candidate, PackageList, Universe
from gdsdeploy.repo.repository import verify

#: The public key, beside it armoured as ``.asc``, for the fleet file's ``mirror.keyring``.
KEYRING = "gdsdeploy-mirror.gpg"
#: Unfinished downloads, on the file system of the mirror.
_WORK = ".part"


@dataclass(frozen=True)
class Mirrored:
    """A finished mirror."""

    directory: Path
    keyring: Path
    fingerprint: str
    suites: tuple[Suite, ...]
    #: files and bytes that were downloaded now, and files that were there already
    downloaded: int
    bytes: int
    present: int


@dataclass(frozen=True)
class _Content:
    """One suite before it is written: component → entries, and the files behind them."""

    suite: Suite
    lists: dict[str, list[MirroredPackage]]
    files: list[File]
    date: datetime

    def publish(self, directory: Path, fingerprint: str, keyring: Path) -> None:
        """Write and sign the suite, whose files are all there."""
        lists = {component: aptrepo.packages(entries) for component, entries in self.lists.items()}
        release = aptrepo.write_suite(directory, self.suite.os, self.suite.architecture, lists, self.date)
        _sign(release, fingerprint, keyring)


def mirror(
    lock: Lock,
    directory: Path,
    fingerprint: str,
    *,
    indices: Fetcher,
    files: Fetcher,
    dependencies: bool = True,
    keyrings: Sequence[Path] = (),
    jobs: int = 4,
    step: Callable[[str], AbstractContextManager[None]],
    progress: Callable[[str], None],
) -> Mirrored:
    """Write a mirror of ``lock`` to ``directory``, signed with the user's secret key ``fingerprint``.

    indices: fetches the original indices.  files: fetches packages into :func:`work`, from where they are moved.
    dependencies: also carry the system packages that the locked packages need.
    keyrings: for original indices whose keyring is not on this machine.
    A second run downloads missing or damaged files and signs changed indices.  Raises LockStale when a repository no
    longer lists a locked file, RepositoryUntrusted, RepositoryUnusable, and GdsError for the key.
    """
    groups: dict[tuple[str, str], list[Target]] = {}
    for target in lock.targets.values():
        groups.setdefault((target.os, target.arch), []).append(target)
    contents: list[_Content | rpm.Content] = []
    for (name, arch), targets in sorted(groups.items()):
        with step(f"Reading the repositories of {name} {arch}"):
            of_rpm = stack_platform_for(name).kind == "rpm"
            read = rpm.content if of_rpm else _content
            contents.append(read(name, arch, targets, indices, keyrings, dependencies=dependencies))
    by_place = {file.place: file for content in contents for file in content.files}
    downloaded, size = _download(list(by_place.values()), directory, files, jobs, progress)
    keyring = directory / KEYRING
    openpgp.export(fingerprint, keyring)
    openpgp.export(fingerprint, keyring.with_suffix(".asc"), armour=True)
    for content in contents:
        content.publish(directory, fingerprint, keyring)
    suites = tuple(content.suite for content in contents)
    return Mirrored(directory, keyring, fingerprint, suites, downloaded, size, len(by_place) - downloaded)


def work(directory: Path) -> Path:
    """Where a fetcher for this mirror keeps unfinished files; raises GdsError when it cannot be made."""
    try:
        (directory / _WORK).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        hint = "Name a folder that you may write to"
        raise GdsError(f"{directory}: cannot be created: {error.strerror}", hint=hint) from None
    return directory / _WORK


def _content(
    name: str, arch: str, targets: Sequence[Target], fetcher: Fetcher, keyrings: Sequence[Path], *, dependencies: bool
) -> _Content:
    platform = stack_platform_for(name)
    architecture = platform.architecture(arch)
    indices = {(index.uri, index.suite): index for target in targets for index in target.indices}
    lists, date = _read(indices.values(), architecture, fetcher, keyrings)
    locked = {(p.repository, p.file): p for target in targets for p in target.packages}
    stack = choice.locked(locked.values(), lists)
    system = choice.dependencies(stack, Universe(lists), platform, name) if dependencies else []
    uris = {index.repository: index.uri for index in indices.values()}
    stanzas = {(c.repository, c.filename): text for each in lists for c, text in _stanzas(each, [*stack, *system])}
    written: dict[str, list[MirroredPackage]] = {STACK: [], SYSTEM: []}
    files = []
    for component, candidates in ((STACK, stack), (SYSTEM, system)):
        for c in candidates:
            where = aptrepo.place(c.repository, c.filename)
            written[component].append(MirroredPackage(c.package, c.version, stanzas[c.repository, c.filename], where))
            files.append(File(address(uris[c.repository], c.filename), c.sha256, c.size, where))
    return _Content(Suite(name, architecture, len(stack), len(system)), written, files, date)


def _read(
    indices: Iterable[Index], architecture: str, fetcher: Fetcher, keyrings: Sequence[Path]
) -> tuple[list[PackageList], datetime]:
    """The package lists of the lock's indices as they are now, and the newest date among them."""
    lists: list[PackageList] = []
    dates = []
    for index in indices:
        release = apt.release(fetcher, choice.repository(index, keyrings), index.suite, now=datetime.now(UTC))
        dates.append(release.date)
        components = index.components or ("",)
        lists += [apt.package_list(fetcher, release, component, architecture) for component in components]
    return lists, max(dates)


def _stanzas(each: PackageList, candidates: Sequence[Candidate]) -> Iterable[tuple[Candidate, str]]:
    for c in candidates:
        if (c.repository, c.suite, c.component) == (each.where.repository, each.where.suite, each.where.component):
            yield c, each.stanza(c)


def _download(
    files: Sequence[File], directory: Path, fetcher: Fetcher, jobs: int, progress: Callable[[str], None]
) -> tuple[int, int]:
    """Have every file; returns the number and the bytes of those that were downloaded."""
    stopped = threading.Event()
    done: list[int] = []

    def have(file: File) -> None:
        target = directory / file.place
        if stopped.is_set() or _is(target, file):
            if file.check is not None and not stopped.is_set():
                file.check(target)
            return
        if target.exists():
            progress(f"  {file.place}: damaged; fetching it again")
        try:
            download = fetcher.file(file.uri, sha256=file.sha256, size=file.size)
        except MissingFile as error:
            hint = "Run `gdsdeploy lock` on the fleet file, and mirror the new lock"
            raise LockStale(str(error), hint=hint) from None
        if file.check is not None:
            file.check(download)
        target.parent.mkdir(parents=True, exist_ok=True)
        download.chmod(0o644)
        download.replace(target)
        done.append(file.size)
        progress(f"  {target.name} ({file.size / 1e6:.1f} MB; {len(done)})")

    pool = ThreadPoolExecutor(jobs)
    try:
        waiting: list[Future[None]] = [pool.submit(have, file) for file in files]
        finished, _ = wait(waiting, return_when=FIRST_EXCEPTION)
        for future in finished:
            future.result()
    except OSError as error:
        problem = f"{error.filename or directory}: cannot be written: {error.strerror}"
        raise RepositoryUnusable(problem, hint="Free some space there") from error
    finally:
        # Also after Ctrl-C: running downloads end, and no new one starts.
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return len(done), sum(done)


def _is(path: Path, file: File) -> bool:
    """Whether ``path`` has this file's content."""
    try:
        if path.stat().st_size != file.size:
            return False
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def _sign(release: Path, fingerprint: str, keyring: Path) -> None:
    """Sign a Release file in both ways, unless what is there is a good signature of the same text."""
    clear, detached = release.with_name("InRelease"), release.with_name("Release.gpg")
    text = release.read_bytes()
    try:
        signed = verify(clear.read_bytes(), keyring=keyring, fingerprints=[fingerprint], name=str(clear))
        if signed.text == text and openpgp.has_signature(text, detached, fingerprint, keyring):
            return
    except (OSError, RepositoryUntrusted):
        pass
    openpgp.sign(fingerprint, release, detached, clear=False)
    openpgp.sign(fingerprint, release, clear, clear=True)
