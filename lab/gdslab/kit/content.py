"""Debian's packages, fetched by this machine's apt and unpacked: what the imitated packages contain."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
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
