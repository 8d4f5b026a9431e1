"""``gdsdeploy lock`` of RHEL-family fleets down to served rpm repositories, and what dnf makes of the same ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

import pytest

from gdsdeploy.errors import FleetInvalid, LockStale, NoSolution, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.host.model.compat import rules_with
from gdsdeploy.lock import lockfile
from gdsdeploy.lock.resolve import resolve
from gdsdeploy.lock.sources import SourceTree
from gdsdeploy.model.fleet import Profile
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Universe
from gdsdeploy.repo.repository import Repository
from gdsdeploy.repo.rpm import nevra, read
from tests.repos import rpmstack
from tests.repos.archive import Key, flip
from tests.repos.conftest import Rhel, Verb, lock
from tests.repos.rpmarchive import Rpm, RpmArchive, Stream, build, run_dnf

NEWEST = rpmstack.KERNELS[-1]


def test_lock_writes_the_newest_admitted_stack(rhel: Rhel) -> None:
    target = lock(rhel.fleet)
    assert (target.kernel.release, target.kernel.version) == (f"{NEWEST}.x86_64", NEWEST)
    assert (target.driver.version, target.driver.flavour) == ("580.95.05", "open")
    assert (target.driver.source_tree, target.driver.dkms_name) == ("/usr/src/nvidia-580.95.05", "nvidia")
    assert target.nvidia_fs is not None
    assert (target.nvidia_fs.version, target.nvidia_fs.source_tree) == ("2.26.6", "/usr/src/nvidia-fs-2.26.6")
    assert (target.libcufile.version, target.modules) == ("1.15.1.6", ("nvidia-driver:580-open",))
    assert {(r.what, r.rule) for r in target.refused} == {
        ("driver 580.126.09 (open)", "dependencies"),
        (f"kernel {rpmstack.HEADERLESS}.x86_64", "kernel-headers"),
    }
    assert [(i.repository, i.kind, i.suite, i.components) for i in target.indices] == [
        ("baseos", "rpm", "", ()),
        ("cuda", "rpm", "", ()),
    ]
    assert {i.signed_by for i in target.indices} == {rhel.key.fingerprint}
    assert target.indices[1].host_keyring == "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-cuda"
    newest = max(int(stamp) for stamp in re.findall(r"<timestamp>(\d+)<", rhel.cuda.repomd.read_text()))
    assert datetime.fromisoformat(target.indices[1].date).timestamp() == newest


def test_what_the_lock_holds_and_where_it_is_needed(rhel: Rhel) -> None:
    target = lock(rhel.fleet)
    assert {p.package: (p.part, p.needed_by) for p in target.packages} == {
        "dkms": ("dkms", "both"),
        "gds-tools-13-0": ("gds-tools", "host"),
        "kernel": ("kernel-image", "both"),
        "kernel-core": ("kernel-image", "both"),
        "kernel-devel": ("kernel-headers", "both"),
        "kernel-modules": ("kernel-image", "both"),
        "kernel-modules-core": ("kernel-image", "both"),
        "kmod-nvidia-open-dkms": ("driver-source", "both"),
        "libcufile-13-0": ("libcufile", "host"),
        "libnvidia-ml": ("driver-userland", "host"),
        "nvidia-driver-cuda": ("driver-userland", "host"),
        "nvidia-driver-cuda-libs": ("driver-userland", "host"),
        "nvidia-fs-dkms": ("nvidia-fs-source", "build"),
        "nvidia-kmod-common": ("companion", "both"),
        "nvidia-modprobe": ("companion", "host"),
        "nvidia-persistenced": ("companion", "host"),
    }
    versions = {p.package: p.version for p in target.packages}
    assert {versions[n] for n in versions if "nvidia" in n and "fs" not in n} == {"3:580.95.05-1.el9"}
    assert {versions[n] for n in versions if n.startswith("kernel")} == {NEWEST}
    for package in target.packages:
        file = rhel.cuda.root.parent / package.repository / package.file
        assert (file.stat().st_size, package.suite, package.component) == (package.size, "", "")


def test_a_stream_that_is_gone_is_an_answer_for_every_profile(rhel: Rhel, verb: Verb) -> None:
    more = "  more: {os: rocky-9, driver: '570', repositories: [baseos, cuda]}\nhosts:"
    rhel.fleet.write_text(rhel.fleet.read_text().replace("hosts:", more))
    assert lock(rhel.fleet).modules == ("nvidia-driver:580-open",)
    rhel.cuda.streams = [stream for stream in rhel.cuda.streams if stream.stream not in ("570-open", "580-open")]
    rhel.cuda.publish(rhel.key)
    out = verb("lock", "--check", "--json", rhel.fleet, error=LockStale)
    reasons = [reason for reason in out.json["reasons"] if reason["difference"] == "STREAM_GONE"]
    assert [(reason["profile"], reason["subject"]) for reason in reasons] == [
        ("gds", "nvidia-driver:580-open"),
        ("more", "nvidia-driver:570-open"),
    ]
    assert "the repositories have no module stream nvidia-driver:580-open; there are" in reasons[0]["found"]
    assert "module stream no longer in its repository nvidia-driver:570-open: the repositories have no" in out.err
    explained = verb("lock", "--explain", "driver", rhel.fleet).out
    assert "  gone       profile gds: the repositories have no module stream nvidia-driver:580-open; there" in explained


@pytest.mark.parametrize(
    ("profile", "os", "driver", "streams"),
    [
        ("driver: newest", "rhel-9", "590.44.01", ("nvidia-driver:open-dkms",)),
        ("driver: '570'", "rocky-9", "570.172.08", ("nvidia-driver:570-open",)),
        ("driver: 580.65.06", "almalinux-9", "580.65.06", ("nvidia-driver:580-open",)),
        ("driver: '==580.65.06'", "oracle-9", "580.65.06", ("nvidia-driver:580-open",)),
        ("driver: '>=570, <590'", "rhel-9", "580.95.05", ("nvidia-driver:open-dkms",)),
        (
            "driver: {version: '580', flavour: proprietary}, mode: compat",
            "rhel-9", "580.95.05", ("nvidia-driver:580-dkms",),
        ),
        ("driver: {version: newest, flavour: proprietary}, mode: compat", "rhel-9", "590.44.01",
         ("nvidia-driver:latest-dkms",)),
    ],
)  # fmt: skip
def test_a_pin_chooses_the_stream(profile: str, os: str, driver: str, streams: tuple[str, ...], rhel: Rhel) -> None:
    rhel.write_fleet(profile, os)
    target = lock(rhel.fleet)
    assert (target.driver.version, target.modules) == (driver, streams)
    source = [p for p in target.packages if p.part == "driver-source"]
    assert [p.package for p in source] == [
        f"kmod-nvidia-{'open' if target.driver.flavour == 'open' else 'latest'}-dkms"
    ]


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        # On offer and newer, but of a stream that a host does not have enabled.
        ("580.200.01", "the pin driver: '580.200.01' admits nothing that is on offer: 580.126.09, 580.95.05, 580.95"),
        ("595", "the repositories have no module stream nvidia-driver:595-open; there are 570-open, 580-dkms, 580-o"),
    ],
)
def test_a_pin_without_a_package_in_a_stream_is_refused(driver: str, words: str, rhel: Rhel, verb: Verb) -> None:
    rhel.write_fleet(f"driver: '{driver}'")
    assert words in verb("lock", rhel.fleet, error=NoSolution).err


def test_a_rule_moves_the_kernel_down(rhel: Rhel) -> None:
    """P2PDMA does not work on RHEL 9.5, so that the lock takes 9.4's kernel and says why."""
    rhel.write_fleet("driver: '580', mode: p2pdma")
    target = lock(rhel.fleet)
    assert target.kernel.release == f"{rpmstack.KERNELS[0]}.x86_64"
    assert {r.rule for r in target.refused if r.what.startswith("kernel 5.14.0-503")} == {"p2pdma-rhel-9.5"}
    assert target.nvidia_fs is None
    versions = {p.package: p.version for p in target.packages}
    assert {versions[n] for n in versions if n.startswith("kernel")} == {rpmstack.KERNELS[0]}


