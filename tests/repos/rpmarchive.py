"""Builds, signs and serves rpm repositories on loopback, with the real rpmbuild, createrepo_c and gpg; and runs dnf.

The packages are real ones, empty but for the files that they are asked to have.  One spec file makes every package
of which it has a single version, so that a repository of a hundred packages takes a few runs of rpmbuild.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.repos import dkmspackages
from tests.repos.archive import Key

ARCHITECTURE = "x86_64"

_SPEC = """\
Name: {name}
Version: 1
Release: 1
Summary: Nothing
License: None
%description
Nothing.
%install
{install}
"""


@dataclass(frozen=True)
class Rpm:
    """One package: ``version`` is ``[EPOCH:]VERSION-RELEASE``, relations are as in a spec file."""

    name: str
    version: str
    arch: str = ARCHITECTURE
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    obsoletes: tuple[str, ...] = ()
    recommends: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
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

    def section(self) -> str:
        """Its part of a spec file."""
        epoch, _, rest = self.version.rpartition(":")
        version, _, release = rest.rpartition("-")
        lines = [
            f"%package -n {self.name}", f"Version: {version}", f"Release: {release}", "Summary: Nothing",
            f"Vendor: {self.vendor}", *([f"Epoch: {epoch}"] if epoch else []),
            *(["BuildArch: noarch"] if self.arch == "noarch" else []),
        ]  # fmt: skip
        for tag in ("requires", "provides", "conflicts", "obsoletes", "recommends"):
            lines += [f"{tag.title()}: {value}" for value in getattr(self, tag)]
        return "\n".join(
            [*lines, f"%description -n {self.name}", "Nothing.", f"%files -n {self.name}", *self.files, ""]
        )


@dataclass(frozen=True)
class Stream:
    """A module stream and the packages that belong to it."""

    module: str
    stream: str
    rpms: tuple[Rpm, ...]
    default: bool = False
    version: int = 20261101000000
    context: str = "0badc0de"

    def document(self) -> str:
        """Its part of modules.yaml."""
        lines = [
            "---", "document: modulemd", "version: 2", "data:", f"  name: {self.module}", f'  stream: "{self.stream}"',
            f"  version: {self.version}", f"  context: {self.context}", f"  arch: {ARCHITECTURE}", "  summary: Nothing",
            "  description: Nothing", "  license: {module: [MIT]}",
            "  profiles: {default: {rpms: [kmod-nvidia-open-dkms]}}",
            "  artifacts:", "    rpms:", *(f"    - {rpm.nevra}" for rpm in self.rpms), "...",
        ]  # fmt: skip
        if self.default:
            lines += [
                "---", "document: modulemd-defaults", "version: 1", "data:", f"  module: {self.module}",
                f'  stream: "{self.stream}"', "  profiles: {}", "...",
            ]  # fmt: skip
        return "\n".join([*lines, ""])


def build(rpms: Iterable[Rpm], folder: Path, arch: str = ARCHITECTURE) -> Path:
    """Build ``rpms`` of ``arch`` into ``folder``, with as many spec files as the most frequent name needs."""
    rounds: list[list[Rpm]] = []
    counts: dict[str, int] = {}
    for rpm in rpms:
        number = counts.get(rpm.name, 0)
        counts[rpm.name] = number + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(rpm)
    folder.mkdir(parents=True)
    for number, members in enumerate(rounds):
        _rpmbuild(members, folder, f"round-{number}", arch)
    return folder


def _rpmbuild(rpms: Sequence[Rpm], folder: Path, name: str, arch: str) -> None:
    work = folder.parent / f".{folder.name}-{name}"
    work.mkdir()
    files = sorted({path for rpm in rpms for path in rpm.files})
    install = "\n".join(map(_install, files))
    spec = work / f"{name}.spec"
    spec.write_text(_SPEC.format(name=name, install=install) + "\n".join(rpm.section() for rpm in rpms))
    defines = {
        "_topdir": work, "_rpmdir": folder, "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        "debug_package": "%{nil}", "_build_id_links": "none", "__os_install_post": "%{nil}",
        "_binary_payload": "w1.gzdio",
    }  # fmt: skip
    argv = ["rpmbuild", "-bb", "--quiet", "--nodeps", "--target", arch]
    for key, value in defines.items():
        argv += ["--define", f"{key} {value}"]
    done = subprocess.run([*argv, spec], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(work)


def sign(paths: Iterable[Path], key: Key) -> None:
    """Sign packages by the real rpmsign."""
    # rpm looks for gpg below /usr/bin, and by its own macro where the distribution sets none.
    defines = {"_gpg_name": key.fingerprint, "_gpg_path": key.home, "__gpg": shutil.which("gpg")}
    argv = ["rpmsign", *(word for name, value in defines.items() for word in ("--define", f"{name} {value}"))]
    environment = {**os.environ, "GNUPGHOME": str(key.home)}
    done = subprocess.run([*argv, "--addsign", *paths], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def _install(path: str) -> str:
    """The command that makes a file; a dkms.conf says what its folder is called."""
    command = f"install -D /dev/null %{{buildroot}}{path}"
    if not path.endswith("/dkms.conf"):
        return command
    name, _, version = path.split("/")[-2].rpartition("-")
    lines = dkmspackages.conf(name, version).splitlines()
    return f"{command}\nprintf '%s\\n' {shlex.join(lines).replace('%', '%%')} > %{{buildroot}}{path}"


@dataclass
class RpmArchive:
    """A repository's folder, and how it is published."""

    root: Path
    #: ``gz``, ``xz``, ``bz2`` or ``zstd``
    compression: str = "gz"
    streams: Sequence[Stream] = ()
    #: written to modules.yaml as it is, after the streams
    extra_modules: str = ""

    @property
    def repomd(self) -> Path:
        """Its index."""
        return self.root / "repodata" / "repomd.xml"

    def publish(self, key: Key | None) -> None:
        """Write and sign the metadata; without a key it stays unsigned."""
        argv = ["createrepo_c", "--quiet", "--no-database", f"--general-compress-type={self.compression}"]
        subprocess.run([*argv, self.root], check=True, capture_output=True)
        if self.streams:
            modules = self.root / "modules.yaml"
            modules.write_text("".join(stream.document() for stream in self.streams) + self.extra_modules)
            argv = ["modifyrepo_c", "--mdtype=modules", str(modules), str(self.root / "repodata")]
            subprocess.run(argv, check=True, capture_output=True)
            modules.unlink()
        self.sign(key)

    def sign(self, key: Key | None) -> None:
        """Sign repomd.xml as it is."""
        signature = self.repomd.with_name("repomd.xml.asc")
        signature.unlink(missing_ok=True)
        if key is not None:
            signature.write_bytes(key.detached(self.repomd.read_bytes()))

    def rewrite(self, kind: str, change: Callable[[bytes], bytes], key: Key) -> None:
        """Change the text of a list (compressed with gzip) and sign an index that names the changed one."""
        path = self.find(kind)
        before = path.read_bytes()
        text = change(gzip.decompress(before))
        after = gzip.compress(text, mtime=0)
        path.write_bytes(after)
        index = self.repomd.read_text()
        was = gzip.decompress(before)
        for old, new in ((before, after), (was, text)):
            index = index.replace(hashlib.sha256(old).hexdigest() + "</", hashlib.sha256(new).hexdigest() + "</")
        index = index.replace(f"<size>{len(before)}<", f"<size>{len(after)}<")
        self.repomd.write_text(index.replace(f"<open-size>{len(was)}<", f"<open-size>{len(text)}<"))
        self.sign(key)

    def reindex(self, old: str, new: str, key: Key) -> None:
        """Change every ``old`` in repomd.xml and sign it."""
        text = self.repomd.read_text()
        assert old in text
        self.repomd.write_text(text.replace(old, new))
        self.sign(key)

    def find(self, kind: str) -> Path:
        """The file of one list, e.g. ``primary``."""
        (path,) = (self.root / "repodata").glob(f"*-{kind}.*")
        return path


#: Debian's rpm keeps its database in the home folder, below the root.
DNF_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C", "HOME": "/root"}


def run_dnf(root: Path, *words: str, answer: str = "yes") -> subprocess.CompletedProcess[str]:
    """Run dnf as root of a namespace, with the sources in ``root / repos``; the system is in ``root / root``.

    answer: what it is told when it asks, ``yes`` or ``no``.
    """
    argv = [
        "unshare", "--map-root-user", "--pid", "--fork", "dnf", f"--assume{answer}", f"--installroot={root / 'root'}",
        "--releasever=9", "--forcearch=x86_64", "--noplugins", f"--setopt=reposdir={root / 'repos'}",
        f"--setopt=cachedir={root / 'cache'}", f"--setopt=logdir={root}",
        "--setopt=module_platform_id=platform:el9", "--setopt=install_weak_deps=0", *words,
    ]  # fmt: skip
    return subprocess.run(argv, capture_output=True, text=True, env=DNF_ENVIRONMENT, timeout=300, check=False)
