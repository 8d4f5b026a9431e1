"""What dnf itself makes of the same repositories: the same packages are visible, and a lock installs as it is."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gdsdeploy.lock import lockfile
from gdsdeploy.lock.resolve import resolve
from gdsdeploy.lock.sources import SourceTree
from gdsdeploy.model.fleet import Profile
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Universe
from gdsdeploy.repo.rpm import Repository, nevra, read
from tests.repos import rpmstack
from tests.repos.archive import Key
from tests.repos.conftest import Rhel
from tests.repos.rpmarchive import Rpm, RpmArchive, Stream, build
from tests.repos.test_rpm_lock import locked

PLATFORM = stack_platform_for("rhel-9")


@dataclass
class Dnf:
    """A dnf with a system of its own, and these repositories (name → address) alone."""

    root: Path
    repositories: Mapping[str, str]
    options: list[str] = field(default_factory=list)

    def run(self, *arguments: str) -> str:
        """Standard output; nothing is ever installed."""
        argv = [
            "dnf", "--assumeno", f"--installroot={self.root / 'root'}", "--releasever=9", "--forcearch=x86_64",
            "--noplugins", "--setopt=reposdir=/nonexistent", f"--setopt=cachedir={self.root / 'cache'}",
            f"--setopt=logdir={self.root}", "--setopt=module_platform_id=platform:el9",
            "--setopt=install_weak_deps=0", "--setopt=skip_if_unavailable=0",
            *(f"--repofrompath={name},{uri}" for name, uri in self.repositories.items()), *self.options, *arguments,
        ]  # fmt: skip
        done = subprocess.run(argv, capture_output=True, text=True, env={"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C"})
        # Status 1 is how --assumeno ends.
        assert done.returncode == 0 or "Operation aborted." in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout

    def enable(self, stream: str) -> None:
        """Enable a module stream in this system, as dnf itself writes it down."""
        folder = self.root / "root" / "etc" / "dnf" / "modules.d"
        folder.mkdir(parents=True, exist_ok=True)
        name, _, number = stream.partition(":")
        (folder / f"{name}.module").write_text(f"[{name}]\nname={name}\nstream={number}\nprofiles=\nstate=enabled\n")

    def visible(self) -> set[str]:
        """Every package that it sees, as module metadata names them."""
        text = self.run("-q", "repoquery", "--qf", "%{name}-%{epoch}:%{version}-%{release}.%{arch}", "--showduplicates")
        return set(text.split())

    def would_install(self, *specs: str) -> set[str]:
        """The packages that ``dnf install`` would install, as NAME VERSION."""
        text = self.run("install", *specs)
        table = text.partition("Skipping packages")[0]
        rows = re.findall(r"^ (\S+)\s+(?:x86_64|noarch)\s+(\S+)\s+\S+\s+[0-9.]+ k$", table, re.MULTILINE)
        return {" ".join(row) for row in rows}


@pytest.fixture
def dnf(rhel: Rhel, tmp_path: Path) -> Dnf:
    return Dnf(tmp_path, {name: f"{rhel.server.uri}/{name}" for name in ("baseos", "cuda")}, ["--nogpgcheck"])


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    with Fetcher(apt={}) as opened:
        yield opened


def offered(fetcher: Fetcher, uri: str, names: Iterable[str], key: Key) -> Universe:
    """What the program reads from the same repositories."""
    repositories = [Repository(name, f"{uri}/{name}", key.keyring, (key.fingerprint,), "/k") for name in names]
    return read(fetcher, repositories, "x86_64")[0]


def nevras(universe: Universe) -> set[str]:
    return {nevra(candidate) for name in universe.names() for candidate in universe.named(name)}


@pytest.mark.parametrize("stream", ["580-open", "570-open", "latest-dkms", ""])
def test_dnf_sees_the_same_packages_with_a_stream_enabled(stream: str, rhel: Rhel, dnf: Dnf, fetcher: Fetcher) -> None:
    universe = offered(fetcher, rhel.server.uri, dnf.repositories, rhel.key)
    if stream:
        dnf.enable(f"nvidia-driver:{stream}")
    ours = nevras(universe.with_streams({"nvidia-driver": stream} if stream else {}))
    assert ours == dnf.visible()
    stray = {rpm.nevra for rpm in rpmstack.STRAY}
    assert stray <= nevras(universe)
    assert not ours & stray


#: Modules as distributions have them: a default stream, packages of the same name outside of it, and more.
SHADOWS = {
    "first": Rpm("tool", "1.0-1"),
    "second": Rpm("tool", "2.0-1"),
    "plain": Rpm("tool", "3.0-1"),
    "provider": Rpm("tool-compat", "9-1", provides=("tool = 9",)),
    "free": Rpm("other", "1-1"),
    "old": Rpm("aid", "1-1"),
    "aid": Rpm("aid", "5-1"),
    "lib": Rpm("lib", "1.10-1", "noarch"),
    "lib-plain": Rpm("lib", "7-1", "noarch"),
    "earlier": Rpm("first-aid", "1-1"),
    "later": Rpm("first-aid", "2-1"),
    "dropped": Rpm("first-help", "1-1"),
}
_S = SHADOWS
SHADOW_STREAMS = (
    Stream("tool", "1", (_S["first"],), default=True),
    Stream("tool", "2", (_S["second"],)),
    Stream("aid", "1", (_S["old"],)),
    Stream("lib", "1.10", (_S["lib"],)),
    # One stream in two versions, as repositories that keep their history have it.
    Stream("aids", "a", (_S["earlier"], _S["dropped"]), version=1),
    Stream("aids", "a", (_S["later"],), version=2),
)


@pytest.mark.parametrize(
    ("enabled", "names"),
    [
        ({}, {"first", "free", "aid", "lib-plain"}),
        ({"tool": "2"}, {"second", "free", "aid", "lib-plain"}),
        ({"aid": "1", "lib": "1.10"}, {"first", "free", "old", "lib"}),
        ({"aids": "a"}, {"first", "free", "aid", "lib-plain", "earlier", "later", "dropped"}),
    ],
)
def test_dnf_hides_the_same_packages_behind_a_module(
    enabled: dict[str, str], names: set[str], tmp_path: Path, key: Key, fetcher: Fetcher
) -> None:
    archive = RpmArchive(build(SHADOWS.values(), tmp_path / "www" / "shadows"), streams=SHADOW_STREAMS)
    archive.publish(key)
    uri = (tmp_path / "www").as_uri()
    real = Dnf(tmp_path, {"shadows": f"{uri}/shadows"}, ["--nogpgcheck"])
    for module, stream in enabled.items():
        real.enable(f"{module}:{stream}")
    ours = nevras(offered(fetcher, uri, ["shadows"], key).with_streams(enabled))
    assert ours == real.visible() == {SHADOWS[name].nevra for name in names}


def test_dnf_installs_a_lock_as_it_is(rhel: Rhel, dnf: Dnf, fetcher: Fetcher) -> None:
    """Nothing of the stack comes beside what is locked, and nothing in another version."""
    target = locked(rhel)
    (stream,) = target.modules
    dnf.enable(stream)
    expected = {f"{p.package} {p.version}" for p in target.packages}
    transaction = dnf.would_install(*(f"{p.package}-{p.version}.{p.architecture}" for p in target.packages))
    assert expected <= transaction
    universe = offered(fetcher, rhel.server.uri, dnf.repositories, rhel.key)
    by_name = {str(c): c for name in universe.names() for c in universe.named(name)}
    assert not [row for row in transaction - expected if PLATFORM.in_stack(by_name[row])]


def test_dnf_left_to_itself_goes_where_the_lock_does_not(rhel: Rhel, dnf: Dnf) -> None:
    """The traps are real ones: the same names without versions end in a stack that cannot work."""
    dnf.enable("nvidia-driver:580-open")
    transaction = dnf.would_install(*sorted({p.package for p in locked(rhel).packages}))
    versions = dict(row.split(" ", 1) for row in transaction)
    # A kernel that no headers go with, and a companion of a driver that cannot be installed.
    assert versions["kernel"] == rpmstack.HEADERLESS
    assert versions["kernel-devel"] == rpmstack.KERNELS[-1]
    assert versions["kmod-nvidia-open-dkms"] == "3:580.95.05-1.el9"
    assert versions["nvidia-modprobe"] == "3:580.126.09-1.el9"


def test_dnf_and_the_resolver_choose_alike_where_nothing_is_in_the_way(rhel: Rhel, dnf: Dnf, fetcher: Fetcher) -> None:
    """Branch 570 with the kernel named: both are left with one way to satisfy the relations."""
    dnf.enable("nvidia-driver:570-open")
    kernel = rpmstack.KERNELS[-1]
    universe = offered(fetcher, rhel.server.uri, dnf.repositories, rhel.key)
    profile = Profile.model_validate({"os": "rhel-9", "driver": "570", "repositories": ["baseos", "cuda"]})
    with_files = resolve(
        "gds",
        profile,
        PLATFORM,
        universe,
        [],
        lambda *_: SourceTree("/usr/src/nvidia-570.172.08", "nvidia", "570.172.08"),
    ).target
    ours = {f"{p.package} {p.version}" for p in with_files.packages}
    specs = [p.package for p in with_files.packages if not p.package.startswith("kernel")]
    transaction = dnf.would_install(f"kernel-{kernel}", f"kernel-devel-{kernel}", *specs)
    by_name = {str(c): c for name in universe.names() for c in universe.named(name)}
    assert {row for row in transaction if PLATFORM.in_stack(by_name[row])} == ours


def test_dnf_refuses_the_index_that_the_lock_refuses(rhel: Rhel, dnf: Dnf) -> None:
    """The signature that is checked is the one that dnf checks with repo_gpgcheck."""
    keys = rhel.fleet.parent / "key.asc"
    keys.write_text(rhel.key.armoured())
    dnf.options = [
        "-y", *(f"--setopt={name}.{key}={value}" for name in dnf.repositories
        for key, value in (("repo_gpgcheck", "1"), ("gpgkey", keys.as_uri()), ("skip_if_unavailable", "0"))),
    ]  # fmt: skip
    assert dnf.run("-q", "repoquery", "dkms").strip()
    rhel.cuda.repomd.write_bytes(rhel.cuda.repomd.read_bytes() + b"\n")
    dnf.root = rhel.fleet.parent / "another"
    dnf.root.mkdir()
    with pytest.raises(AssertionError, match=r"(?i)repomd\.xml GPG signature verification error|Bad GPG signature"):
        dnf.run("-q", "repoquery", "dkms")
    assert not lockfile.beside(rhel.fleet).exists()
