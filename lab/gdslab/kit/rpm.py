"""Rpm packages with real content, and signed repositories of them, by rpmbuild, rpmsign and createrepo_c.

Payloads aren't compressed: a kit is made in seconds and used once.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gdsdeploy import run

ARCHITECTURE = "x86_64"
#: What rpmbuild does with files by itself: strip, compress and inspect them, and search them for dependencies.
_DEFINES = {
    "debug_package": "%{nil}",
    "_build_id_links": "none",
    "__os_install_post": "%{nil}",
    "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
    "_binary_payload": "w0.gzdio",
    "_unpackaged_files_terminate_build": "0",
    "_binaries_in_noarch_packages_terminate_build": "0",
}
#: Signs a file beside it, armoured: ``repomd.xml`` → ``repomd.xml.asc``.
Sign = Callable[[Path], object]


@dataclass(frozen=True)
class Rpm:
    """One package.

    version: ``[EPOCH:]VERSION-RELEASE``.  Relations and the sections of ``scripts`` (``post``, ``preun``, …) are as in
    a spec file.  tree: a folder with the files, as they lie below ``/``; it stays as it is.  config: paths of
    configuration files, as the package has them.  ghosts: paths that belong to the package, which doesn't have them.
    """

    name: str
    version: str
    arch: str = ARCHITECTURE
    requires: Sequence[str] = ()
    provides: Sequence[str] = ()
    conflicts: Sequence[str] = ()
    obsoletes: Sequence[str] = ()
    recommends: Sequence[str] = ()
    supplements: Sequence[str] = ()
    tree: Path | None = None
    config: Sequence[str] = ()
    ghosts: Sequence[str] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    vendor: str = "NVIDIA"

    @property
    def nevra(self) -> str:
        """As module metadata names it."""
        version = self.version if ":" in self.version else f"0:{self.version}"
        return f"{self.name}-{version}.{self.arch}"

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}-{self.version.split(':', 1)[-1]}.{self.arch}.rpm"

    def spec(self) -> str:
        """Its spec file; ``%{tree}`` is the folder of its files, and ``%{listing}`` their list."""
        epoch, _, rest = self.version.rpartition(":")
        version, _, release = rest.rpartition("-")
        lines = [
            f"Name: {self.name}", f"Version: {version}", f"Release: {release}",
            *([f"Epoch: {epoch}"] if epoch else []),
            f"Summary: {self.name} of the lab", "License: as its files say", f"Vendor: {self.vendor}",
            "AutoReqProv: no",
            *(["BuildArch: noarch"] if self.arch == "noarch" else []),
        ]  # fmt: skip
        for tag in ("requires", "provides", "conflicts", "obsoletes", "recommends", "supplements"):
            lines += [f"{tag.title()}: {value}" for value in getattr(self, tag)]
        lines += ["%description", "A package of gdsdeploy's lab, with the content of Debian's.", "%install"]
        lines += ["mkdir -p %{buildroot}", *(["cp -a %{tree}/. %{buildroot}/"] if self.tree else [])]
        for section, text in self.scripts.items():
            lines += [f"%{section}", text.rstrip()]
        # rpmbuild refuses an empty list.
        return "\n".join(
            [*lines, "%files -f %{listing}" if self.listing().strip() else "%files", "%defattr(-,root,root)", ""]
        )

    def listing(self) -> str:
        """Its list of files and folders."""
        lines = [f'%ghost "{path}"' for path in self.ghosts]
        for path in sorted(self.tree.rglob("*")) if self.tree else ():
            name = f"/{path.relative_to(self.tree).as_posix()}" if self.tree else ""
            if path.is_dir() and not path.is_symlink():
                # Folders nearer to the root are the system's; some are links there.
                lines += [f'%dir "{name}"'] if name.count("/") > (1 if name.startswith("/etc/") else 2) else []
            else:
                lines.append(f'{"%config(noreplace) " if name in self.config else ""}"{name}"')
        return "\n".join([*lines, ""])


@dataclass(frozen=True)
class Stream:
    """A module stream and the packages that belong to it."""

    module: str
    stream: str
    rpms: Sequence[Rpm]

    def document(self) -> str:
        """Its part of modules.yaml."""
        lines = [
            "---", "document: modulemd", "version: 2", "data:", f"  name: {self.module}", f'  stream: "{self.stream}"',
            "  version: 20261101000000", '  context: "0badc0de"', f"  arch: {ARCHITECTURE}",
            f"  summary: {self.module} {self.stream}", f"  description: {self.module} {self.stream}",
            "  license: {module: [MIT]}", "  profiles: {default: {rpms: []}}",
            "  artifacts:", "    rpms:", *(f"    - {rpm.nevra}" for rpm in self.rpms), "...", "",
        ]  # fmt: skip
        return "\n".join(lines)


def build(rpms: Iterable[Rpm], folder: Path) -> list[Path]:
    """The files of ``rpms``, made in ``folder``; raises ProgramFailed with rpmbuild's words."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=3) as pool:
        return list(pool.map(lambda rpm: _build(rpm, folder), rpms))


def _build(rpm: Rpm, folder: Path) -> Path:
    work = folder.with_name(f".{folder.name}-{rpm.file}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "package.spec").write_text(rpm.spec())
    (work / "files").write_text(rpm.listing())
    defines = {
        **_DEFINES, "_topdir": work, "_tmppath": work, "_rpmdir": folder, "tree": rpm.tree or work,
        "listing": work / "files",
    }  # fmt: skip
    argv = ["rpmbuild", "-bb", "--quiet", "--nodeps", "--target", ARCHITECTURE]
    for name, value in defines.items():
        argv += ["--define", f"{name} {value}"]
    run.run([*argv, work / "package.spec"], doing=f"make the package {rpm.name}")
    shutil.rmtree(work)
    return folder / rpm.file


def sign(packages: Sequence[Path], home: Path, fingerprint: str) -> None:
    """Sign ``packages`` with the key ``fingerprint`` of gpg's folder ``home``."""
    argv = ["rpmsign"]
    for name, value in {"_gpg_name": fingerprint, "_gpg_path": home, "__gpg": run.which("gpg")}.items():
        argv += ["--define", f"{name} {value}"]
    run.run([*argv, "--addsign", *packages], doing="sign the lab's packages")


def publish(root: Path, sign_file: Sign | None, streams: Sequence[Stream] = ()) -> None:
    """Make ``root``, a folder of packages, a repository: index, module streams and, if it is signed, its signature."""
    argv = ["createrepo_c", "--quiet", "--no-database", "--general-compress-type=gz", str(root)]
    run.run(argv, doing=f"make the repository {root.name}")
    if streams:
        modules = root / "modules.yaml"
        modules.write_text("".join(stream.document() for stream in streams))
        argv = ["modifyrepo_c", "--mdtype=modules", str(modules), f"{root}/repodata"]
        run.run(argv, doing=f"add the module streams of the repository {root.name}")
        modules.unlink()
    if sign_file is not None:
        sign_file(root / "repodata" / "repomd.xml")
