"""An rpm repository without a signed index, as EPEL is: a recorded choice accepts it, and each package is checked."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from gdsdeploy.converge.inventory import _indices
from gdsdeploy.errors import FleetInvalid, GdsError, LockStale, RepositoryUntrusted
from gdsdeploy.host.apply.packages.dnf import render_repositories
from gdsdeploy.host.apply.packages.managers import Index as HostIndex
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.repo import packagefile
from tests.commandline import run
from tests.repos.archive import Key, Server
from tests.repos.conftest import Rhel
from tests.repos.rpmarchive import Rpm, RpmArchive, build, sign

DKMS = Rpm("dkms", "3.4.3-2.el9", "noarch", vendor="Fedora Project", requires=("gcc", "make", "kernel-devel"))
WHY = "EPEL signs no repomd.xml"


@dataclass
class Epel:
    """The repositories of a RHEL host, and a third one with dkms that signs packages alone."""

    rhel: Rhel
    epel: RpmArchive
    server: Server
    key: Key

    @property
    def package(self) -> Path:
        """The file of dkms."""
        return self.epel.root / DKMS.file

    def write_fleet(self, choice: str | None = None) -> Path:
        """A fleet whose repository ``epel`` has these keys beside its address."""
        rhel = self.rhel
        signed = f"keyring: '{rhel.key.keyring}', fingerprints: [{rhel.key.fingerprint}]"
        if choice is None:
            choice = f"metadata: unsigned, why: {WHY}, package_keys: [{self.key.fingerprint}]"
        rhel.fleet.write_text(
            f"version: 1\n"
            f"repositories:\n"
            f"  baseos: {{kind: rpm, uri: '{rhel.server.uri}/baseos', {signed}}}\n"
            f"  cuda: {{kind: rpm, uri: '{rhel.server.uri}/cuda', {signed}}}\n"
            f"  epel: {{kind: rpm, uri: '{rhel.server.uri}/epel', keyring: '{self.key.keyring}', {choice}}}\n"
            f"profiles:\n  gds: {{os: rhel-9, repositories: [baseos, cuda, epel], driver: '580'}}\n"
            f"hosts:\n  gpu1: gds\n"
        )
        return rhel.fleet

    def publish(self) -> None:
        self.epel.publish(None)

    def target(self) -> Target:
        """What ``gdsdeploy lock`` writes."""
        assert run("lock", self.rhel.fleet) == 0
        return lockfile.read(lockfile.beside(self.rhel.fleet)).targets["gds"]


@pytest.fixture
def epel(rhel: Rhel, other_key: Key) -> Epel:
    """dkms is in this repository alone, signed by a key that signs nothing else."""
    site = Epel(rhel, RpmArchive(build([DKMS], rhel.cuda.root.parent / "epel")), rhel.server, other_key)
    for path in rhel.cuda.root.glob("dkms-*.rpm"):
        path.unlink()
    rhel.cuda.publish(rhel.key)
    sign([site.package], other_key)
    site.publish()
    site.write_fleet()
    return site


def refusal(epel: Epel, capsys: pytest.CaptureFixture[str], error: type[GdsError]) -> str:
    capsys.readouterr()
    assert run("lock", epel.rhel.fleet) == error.exit_code
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().err)


def test_the_lock_records_the_choice_and_says_so(epel: Epel, capsys: pytest.CaptureFixture[str]) -> None:
    target = epel.target()
    (index,) = [index for index in target.indices if index.repository == "epel"]
    assert (index.metadata, index.signed_by, index.package_keys) == ("unsigned", "", (epel.key.fingerprint,))
    assert index.why == WHY
    (dkms,) = [package for package in target.packages if package.package == "dkms"]
    assert (dkms.version, dkms.repository) == (DKMS.version, "epel")
    words = " ".join(capsys.readouterr().err.split())
    assert "unsigned-index" in words
    assert "its server chooses which packages are on offer" in words
    text = lockfile.beside(epel.rhel.fleet).read_text()
    assert text.count("metadata:") == 1, "signed indices are written as before"
    assert run("lock", "--check", epel.rhel.fleet) == 0
    capsys.readouterr()
    assert run("lock", "--explain", "dkms", epel.rhel.fleet) == 0
    assert f"{epel.key.fingerprint} (the package; its index is unsigned: {WHY})" in capsys.readouterr().out


def test_a_host_checks_its_packages_and_not_its_index(epel: Epel) -> None:
    chosen = {index["repository"]: index for index in _indices(epel.target())}
    assert chosen["epel"]["metadata"] == "unsigned"
    assert "metadata" not in chosen["cuda"]


def test_another_choice_makes_the_lock_stale(epel: Epel, capsys: pytest.CaptureFixture[str]) -> None:
    epel.target()
    epel.write_fleet(f"metadata: unsigned, why: {WHY}, package_keys: [{epel.rhel.key.fingerprint}]")
    capsys.readouterr()
    assert run("lock", "--check", epel.rhel.fleet) == LockStale.exit_code
    assert "repositories epel.package_keys" in " ".join(capsys.readouterr().err.split())
    epel.write_fleet(f"fingerprints: [{epel.key.fingerprint}]")
    assert run("lock", "--check", epel.rhel.fleet) == LockStale.exit_code
    assert "repositories epel.metadata" in " ".join(capsys.readouterr().err.split())


def test_without_the_choice_it_is_refused_and_named(epel: Epel, capsys: pytest.CaptureFixture[str]) -> None:
    epel.write_fleet(f"fingerprints: [{epel.key.fingerprint}]")
    words = refusal(epel, capsys, RepositoryUntrusted)
    assert "there is no repomd.xml.asc beside it" in words
    assert "metadata: unsigned" in words


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("metadata: unsigned, why: x", "so give package_keys"),
        ("metadata: unsigned, package_keys: [{key}]", "say `why`"),
        ("metadata: unsigned, why: x, package_keys: [{key}], fingerprints: [{key}]", "write package_keys"),
        ("fingerprints: [{key}], package_keys: [{key}]", "belong to a repository with `metadata: unsigned`"),
        ("fingerprints: [{key}], why: x", "belong to a repository with `metadata: unsigned`"),
    ],
)
def test_half_a_choice_is_refused(epel: Epel, capsys: pytest.CaptureFixture[str], choice: str, words: str) -> None:
    epel.write_fleet(choice.format(key=epel.key.fingerprint))
    # A name without a preset, which would have the keys.
    epel.rhel.fleet.write_text(epel.rhel.fleet.read_text().replace("epel", "extras"))
    assert words in " ".join(refusal(epel, capsys, FleetInvalid).split())


def damage(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def payload(path: Path) -> int:
    """Where the payload begins: behind the two headers."""
    text = path.read_bytes()
    return text.index(b"\x1f\x8b", 200)


def test_what_no_key_vouches_for_is_refused(epel: Epel, capsys: pytest.CaptureFixture[str], key: Key) -> None:
    """Whoever serves the repository also writes its index, so the digests there always fit."""
    good = epel.package.read_bytes()
    cases = {
        "another key": (lambda: sign([epel.package], key), "the signature does not hold"),
        "no signature": (
            lambda: subprocess.run(["rpmsign", "--delsign", epel.package], check=True, capture_output=True),
            "the package is not signed",
        ),
        "another payload": (lambda: damage(epel.package, payload(epel.package) + 20), "not the signed one"),
        "a longer payload": (lambda: epel.package.write_bytes(good + b"more"), "not the signed one"),
        "another header": (lambda: damage(epel.package, good.index(b"Fedora Project")), "the signature does not hold"),
    }
    for name, (change, words) in cases.items():
        epel.package.write_bytes(good)
        change()
        epel.publish()
        text = " ".join(refusal(epel, capsys, RepositoryUntrusted).split())
        assert words in text, name
        assert DKMS.file in text
        assert not lockfile.beside(epel.rhel.fleet).exists()
    epel.package.write_bytes(good)
    epel.publish()
    epel.target()


def test_a_signed_package_under_another_name_is_refused(epel: Epel, capsys: pytest.CaptureFixture[str]) -> None:
    """An attacker can give out an old signed package as a new one."""
    epel.epel.rewrite("primary", lambda text: text.replace(b'ver="3.4.3"', b'ver="3.9.9"'), epel.key)
    (epel.epel.root / "repodata" / "repomd.xml.asc").unlink()
    words = " ".join(refusal(epel, capsys, RepositoryUntrusted).split())
    assert "the index calls it dkms 3.9.9-2.el9 noarch, but the signed package is dkms 0:3.4.3-2.el9 noarch" in words


@pytest.mark.parametrize("size", [0, 50, 96, 110, 300])
def test_a_file_that_is_cut_off_is_refused(epel: Epel, tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.rpm"
    path.write_bytes(epel.package.read_bytes()[:size])
    expected = packagefile.Expected("dkms", DKMS.version, "noarch")
    with pytest.raises(RepositoryUntrusted, match=r"cut\.rpm: not a package of rpm"):
        packagefile.check_signature(
            path, expected, keyring=epel.key.keyring, fingerprints=[epel.key.fingerprint], name="cut.rpm"
        )


def test_a_lock_with_half_a_choice_is_no_lock() -> None:
    good = {
        "repository": "epel", "kind": "rpm", "uri": "https://mirror.example/epel", "suite": "", "components": (),
        "date": "2026-11-01T00:00:00Z", "signed_by": "", "host_keyring": "/etc/pki/rpm-gpg/epel",
        "metadata": "unsigned", "package_keys": ("0" * 40,), "why": "x",
    }  # fmt: skip
    assert Index.model_validate(good).metadata == "unsigned"
    for change in ({"package_keys": ()}, {"kind": "apt"}, {"metadata": "signed"}, {"signed_by": "0" * 40}):
        with pytest.raises(ValueError, match=r"metadata|signed_by"):
            Index.model_validate({**good, **change})


def dnf(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The real dnf on an empty system, with the sources in ``root / repos``."""
    argv = [
        "unshare", "--map-root-user", "--pid", "--fork", "dnf", "--assumeyes", f"--installroot={root / 'root'}",
        "--releasever=9", "--forcearch=x86_64", "--noplugins", f"--setopt=reposdir={root / 'repos'}",
        f"--setopt=cachedir={root / 'cache'}", f"--setopt=logdir={root}", *words,
    ]  # fmt: skip
    environment = {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C", "HOME": "/root"}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=60, check=False)


@pytest.mark.parametrize("signed", [True, False])
def test_dnf_takes_signed_packages_alone_from_the_source_of_an_unsigned_index(
    tmp_path: Path, key: Key, other_key: Key, *, signed: bool
) -> None:
    tool = Rpm("tool", "1.0-1")
    archive = RpmArchive(build([tool], tmp_path / "www"))
    sign([archive.root / tool.file], key if signed else other_key)
    archive.publish(None)
    (tmp_path / "repos").mkdir()
    (tmp_path / "maker").write_text(key.armoured())
    index = HostIndex("epel", archive.root.as_uri(), "", [], str(tmp_path / "maker"), metadata="unsigned")
    (tmp_path / "repos" / "gdsdeploy.repo").write_text(render_repositories([index], []))
    done = dnf(tmp_path, "install", "tool")
    assert (done.returncode == 0) is signed, done.stdout + done.stderr
    assert ("GPG check FAILED" in done.stderr) is not signed


def mirrored(epel: Epel, folder: Path, key: Key, *options: str) -> int:
    lock = lockfile.beside(epel.rhel.fleet)
    keys = [word for path in (epel.rhel.key.keyring, epel.key.keyring) for word in ("--keyring", str(path))]
    return run("mirror", lock, folder, "--key", key.fingerprint, *keys, *options)


def test_a_mirror_signs_what_it_has_checked(
    epel: Epel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hosts then have a signed index; a package that nobody signed never gets there."""
    epel.target()
    monkeypatch.setenv("GNUPGHOME", str(epel.rhel.key.home))
    folder = tmp_path / "mirror"
    assert mirrored(epel, folder, epel.rhel.key, "--no-dependencies") == 0
    (package,) = folder.rglob(DKMS.file)
    assert package.read_bytes() == epel.package.read_bytes()
    assert (folder / "rpm/rhel-9/x86_64/repodata/repomd.xml.asc").is_file()
    # A file in the mirror that its repository never signed, with an index to match.
    lock = lockfile.read(lockfile.beside(epel.rhel.fleet))
    shutil.rmtree(folder)
    subprocess.run(["rpmsign", "--delsign", epel.package], check=True, capture_output=True)
    epel.publish()
    old = next(p for p in lock.targets["gds"].packages if p.package == "dkms")
    new = re.search(r'pkgid="YES">([0-9a-f]{64})', _primary(epel))
    assert new is not None
    changed = old.model_copy(update={"sha256": new[1], "size": epel.package.stat().st_size})
    target = lock.targets["gds"]
    packages = tuple(changed if p == old else p for p in target.packages)
    lockfile.write(
        lockfile.beside(epel.rhel.fleet), lockfile.build({"gds": target.model_copy(update={"packages": packages})})
    )
    capsys.readouterr()
    assert mirrored(epel, folder, epel.rhel.key, "--no-dependencies") == RepositoryUntrusted.exit_code
    assert "the package is not signed" in " ".join(capsys.readouterr().err.split())
    assert not list(folder.rglob(DKMS.file))
    assert not list(folder.rglob("repomd.xml.asc"))


def _primary(epel: Epel) -> str:
    return gzip.decompress(epel.epel.find("primary").read_bytes()).decode()
