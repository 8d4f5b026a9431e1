"""Debian's packages, fetched by this machine's apt and unpacked: what imitated packages contain, and their folders."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gdsdeploy import console, run
from gdsdeploy.errors import ProgramFailed
from gdsdeploy.files import folders
from gdslab import guest
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable

COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")


@dataclass(frozen=True)
class Original:
    """A package of Debian's archive; ``version`` is the beginning of its version."""

    package: str
    suite: str
    version: str


@dataclass(frozen=True)
class Unpacked:
    """A package's folders: ``files`` has what it installs, ``control`` its control file and maintainer scripts."""

    files: Path
    control: Path


class Content:
    """Debian's packages as this machine reaches them.

    cache: folder of the downloaded packages.  work: folder for apt's own files and for unpacked packages.
    """

    def __init__(self, cache: Path, archive: Archive, work: Path) -> None:
        self._cache, self._archive, self._work = cache, archive, work
        self._updated = False

    def fetch(self, originals: Sequence[Original]) -> dict[Original, Path]:
        """Each package's file, downloaded when it isn't cached; apt verifies it.

        Raises LabUnavailable naming the packages that the archive doesn't have.
        """
        return {original: self._file(original) for original in originals}

    def unpack(self, original: Original) -> Unpacked:
        """The package in folders below ``work``, unpacked once; they belong to the caller."""
        place = self._work / "unpacked" / f"{original.package}_{original.version}"
        unpacked = Unpacked(place / "files", place / "control")
        if not place.is_dir():
            deb = self._file(original)
            place.mkdir(parents=True)
            run.run(["dpkg-deb", "-x", deb, unpacked.files], doing=f"unpack {deb.name}")
            run.run(["dpkg-deb", "-e", deb, unpacked.control], doing=f"unpack {deb.name}")
        return unpacked

    def closure(self, packages: Sequence[str], suite: str) -> list[Path]:
        """The files of ``packages`` of ``suite`` and of all that they need, down to libc6.

        packages: names, or apt's patterns such as ``?essential``.
        """
        digest = hashlib.sha256("\n".join([suite, *packages]).encode()).hexdigest()

        def make(work: Path) -> None:
            words = ["apt-get", "--quiet", "--quiet", "--yes", "--download-only", "--no-install-recommends", "install"]
            with console.step(f"Downloading Debian's {suite} packages for the lab's repositories"):
                cache = ["--option", f"Dir::Cache::archives={_folder(work / 'partial').parent}"]
                self._apt([*words, *cache, *packages], suite, f"download packages of {suite}")
            for leftover in ("partial", "lock"):
                folders.remove_tree(work / leftover, within=work)

        folder = folders.cached_folder(self._cache, f"content-{suite}-{digest[:12]}", make, what=f"Debian's {suite}")
        return sorted(folder.glob("*.deb"))

    def _file(self, original: Original) -> Path:
        name = f"content-{original.package}_{original.version.replace(':', '%3a')}"

        def make(work: Path) -> None:
            doing = f"download {original.package}"
            try:
                self._apt(["apt-get", "--quiet", "--quiet", "download", _exact(original)], original.suite, doing, work)
            except ProgramFailed as error:
                wish = f"{original.package} {original.version}* in {original.suite}"
                raise LabUnavailable(
                    f"Debian's archive has no {wish}\n{error.message}",
                    hint="Use a newer gdsdeploy, or an archive that still has it, such as a snapshot",
                ) from error

        folder = folders.cached_folder(self._cache, name, make, what=f"Debian's {original.package}")
        return next(folder.glob("*.deb"))

    def _apt(self, argv: Sequence[str], suite: str, doing: str, cwd: Path | None = None) -> run.Completed:
        """Run an apt program on the package lists of ``suite`` alone, so that no other suite's version answers."""
        state = self._work / "apt" / suite
        if not state.is_dir():
            with console.step(f"Reading Debian's {suite}"):
                self._update(state, suite)
        return run.run(argv, doing=doing, cwd=cwd, env={"APT_CONFIG": str(state / "apt.conf")})

    def _update(self, state: Path, suite: str) -> None:
        part = Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=_folder(state.parent)))
        for folder in ("state/lists/partial", "cache/archives/partial"):
            (part / folder).mkdir(parents=True)
        (part / "status").touch()
        (part / "sources.list").write_text("".join(f"{line}\n" for line in self._sources(suite)))
        (part / "apt.conf").write_text(_configuration(self._archive, state))
        (part / "update.conf").write_text(_configuration(self._archive, part))
        doing = f"read the package lists of Debian's {suite}"
        run.run(["apt-get", "--quiet", "update"], doing=doing, env={"APT_CONFIG": str(part / "update.conf")})
        part.rename(state)

    def _sources(self, suite: str) -> list[str]:
        """One-line sources of ``suite``, with the updates of a release."""
        archive, components = self._archive, " ".join(COMPONENTS)
        addresses = [(archive.uri, suite)]
        if suite in guest.RELEASES:
            addresses = [(uri, name) for uri, names in guest.suites(guest.RELEASES[suite], archive) for name in names]
        return [f"deb [signed-by={archive.keyring}] {uri} {name} {components}" for uri, name in addresses]


def _exact(original: Original) -> str:
    return f"{original.package}={original.version}*"


def _configuration(archive: Archive, state: Path) -> str:
    """Settings of apt: folders below ``state``, the archive's proxies and certificates, no other user."""
    ca_bundle = archive.ca_bundle.as_posix() if archive.ca_bundle else None
    options = {
        **guest.apt_options(archive, ca_bundle),
        "Dir::State": f"{state}/state",
        "Dir::State::status": f"{state}/status",
        "Dir::Cache": f"{state}/cache",
        "Dir::Etc::SourceList": f"{state}/sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Sandbox::User": "root",
        "APT::Architecture": "amd64",
    }
    return "".join(f'{name} "{value}";\n' for name, value in options.items())


def _folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class Trees:
    """Folders with the files of packages, made below ``work`` of the content's files, which they share."""

    def __init__(self, work: Path, content: Content) -> None:
        self.work, self.content = work, content

    def new(self, name: str, texts: Mapping[str, str] | None = None) -> Path:
        """An empty folder for the package ``name``, with ``texts`` by path."""
        folder = self.work / name
        folder.mkdir(parents=True)
        for path, text in (texts or {}).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return folder

    def moved(
        self, name: str, source: Original, places: Mapping[str, str], texts: Mapping[str, str] | None = None
    ) -> Path:
        """A folder for the package ``name``: of Debian's package ``source``, each path of ``places`` at its value.

        A path is a file, a folder, or a pattern of files that go into the folder of its value.
        """
        folder = self.new(name, texts)
        self.add(folder, source, places)
        return folder

    def add(self, folder: Path, source: Original, places: Mapping[str, str]) -> None:
        """The same into ``folder``, which exists.  Raises FileNotFoundError for a path that ``source`` doesn't have."""
        origin = self.content.unpack(source).files
        for pattern, place in places.items():
            matches = sorted(origin.glob(pattern))
            if not matches:
                raise FileNotFoundError(f"Debian's {source.package} has no {pattern}")
            for match in matches:
                copy(match, folder / place / match.name if "*" in pattern else folder / place)


def copy(source: Path, target: Path) -> None:
    """Copy a file, link or folder; files of the same file system are shared."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=_link, dirs_exist_ok=True)
    else:
        _link(source, target)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def replace(path: Path, text: str) -> None:
    """Write ``path``, which may share its content with another."""
    path.unlink(missing_ok=True)
    path.write_text(text)