def test_nvlink5_comes_in_the_drivers_own_version_with_nvlsm(rhel: Rhel) -> None:
    rhel.write_fleet("driver: '580', gpu: blackwell, companions: [nvlink5]")
    packages = {p.package: (p.version, p.part) for p in lock(rhel.fleet).packages}
    assert packages["nvlink5-580"] == packages["nvidia-fabricmanager"] == ("580.95.05-1", "companion")
    assert packages["nvlsm"] == ("2025.10.14-1", "companion")


@pytest.mark.parametrize("what", ["repomd.xml", "repomd.xml.asc", "primary", "modules", "filelists"])
def test_tampering_is_refused_by_name_and_the_lock_stays(what: str, rhel: Rhel, verb: Verb) -> None:
    lock(rhel.fleet)
    before = lockfile.beside(rhel.fleet).read_bytes()
    for path in (rhel.fleet.parent / "cache").rglob("*"):
        if path.is_file():
            path.unlink()
    archive = rhel.baseos if what == "filelists" else rhel.cuda
    name = flip(archive.repomd.with_name(what) if what.startswith("repomd") else archive.find(what))
    text = verb("lock", rhel.fleet, error=RepositoryUntrusted).words
    words = "the signature does not hold" if what.startswith("repomd") else "this is not the file that the signed index"
    assert f"{name.removesuffix('.asc')}: {words}" in text
    assert lockfile.beside(rhel.fleet).read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kind: rpm, uri", "kind: apt, uri", "repositories.baseos: kind is apt, but rhel-9 uses rpm"),
        ("kind: rpm, uri", "suites: [x], uri", "an rpm repository has neither suites nor components"),
        (", repositories: [baseos, cuda]", "", "rhel-9 has no presets of its own, so list some"),
        ("fingerprints", "signed_by: /k, x", "x: unknown key"),
    ],
)
def test_a_fleet_that_cannot_be_right_is_refused(old: str, new: str, words: str, rhel: Rhel, verb: Verb) -> None:
    rhel.fleet.write_text(rhel.fleet.read_text().replace(old, new))
    assert words in verb("lock", rhel.fleet, error=FleetInvalid).words


