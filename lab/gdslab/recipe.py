"""What a base system is made from: one shape for all systems, and Debian's own recipe."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gdslab import guest
from gdslab.archive import Archive
from gdslab.guest import Release

#: Path on a host → text, or the file of this machine to copy.
Content = Mapping[str, str | Path]


@dataclass(frozen=True)
class Recipe:
    """What a base system is made from.

    system: begins its name, such as ``rocky-9``.  kind: of its hosts, "vm" or "light".
    release, archive: the release of its programs, and where mmdebstrap gets them.  packages: names, or apt's patterns.
    scripts: what runs after guest/base.sh: a script of guest/, and its arguments after the root.
    sources: one-line apt sources beside the release's.  options: mmdebstrap's, beside the usual ones.
    """

    system: str
    kind: str
    release: Release
    archive: Archive
    packages: tuple[str, ...]
    files: Content
    scripts: tuple[tuple[str, ...], ...] = ()
    sources: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the base system in the cache; it depends on the recipe and on the programs of guest/."""
        programs = [path.read_text() for path in sorted(guest.data("guest").rglob("*")) if path.is_file()]
        recipe = json.dumps([asdict(self), programs, guest.DISK_BYTES], sort_keys=True, default=str)
        return f"{self.system}-{self.kind}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"

    def argv(self, root: Path, tree: Path) -> list[str]:
        """The mmdebstrap command that makes ``root``; tree: the folder with ``files``, which a hook copies into it."""
        base = ("base.sh", tree.as_posix(), self.kind, guest.USER, guest.NVME_MOUNT)
        more = [
            # With mmdebstrap's --dpkgopt, each excluded path would start a Python program for each package.
            f'--setup-hook=install -D {shlex.quote(f"{tree}/{guest.DPKG}")} "$1/{guest.DPKG}"',
            *self.options,
            *(_hook(*script) for script in (base, *self.scripts)),
        ]
        return [*from_archive(self.release, self.archive, root, "minbase", self.packages, *more), *self.sources]


@dataclass(frozen=True)
class Boot:
    """What VM hosts of systems other than Debian have.

    renamer: the module that gives their kernels the packages' releases.  preinstalled: the kit's packages, as name and
    version.
    """

    renamer: Path
    preinstalled: tuple[tuple[str, str], ...] = ()


def debian(release: Release, archive: Archive, kind: str, preinstalled: Sequence[str] = ()) -> Recipe:
    """The recipe of Debian's own hosts; preinstalled: more packages, as ``name`` or ``name=version``.

    With these, hosts have the sources of a complete stack, and apt has read them.
    """
    packages, sources = [*guest.packages(kind), *preinstalled], []
    if kind == "vm":
        packages.append("linux-image-amd64")
        if release.kernel:
            # A pattern, because the archive may have dropped that kernel.
            packages.append(f"?name(^linux-image-{re.escape(release.kernel)}$)")
            sources.append(_source(archive, archive.uri, release.suite))
    content, options = guest.base_files(release, archive, kind), []
    if preinstalled:
        listed = guest.suites(release, archive, release.suites)
        sources = [_source(archive, uri, suite, guest.COMPONENTS) for uri, suites in listed for suite in suites]
        content[guest.SOURCES] = guest.debian_sources(archive, listed, guest.COMPONENTS)
        options.append("--skip=cleanup/apt/lists")
    return Recipe(
        release.name, kind, release, archive, tuple(packages), content, sources=tuple(sources), options=tuple(options)
    )


def from_archive(
    release: Release, archive: Archive, root: Path, variant: str, packages: Sequence[str], *more: str
) -> list[str]:
    """The mmdebstrap command that puts ``packages`` of ``release`` into ``root``; ``variant``, ``more``: mmdebstrap's.

    Packages are names, or apt's patterns.
    """
    options = guest.apt_options(archive, archive.ca_bundle.as_posix() if archive.ca_bundle else None)
    patterns = [package for package in packages if package.startswith("?")]
    names = sorted({*packages}.difference(patterns))
    return [
        "mmdebstrap",
        "--mode=root",
        f"--variant={variant}",
        "--format=directory",
        *(f"--include={included}" for included in (",".join(names), *patterns)),
        *(f'--aptopt={name} "{value}"' for name, value in sorted(options.items())),
        *more,
        release.name,
        root.as_posix(),
        *(_source(archive, uri, suite) for uri, suites in guest.suites(release, archive) for suite in suites),
    ]


def _source(archive: Archive, uri: str, suite: str, components: str = "main") -> str:
    return f"deb [signed-by={archive.keyring}] {uri} {suite} {components}"


def _hook(script: str, *arguments: str) -> str:
    """The option with which mmdebstrap runs ``guest/SCRIPT ROOT ARGUMENTS`` at its end."""
    path = guest.data(f"guest/{script}").as_posix()
    return f'--customize-hook={shlex.join(["sh", path])} "$1" {shlex.join(arguments)}'
