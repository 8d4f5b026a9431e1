"""The packages that a host had before: fetched while they can be had, and offered to it again as a signed repository.

They are kept in the cache folder by their sha256, fetched once for all hosts of a lock.  The repository is signed with
a key that is made for it and forgotten at once: nobody can sign anything else with it.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gdsdeploy import cancel, paths
from gdsdeploy.errors import GdsError, RepositoryUntrusted, RepositoryUnusable, RollbackFailed
from gdsdeploy.mirror import aptrepo, openpgp
from gdsdeploy.model.lock import Package, Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.fetch import Fetcher, NotThere, address
from gdsdeploy.run import run, which

#: As the role that offers it has it.
SUITE, COMPONENT = "restore", "stack"
_AT_ONCE = 4
#: Whoever comes second finds what the first has fetched.
_FETCHING = threading.Lock()


@dataclass(frozen=True)
class Offer:
    """Files on the controller: a repository in a tar file, and the key that it is signed with."""

    archive: Path
    keyring: Path


def cache() -> Path:
    """Where packages of locks that hosts may have to go back to are kept."""
    return paths.cache() / "snapshots"


def differing(was: Sequence[Package], becomes: Sequence[Package]) -> list[Package]:
    """Packages of the one lock that the other does not have in the same version."""
    there = {(package.package, package.version) for package in becomes}
    return [package for package in was if (package.package, package.version) not in there]


def have(target: Target, packages: Sequence[Package], progress: Callable[[str], None]) -> dict[Package, Path]:
    """Every one of ``packages`` as a file of ours, fetched from where the lock has it; rpm's are only looked for.

    Repositories of rpm packages keep old versions, and dnf takes them from there.  Raises RollbackFailed that lists
    those that cannot be had, MissingProgram where they could not be offered, and what the fetcher raises.
    """
    uris = {index.repository: index.uri for index in target.indices}
    is_rpm = stack_platform_for(target.os).kind == "rpm"
    if packages and not is_rpm:
        # Needed on the way back, when it would be late to find out.
        _programs()
    lacking: list[str] = []
    found: dict[Package, Path] = {}
    stop = cancel.current()

    def one(fetcher: Fetcher, package: Package) -> None:
        stop.check()
        try:
            uri = address(uris[package.repository], package.file)
            if is_rpm:
                if not fetcher.has(uri):
                    lacking.append(f"{package.package} {package.version}: not in its repository any more")
                return
            if fetcher.kept(package.sha256, package.size) is None:
                progress(f"fetching {package.package} {package.version} ({package.size / 1e6:.1f} MB)")
            found[package] = fetcher.file(uri, sha256=package.sha256, size=package.size)
        except KeyError:
            lacking.append(f"{package.package} {package.version}: its lock has no repository {package.repository}")
        except (NotThere, RepositoryUnusable, RepositoryUntrusted) as error:
            lacking.append(f"{package.package} {package.version}: {str(error).splitlines()[0]}")

    with _FETCHING, Fetcher(cache()) as fetcher, ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda package: one(fetcher, package), packages))
    if lacking:
        raise RollbackFailed(
            "packages that it would need to be what it is cannot be had:\n" + "\n".join(f"  - {x}" for x in lacking),
            hint=f"Put the files below {cache()}, each as XX/SHA256 with the first two digits of its sha256 for XX, or"
            " mirror the lock (gdsdeploy mirror) before an archive drops it",
        )
    return found


def _programs() -> tuple[str, str]:
    """Paths of dpkg-deb and gpg."""
    return which("dpkg-deb", hint="Install the package dpkg"), which("gpg", hint="Install the package gnupg")


@contextmanager
def offered(target: Target, files: Mapping[Package, Path]) -> Iterator[Offer | None]:
    """A signed repository of ``files`` for as long as the block lasts; None where there is nothing to offer.

    Raises MissingProgram without dpkg-deb or gpg, RollbackFailed where it cannot be written.
    """
    if not files:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="gds-restore-"))
    try:
        yield _written(folder, target, files)
    except OSError as error:
        raise RollbackFailed(
            f"{error.filename or folder}: cannot be written: {error.strerror}", hint="Make room for some packages there"
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _written(folder: Path, target: Target, files: Mapping[Package, Path]) -> Offer:
    root, home = folder / "repository", folder / "key"
    entries = [_entry(package, file) for package, file in files.items()]
    for package, file in files.items():
        place = root / aptrepo.place(package.repository, package.file)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    architecture = stack_platform_for(target.os).architecture(target.arch)
    lists = {COMPONENT: aptrepo.packages(entries)}
    release = aptrepo.write_suite(root, SUITE, architecture, lists, datetime.now(UTC))
    keyring = folder / "restore.gpg"
    with _key(home) as fingerprint:
        openpgp.sign(fingerprint, release, release.with_name("InRelease"), clear=True, home=home)
        openpgp.export(fingerprint, keyring, home=home)
    archive = folder / "repository.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, ".")
    return Offer(archive, keyring)


def _entry(package: Package, file: Path) -> aptrepo.Entry:
    """With what the package says of itself, which is what any index has of it beside its checksum."""
    argv: list[str | Path] = [_programs()[0], "--field", file]
    control = run(argv, doing=f"read {package.package}", timeout=60).stdout
    stanza = f"{control.rstrip()}\nSize: {package.size}\nSHA256: {package.sha256}\n"
    return aptrepo.Entry(package.package, package.version, stanza, aptrepo.place(package.repository, package.file))


@contextmanager
def _key(home: Path) -> Iterator[str]:
    """The fingerprint of a new key in ``home``; its agent ends with the block."""
    home.mkdir(mode=0o700)
    gpg = _programs()[1]
    name = "gdsdeploy rollout, for one use"
    argv = [gpg, "--homedir", str(home), "--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback"]
    try:
        run(
            [*argv, "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "1d"],
            doing="make a key for one use",
            timeout=60,
        )
        (fingerprint,) = openpgp.secret_keys(home=home)
        yield fingerprint
    except ValueError:
        raise GdsError("gpg made no key", hint=f"Try it by hand: {' '.join(argv[:1])} --full-generate-key") from None
    finally:
        run(["gpgconf", "--homedir", home, "--kill", "all"], doing="end gpg's agent", ok=range(256), timeout=60)