def test_a_repository_that_is_not_there_is_named(rhel: Rhel, verb: Verb) -> None:
    rhel.fleet.write_text(rhel.fleet.read_text().replace("/cuda'", "/elsewhere'"))
    assert (
        "/elsewhere/repodata/repomd.xml: there is no such file"
        in verb("lock", rhel.fleet, error=RepositoryUnusable).err
    )


def test_the_userland_that_branch_610_regrouped(rhel: Rhel, tmp_path: Path) -> None:
    """nvidia-driver-selinux is not of the driver's version; dnf needs it on hosts with SELinux, and no one else."""
    for name, rpms, archive in (("cuda", rpmstack.CUDA_2026, rhel.cuda), ("selinux", rpmstack.SELINUX, rhel.baseos)):
        if name == "cuda":
            for path in archive.root.glob("*.rpm"):
                path.unlink()
            archive.streams = ()
        for path in build(rpms, tmp_path / name).iterdir():
            path.rename(archive.root / path.name)
        archive.publish(rhel.key)
    rhel.write_fleet("driver: newest, companions: [fabricmanager]", os="rhel-10")
    target = lock(rhel.fleet)
    versions = {package.package: package.version for package in target.packages}
    assert target.modules == (), "NVIDIA's repository for release 10 has no streams"
    full = "3:615.71.09-1.el9"
    same = ("kmod-nvidia-open-dkms", "nvidia-driver-common", "nvidia-driver-cuda-libs", "nvidia-kmod-common")
    assert {versions[name] for name in same} == {full}
    assert versions["nvidia-driver-selinux"] == "0.1-2.el9"
    assert "libnvidia-ml" not in versions
    assert (target.libcufile.version, versions["nvidia-fs-dkms"]) == ("1.19.0.53", "2.30.1-1")
    rhel.write_fleet("driver: '595'", os="rhel-10")
    versions = {package.package: package.version for package in lock(rhel.fleet).packages}
    assert versions["libnvidia-ml"] == "3:595.71.05-1.el9"
    assert not [name for name in versions if name in ("nvidia-driver-common", "nvidia-driver-selinux")]


# -- What dnf itself makes of the same repositories: the same packages are visible, and a lock installs as it is.


PLATFORM = stack_platform_for("rhel-9")


class Dnf:
    """A dnf with a system of its own, and these repositories (name → address) alone."""

    def __init__(self, root: Path, repositories: Mapping[str, str], *options: str) -> None:
        self.root, self.repositories, self.options = root, repositories, options

    def run(self, *arguments: str) -> str:
        """Standard output; nothing is ever installed."""
        sources = [f"--repofrompath={name},{uri}" for name, uri in self.repositories.items()]
        words = ("--setopt=skip_if_unavailable=0", *sources, *self.options, *arguments)
        done = run_dnf(self.root, *words, answer="no")
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
    return Dnf(tmp_path, {name: f"{rhel.server.uri}/{name}" for name in ("baseos", "cuda")}, "--nogpgcheck")


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
    real = Dnf(tmp_path, {"shadows": f"{uri}/shadows"}, "--nogpgcheck")
    for module, stream in enabled.items():
        real.enable(f"{module}:{stream}")
    ours = nevras(offered(fetcher, uri, ["shadows"], key).with_streams(enabled))
    assert ours == real.visible() == {SHADOWS[name].nevra for name in names}


def test_dnf_installs_a_lock_as_it_is(rhel: Rhel, dnf: Dnf, fetcher: Fetcher) -> None:
    """Nothing of the stack comes beside what is locked, and nothing in another version."""
    target = lock(rhel.fleet)
    (stream,) = target.modules
    dnf.enable(stream)
    expected = {f"{p.package} {p.version}" for p in target.packages}
    transaction = dnf.would_install(*(f"{p.package}-{p.version}.{p.architecture}" for p in target.packages))
    assert expected <= transaction
    universe = offered(fetcher, rhel.server.uri, dnf.repositories, rhel.key)
    by_name = {str(c): c for name in universe.names() for c in universe.named(name)}
    assert not [row for row in transaction - expected if PLATFORM.in_stack(by_name[row])]


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
        rules=rules_with(()),
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
    values = {"repo_gpgcheck": "1", "gpgkey": keys.as_uri(), "skip_if_unavailable": "0"}
    dnf.options = ("-y", *(f"--setopt={name}.{k}={v}" for name in dnf.repositories for k, v in values.items()))
    assert dnf.run("-q", "repoquery", "dkms").strip()
    rhel.cuda.repomd.write_bytes(rhel.cuda.repomd.read_bytes() + b"\n")
    dnf.root = rhel.fleet.parent / "another"
    dnf.root.mkdir()
    with pytest.raises(AssertionError, match=r"(?i)repomd\.xml GPG signature verification error|Bad GPG signature"):
        dnf.run("-q", "repoquery", "dkms")
    assert not lockfile.beside(rhel.fleet).exists()
