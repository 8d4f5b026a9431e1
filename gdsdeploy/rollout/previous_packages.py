"""Packages that a host had before a rollout: cached before the change, and offered again.

The cache folder has them by sha256.  apt gets a signed repository, whose new key is deleted at once; dnf gets files.
The host knows the sha256 of the archive that has them.
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
from gdsdeploy.host.apply.packages import dnf, managers
from gdsdeploy.mirror import writing
from gdsdeploy.model.lock import Package, Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.credentials import Logins
from gdsdeploy.repo.fetch import Fetcher, MissingFile, address
from gdsdeploy.run import run, which

#: As in the role gds_restore.
SUITE, COMPONENT = "restore", "stack"
_AT_ONCE = 4
#: One thread fetches at a time; the next one finds its files in the cache.
_FETCHING = threading.Lock()


@dataclass(frozen=True)
class Offer:
    """Files on the controller: packages in a tar file, and the public key of their repository; None: files only."""

    archive: Path
    keyring: Path | None


def cache() -> Path:
    """Folder for packages of locks to which hosts may be rolled back."""
    return paths.cache() / "snapshots"


def differing_packages(was: Sequence[Package], becomes: Sequence[Package]) -> list[Package]:
    """Packages of the one lock that the other does not have in the same version."""
    names = {(package.package, package.version) for package in becomes}
    return [package for package in was if (package.package, package.version) not in names]


def fetch_packages(
    target: Target, packages: Sequence[Package], progress: Callable[[str], None], logins: Logins | None = None
) -> dict[Package, Path]:
    """Package → cached file, fetched from the lock's repository with the fleet's ``logins``.

    Raises RollbackFailed that lists unavailable packages, MissingProgram, and what the fetcher raises.
    """
    uris = {index.repository: index.uri for index in target.indices}
    if packages and not _is_rpm(target):
        # Find out now that a rollback couldn't run them.
        _programs()
    missing: list[str] = []
    files: dict[Package, Path] = {}
    stop = cancel.current()

    def fetch(fetcher: Fetcher, package: Package) -> None:
        stop.check()
        try:
            uri = address(uris[package.repository], package.file)
            if fetcher.find_cached(package.sha256, package.size) is None:
                progress(f"fetching {package.package} {package.version} ({package.size / 1e6:.1f} MB)")
            files[package] = fetcher.file(uri, sha256=package.sha256, size=package.size)
        except KeyError:
            missing.append(f"{package.package} {package.version}: its lock has no repository {package.repository}")
        except (MissingFile, RepositoryUnusable, RepositoryUntrusted) as error:
            missing.append(f"{package.package} {package.version}: {str(error).splitlines()[0]}")

    with _FETCHING, Fetcher(cache(), logins=logins) as fetcher, ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(lambda package: fetch(fetcher, package), packages))
    if missing:
        raise RollbackFailed(
            "packages that a rollback would need are not available:\n" + "\n".join(f"  - {line}" for line in missing),
            hint=f"Put the files below {cache()}, each as XX/SHA256 with the first two digits of its sha256 for XX, or"
            " mirror the lock (gdsdeploy mirror) before an archive drops it",
        )
    return files


def _programs() -> tuple[str, str]:
    return which("dpkg-deb", hint="Install the package dpkg"), which("gpg", hint="Install the package gnupg")


@contextmanager
def offer_packages(target: Target, files: Mapping[Package, Path]) -> Iterator[Offer | None]:
    """``files`` for the block, as the host's package manager takes them; None without files.

    Raises MissingProgram without dpkg-deb or gpg, RollbackFailed where it can't be written.
    """
    if not files:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="gds-restore-"))
    try:
        yield _write_files(folder, files) if _is_rpm(target) else _write_repository(folder, target, files)
    except ValueError as error:
        raise RollbackFailed(f"the lock names a file outside of its repository: {error}") from None
    except OSError as error:
        raise RollbackFailed(
            f"{error.filename or folder}: cannot be written: {error.strerror}", hint="Make room for some packages there"
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_rpm(target: Target) -> bool:
    return stack_platform_for(target.os).kind == "rpm"


def _write_files(folder: Path, files: Mapping[Package, Path]) -> Offer:
    archive = folder / "packages.tar"
    with tarfile.open(archive, "w") as tar:
        for package, file in files.items():
            tar.add(file, Path(dnf.file_of(managers.Package(package.package, package.version))).name)
    return Offer(archive, None)


def _write_repository(folder: Path, target: Target, files: Mapping[Package, Path]) -> Offer:
    root, home = folder / "repository", folder / "key"
    entries = [_entry(package, file) for package, file in files.items()]
    architecture = stack_platform_for(target.os).architecture(target.arch)
    lists = {(COMPONENT, architecture): writing.package_list(entries)}
    written = writing.suite_files(SUITE, lists, datetime.now(UTC))
    release, text = list(written.items())[-1]
    keyring = folder / "restore.gpg"
    with _key(home) as fingerprint:
        written[release.replace("Release", "InRelease")] = writing.sign(
            fingerprint, text, "Release", clear=True, home=home
        )
        keyring.write_bytes(writing.export(fingerprint, home=home))
    for place, data in written.items():
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(data)
    for entry, file in zip(entries, files.values(), strict=True):
        (root / entry.filename).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, root / entry.filename)
    archive = folder / "repository.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(root, ".")
    return Offer(archive, keyring)


def _entry(package: Package, file: Path) -> writing.MirroredPackage:
    """An index entry: the package's control fields and its checksum."""
    argv: list[str | Path] = [_programs()[0], "--field", file]
    control = run(argv, doing=f"read {package.package}", timeout=60).stdout
    stanza = f"{control.rstrip()}\nSize: {package.size}\nSHA256: {package.sha256}\n"
    return writing.MirroredPackage(
        package.package, package.version, stanza, writing.place(package.repository, package.file)
    )


@contextmanager
def _key(home: Path) -> Iterator[str]:
    """The fingerprint of a new key in ``home``; its agent ends with the block."""
    home.mkdir(mode=0o700)
    gpg = _programs()[1]
    name = "gdsdeploy rollout, for one use"
    argv = [gpg, "--homedir", str(home), "--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback"]
    try:
        command = [*argv, "--passphrase", "", "--quick-generate-key", name, "ed25519", "sign", "1d"]
        run(command, doing="make a key for one use", timeout=60)
        (fingerprint,) = writing.secret_keys(home=home)
        yield fingerprint
    except ValueError:
        raise GdsError("gpg made no key", hint=f"Try it by hand: {' '.join(argv[:1])} --full-generate-key") from None
    finally:
        run(["gpgconf", "--homedir", home, "--kill", "all"], doing="end gpg's agent", ok=range(256), timeout=60)
