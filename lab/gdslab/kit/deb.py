"""Packages for dpkg, and signed apt repositories of them: in suites, as archives have them, or flat, as NVIDIA has."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

from gdsdeploy import run
from gdslab.kit.content import Unpacked
from gdslab.kit.sign import Signer

ARCHITECTURE = "amd64"
_SCRIPTS = ("preinst", "postinst", "prerm", "postrm")


@dataclass(frozen=True)
class Deb:
    """A package to be built.

    fields: of the control file, such as Depends.  trees: path on hosts → folder or file of this machine.
    texts: path → content.  links: path → target.  scripts: ``postinst`` and so on → text of a shell script.
    modes: path → permissions, for programs that run as root.  conffiles: paths.
    """

    name: str
    version: str
    fields: Mapping[str, str] = field(default_factory=dict)
    trees: Mapping[str, Path] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    conffiles: Sequence[str] = ()
    architecture: str = ARCHITECTURE

    @property
    def file_name(self) -> str:
        """The package file's name, as archives have it: without the version's epoch."""
        return f"{self.name}_{self.version.split(':', 1)[-1]}_{self.architecture}.deb"


def from_debian(unpacked: Unpacked, name: str, version: str, **fields: str) -> Deb:
    """Debian's package under another name and version, with its scripts; ``fields`` replace Debian's."""
    control = dict(re.findall(r"^([A-Za-z-]+): (.*)$", (unpacked.control / "control").read_text(), re.MULTILINE))
    own = {"Package", "Version", "Architecture", "Maintainer", "Installed-Size", "Description", "Source"}
    conffiles = unpacked.control / "conffiles"
    return Deb(
        name,
        version,
        fields={key: value for key, value in {**control, **fields}.items() if key not in own or key in fields},
        trees={f"/{entry.name}": entry for entry in unpacked.files.iterdir()},
        scripts={
            script: (unpacked.control / script).read_text()
            for script in _SCRIPTS
            if (unpacked.control / script).is_file()
        },
        conffiles=conffiles.read_text().split() if conffiles.is_file() else (),
        architecture=control["Architecture"],
    )


def build(debs: Iterable[Deb], folder: Path, work: Path) -> list[Path]:
    """Build the packages into ``folder``; ``work``: folder for their trees, which are removed.  Returns the files."""
    folder.mkdir(parents=True, exist_ok=True)

    def pack(deb: Deb) -> Path:
        file = folder / deb.file_name
        argv = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "--build", str(work / deb.file_name), str(file)]
        run.run(argv, doing=f"build the package {deb.name}")
        return file

    chosen = list(debs)
    # Trees share files by links, and tar stops at a file whose number of links changes while it reads.
    for deb in chosen:
        _lay_out(deb, work / deb.file_name)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        files = list(pool.map(pack, chosen))
    shutil.rmtree(work)
    return files


def _lay_out(deb: Deb, root: Path) -> None:
    (root / "DEBIAN").mkdir(parents=True)
    for place, source in deb.trees.items():
        target = _parented(root, place)
        # Links instead of copies: a driver's sources and firmware have 150 MB.
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, copy_function=os.link, dirs_exist_ok=True)
        else:
            os.link(source, target, follow_symlinks=False)
    for place, text in deb.texts.items():
        target = _parented(root, place)
        # A new file: the one that is there may be a link to Debian's.
        target.unlink(missing_ok=True)
        target.write_text(text)
        target.chmod(0o644)
    for place, link in deb.links.items():
        _parented(root, place).symlink_to(link)
    for place, mode in deb.modes.items():
        (root / place.lstrip("/")).chmod(mode)
    for name, text in deb.scripts.items():
        (root / "DEBIAN" / name).write_text(text)
        (root / "DEBIAN" / name).chmod(0o755)
    if deb.conffiles:
        (root / "DEBIAN/conffiles").write_text("".join(f"{path}\n" for path in deb.conffiles))
    (root / "DEBIAN/control").write_text(_control(deb))
    for entry in [root, *(path for path in root.rglob("*/") if not path.is_symlink())]:
        entry.chmod(0o755)


def _parented(root: Path, place: str) -> Path:
    """The path ``place`` of hosts below ``root``, in a folder that exists."""
    target = root / place.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _control(deb: Deb) -> str:
    fields = {
        "Package": deb.name,
        "Version": deb.version,
        "Architecture": deb.architecture,
        "Maintainer": "gdsdeploy lab <lab@localhost>",
        **deb.fields,
        "Description": "imitated by gdsdeploy's lab",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


@dataclass(frozen=True)
class Repository:
    """A repository's folder: how its Release file calls its maker (empty: not at all), and the key that signs it.

    required: packages that the archive, unlike their own control files, gives the priority ``required``.
    """

    root: Path
    origin: str
    signer: Signer
    required: frozenset[str] = frozenset()

    def publish_suite(self, suite: str, codename: str, components: Mapping[str, Iterable[Path]]) -> None:
        """Publish package files (component → files below ``root``) as ``suite``."""
        folder = self.root / "dists" / suite
        for component, debs in components.items():
            _lists(folder / component / f"binary-{ARCHITECTURE}", self._stanzas(debs))
        fields = {"Suite": suite, "Codename": codename, "Components": " ".join(components)}
        release = self._release(folder, fields)
        self.signer.clearsign(release, folder / "InRelease")
        self.signer.detached(release, folder / "Release.gpg")

    def publish_flat(self, debs: Iterable[Path]) -> Path:
        """Publish ``debs``, files in ``root``, without suites and components; returns its Release file.

        NVIDIA's network repository has no InRelease.
        """
        _lists(self.root, self._stanzas(debs, prefix="./"))
        release = self._release(self.root, {})
        self.signer.detached(release, self.root / "Release.gpg")
        return release

    def _release(self, folder: Path, fields: Mapping[str, str]) -> Path:
        listed = []
        for path in sorted(folder.rglob("Packages*")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            listed.append(f" {digest} {path.stat().st_size} {path.relative_to(folder)}")
        head = {
            "Origin": self.origin,
            "Label": self.origin,
            **fields,
            # A host's clock may be a little behind.
            "Date": format_datetime(datetime.now(UTC) - timedelta(minutes=5), usegmt=True),
            "Architectures": ARCHITECTURE,
        }
        lines = [*(f"{name}: {value}" for name, value in head.items() if value), "SHA256:", *listed]
        release = folder / "Release"
        release.write_text("".join(f"{line}\n" for line in lines))
        return release

    def _stanzas(self, debs: Iterable[Path], prefix: str = "") -> list[str]:
        def stanza(deb: Path) -> str:
            control = run.run(["dpkg-deb", "--field", str(deb)], doing=f"read the package {deb.name}").stdout
            if deb.name.split("_")[0] in self.required:
                control = re.sub(r"^Priority: .*$", "Priority: required", control, flags=re.MULTILINE)
            with deb.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            name = prefix + deb.relative_to(self.root).as_posix()
            return f"{control}Filename: {name}\nSize: {deb.stat().st_size}\nSHA256: {digest}\n"

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            return list(pool.map(stanza, sorted(debs)))


def _lists(folder: Path, stanzas: Iterable[str]) -> None:
    text = "\n".join(stanzas).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Packages").write_bytes(text)
    (folder / "Packages.gz").write_bytes(gzip.compress(text, 1, mtime=0))


def place(debs: Iterable[Path], folder: Path) -> list[Path]:
    """Put package files into ``folder``, under the names that archives give them; returns the new files."""
    folder.mkdir(parents=True, exist_ok=True)
    placed = []
    for deb in debs:
        # apt writes a colon in its cache as %3a; archives leave the epoch out.
        name, version, architecture = deb.name.split("_")
        target = folder / f"{name}_{version.split('%3a')[-1]}_{architecture}"
        try:
            os.link(deb, target)
        except OSError:
            shutil.copyfile(deb, target)
        placed.append(target)
    return placed
