"""Trust, from the pinned fingerprint to the package file: every link is broken once."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gdsdeploy.converge.machine import indices
from gdsdeploy.errors import FleetInvalid, GdsError, LockStale, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.host.apply.packages.dnf import render_repositories
from gdsdeploy.host.apply.packages.managers import Index as HostIndex
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Index
from gdsdeploy.repo import packagefile
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Relation, Universe
from gdsdeploy.repo.repository import Repository
from gdsdeploy.repo.rpm import read, rpm_relation
from tests.commandline import run
from tests.repos.archive import Key, Server, flip
from tests.repos.conftest import Rhel, Verb, lock, read_lock
from tests.repos.rpmarchive import Rpm, RpmArchive, build, run_dnf, sign

KMOD = "kmod-nvidia-open-dkms"


def fetch(rhel: Rhel, key: Key | None = None, *, now: datetime | None = None) -> Universe:
    """What the CUDA repository offers to somebody who pins ``key``."""
    pinned = key or rhel.key
    repository = Repository("cuda", f"{rhel.server.uri}/cuda", pinned.keyring, (pinned.fingerprint,), "/k")
    with Fetcher(apt={}, sleep=lambda seconds: None) as fetcher:
        return read(fetcher, [repository], "x86_64", now=now)[0]


def test_a_signed_repository_is_read(rhel: Rhel) -> None:
    package = {c.version: c for c in fetch(rhel).named(KMOD)}["3:580.95.05-1.el9"]
    assert (package.architecture, package.filename) == ("noarch", f"{KMOD}-580.95.05-1.el9.noarch.rpm")
    assert (package.repository, package.suite, package.component, package.origin) == ("cuda", "", "", "cuda")
    assert rpm_relation("nvidia-kmod", "=", "3:580.95.05") in package.provides
    assert (rpm_relation("nvidia-kmod-common", "=", "3:580.95.05"),) in package.depends
    assert package.conflicts == (rpm_relation("kmod-nvidia-latest-dkms"),)
    assert package.size == (rhel.cuda.root / package.filename).stat().st_size
    common = fetch(rhel).named("nvidia-kmod-common")[0]
    assert common.obsoletes == (rpm_relation("cuda-nvidia-kmod-common", "<=", "3:500"),)
    assert (
        rpm_relation("kernel-modules-core"),
        Relation("kernel-core", order=common.obsoletes[0].order, negated=True),
    ) in (common.depends)


@pytest.mark.parametrize("compression", ["xz", "bz2"])
def test_every_compression_is_read(compression: str, rhel: Rhel) -> None:
    rhel.cuda.compression = compression
    rhel.cuda.publish(rhel.key)
    assert rhel.cuda.find("primary").suffix == f".{compression}"
    assert fetch(rhel).with_streams({"nvidia-driver": "570-open"}).named(KMOD)


@pytest.mark.parametrize("sound", [True, False])
def test_zstd_is_read_as_newer_repositories_have_it(sound: bool, rhel: Rhel) -> None:
    """createrepo_c writes it by default since 1.0, which is newer than Debian 12's."""
    path = rhel.cuda.find("primary")
    plain = gzip.decompress(path.read_bytes())
    packed = subprocess.run(["zstd", "-c"], input=plain, check=True, capture_output=True).stdout
    packed = packed if sound else packed[:-9]
    before = path.read_bytes()
    for old, new in (
        (path.name, path.with_suffix(".zst").name),
        (hashlib.sha256(before).hexdigest() + "<", hashlib.sha256(packed).hexdigest() + "<"),
        (f"<size>{len(before)}<", f"<size>{len(packed)}<"),
    ):
        rhel.cuda.reindex(old, new, rhel.key)
    path.with_suffix(".zst").write_bytes(packed)
    if sound:
        assert fetch(rhel).named(KMOD)
    else:
        with pytest.raises(RepositoryUnusable, match=r"primary\.xml\.zst: cannot be decompressed"):
            fetch(rhel)


def both_keys(rhel: Rhel, other: Key) -> None:
    """The stranger's key is in the keyring, too."""
    rhel.cuda.sign(other)
    keyring = rhel.fleet.with_name("both.gpg")
    keyring.write_bytes(rhel.key.keyring.read_bytes() + other.keyring.read_bytes())
    rhel.key = replace(rhel.key, keyring=keyring)


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (lambda rhel, _: rhel.cuda.sign(None), RepositoryUntrusted, r"cuda/repodata/repomd\.xml: it is not signed"),
        (lambda rhel, other: rhel.cuda.sign(other), RepositoryUntrusted, "not in the keyring"),
        (both_keys, RepositoryUntrusted, "[0-9A-F]{40}, which is not one of the pinned"),
        (lambda rhel, _: rhel.cuda.find("primary").unlink(), RepositoryUnusable,
         r"primary\.xml\.gz: the signed index names this list, but"),
        (lambda rhel, _: rhel.cuda.find("primary").open("ab").write(bytes(5_000_000)), RepositoryUntrusted,
         r"primary\.xml\.gz: longer than the"),
    ],
    ids=["unsigned", "a stranger", "not pinned", "a list that is gone", "a longer list"],
)  # fmt: skip
def test_a_broken_link_of_trust_is_refused(
    damage: Callable[[Rhel, Key], object], error: type[GdsError], words: str, rhel: Rhel, other_key: Key
) -> None:
    damage(rhel, other_key)
    with pytest.raises(error, match=words):
        fetch(rhel)


def test_an_index_from_the_future_is_refused(rhel: Rhel) -> None:
    with pytest.raises(RepositoryUntrusted, match=r"repomd\.xml: this index is dated"):
        fetch(rhel, now=datetime.now(UTC) - timedelta(days=1))


def test_a_list_that_decompresses_to_more_than_it_may_is_refused(rhel: Rhel) -> None:
    """The signature is good; a small file that fills the memory would still be read no further than the index says."""
    text = rhel.cuda.repomd.read_text()
    size = re.search(r"primary.*?<open-size>(\d+)<", text, re.DOTALL)
    assert size
    rhel.cuda.reindex(f"<open-size>{size[1]}<", "<open-size>1000<", rhel.key)
    with pytest.raises(RepositoryUntrusted, match="it decompresses to more than the 1000 bytes"):
        fetch(rhel)


LAUGHS = '<!DOCTYPE l [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("old", "new", "error", "words"),
    [
        ('<checksum type="sha256">', '<checksum type="sha">', RepositoryUnusable, "its checksum is a sha, not a sha2"),
        ('href="repodata/', 'href="../', RepositoryUnusable, "not a path inside the repository"),
        ('href="repodata/', 'href="http://elsewhere.example/', RepositoryUnusable, "not a path inside the repository"),
        ("<size>", f"<size>{10**10}", RepositoryUnusable, "not a number of bytes"),
        ("<size>", "<size>-", RepositoryUnusable, "not a number of bytes"),
        ('type="primary"', 'type="primarily"', RepositoryUnusable, "it lists no primary"),
        ("</repomd>", "", RepositoryUnusable, "not well-formed XML"),
        ("<repomd ", f"{LAUGHS}]>\n<repomd ", RepositoryUntrusted, "it has a document type"),
        ("<repomd ", '<!DOCTYPE l SYSTEM "file:///etc/passwd">\n<repomd ', RepositoryUntrusted, "it has a document"),
        ('encoding="UTF-8"', 'encoding="cp037"', RepositoryUntrusted, "written in cp037"),
        ('<?xml version="1.0"', '\ufeff<?xml version="1.0"', RepositoryUntrusted, "this is not XML"),
    ],
)
def test_an_index_that_makes_no_sense_or_is_dangerous_is_refused_however_well_it_is_signed(
    old: str, new: str, error: type[GdsError], words: str, rhel: Rhel
) -> None:
    rhel.cuda.reindex(old, new, rhel.key)
    with pytest.raises(error, match=rf"cuda/repodata/repomd\.xml: .*{words}"):
        fetch(rhel)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'href="kmod-nvidia-open', b'href="../kmod-nvidia-open', "not a path inside the repository"),
        (b'<location href="kmod', b'<location xml:base="http://x.example" href="kmod', "its file is not inside"),
        (b'<checksum type="sha256"', b'<checksum type="sha512"', "its checksum is a sha512, not a sha256"),
        (b'flags="EQ"', b'flags="ALMOST"', "not a relation in \\w+: ALMOST"),
        (b'ver="580.95.05"', b'ver="580-95:05"', "not a version"),
        (b"<size package=", b"<size packaged=", "not a number of bytes"),
        (b"<rpm:entry name=\"dkms\"", b"<rpm:entry name=\"(dkms if\"", "not a boolean dependency|a name is missing"),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_read_is_named(old: bytes, new: bytes, words: str, rhel: Rhel) -> None:
    rhel.cuda.rewrite("primary", lambda text: text.replace(old, new), rhel.key)
    with pytest.raises(RepositoryUnusable, match=rf"primary\.xml\.gz: package [0-9]+: {KMOD}: .*({words})"):
        fetch(rhel).named(KMOD)


def test_what_rpm_itself_can_do_is_not_looked_for(rhel: Rhel) -> None:
    """createrepo_c leaves such relations out, and not every other writer of metadata does."""
    old, new = b'<rpm:entry name="dkms"/>', b'<rpm:entry name="rpmlib(PayloadIsZstd)" flags="LE" ver="5.4.18" rel="1"/>'
    rhel.cuda.rewrite("primary", lambda text: text.replace(old, new), rhel.key)
    needs = {relation.package for group in fetch(rhel).named(KMOD)[0].depends for relation in group}
    assert needs == {"nvidia-kmod-common", "kernel-devel"}


@pytest.mark.parametrize(
    ("kind", "old", "new", "error", "words"),
    [
        ("primary", b"<metadata ", b"<!DOCTYPE x []><metadata ", RepositoryUntrusted,
         r"primary\.xml\.gz: it has a document type"),
        ("primary", b'packages="', b'packages="1', RepositoryUnusable, "it says 1[0-9]+ packages and has"),
        ("modules", b"  name: ", b"  nome: ", RepositoryUnusable,
         r"modules\.yaml\.gz: document 1: not module metadata"),
    ],
)  # fmt: skip
def test_a_list_that_makes_no_sense_is_refused(
    kind: str, old: bytes, new: bytes, error: type[GdsError], words: str, rhel: Rhel
) -> None:
    rhel.cuda.rewrite(kind, lambda text: text.replace(old, new, 1), rhel.key)
    with pytest.raises(error, match=words):
        fetch(rhel)


def test_packages_of_other_architectures_are_not_offered(rhel: Rhel) -> None:
    before = len(fetch(rhel).named("libnvidia-ml"))
    name = b"<name>libnvidia-ml</name>\n  <arch>"
    rhel.cuda.rewrite("primary", lambda text: text.replace(name + b"x86_64", name + b"i686", 2), rhel.key)
    candidates = fetch(rhel).named("libnvidia-ml")
    assert (len(candidates), {c.architecture for c in candidates}) == (before - 2, {"x86_64"})


def test_a_file_is_found_in_the_primary_list_or_else_in_the_file_lists(rhel: Rhel) -> None:
    both = [
        Repository(name, f"{rhel.server.uri}/{name}", rhel.key.keyring, (rhel.key.fingerprint,), "/k")
        for name in ("cuda", "baseos")
    ]
    with Fetcher(apt={}, sleep=lambda seconds: None) as fetcher:
        universe, _ = read(fetcher, both, "x86_64")
        assert [c.package for c in universe.answering(rpm_relation("/usr/bin/sh"))] == ["bash"]
        assert not any("filelists" in line for line in rhel.server.log)
        assert [c.package for c in universe.answering(rpm_relation("/usr/share/ocl-icd/registry"))] == ["ocl-icd"]
        assert any("filelists" in line for line in rhel.server.log)
        assert not universe.answering(rpm_relation("/usr/share/ocl-icd/regist"))
        assert not universe.answering(rpm_relation("usr/share/ocl-icd/registry"))


def test_a_file_is_found_whatever_other_packages_are_like(rhel: Rhel) -> None:
    """rpm accepts a version with two hyphens in what is provided; the list also has a package that can't be read."""
    odd = b'<rpm:provides>\n<rpm:entry name="bundled(x)" flags="EQ" epoch="0" ver="0.0.0-20200101" rel="abc"/>'
    wrong = b'<rpm:provides>\n<rpm:entry name="wrong" flags="XX" epoch="0" ver="1" rel="1"/>'
    rhel.baseos.rewrite(
        "primary",
        lambda text: text.replace(b"<rpm:provides>", odd, 1)[::-1].replace(b"<rpm:provides>"[::-1], wrong[::-1], 1)[
            ::-1
        ],
        rhel.key,
    )
    repository = Repository("b", f"{rhel.server.uri}/baseos", rhel.key.keyring, (rhel.key.fingerprint,), "/k")
    with Fetcher(apt={}, sleep=lambda seconds: None) as fetcher:
        universe, _ = read(fetcher, [repository], "x86_64")
        assert [c.package for c in universe.answering(rpm_relation("/usr/share/ocl-icd/registry"))] == ["ocl-icd"]
        assert universe.answering(rpm_relation("bundled(x)", ">=", "0.0.0-20190101-abc"))
        assert not universe.answering(rpm_relation("bundled(x)", ">", "0.0.0-20200101-abc"))
        with pytest.raises(RepositoryUnusable, match="not a relation in provides: XX"):
            universe.answering(rpm_relation("wrong"))


def test_capabilities_are_found_with_what_they_provide(rhel: Rhel) -> None:
    universe = fetch(rhel)
    names = {str(c) for c in universe.answering(rpm_relation("nvidia-kmod", "=", "3:580.95.05"))}
    assert names == {f"{KMOD} 3:580.95.05-1.el9", "kmod-nvidia-latest-dkms 3:580.95.05-1.el9"}
    assert universe.answering(rpm_relation("libcufile.so.0()(64bit)"))
    assert not universe.answering(rpm_relation("nvidia-kmod", ">", "3:600"))


# -- An rpm repository without a signed index, as EPEL is: a recorded choice accepts it, and each package is checked.


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

    def write_fleet(self, choice: str | None = None) -> None:
        """A fleet whose repository ``epel`` has these keys beside its address."""
        choice = choice or f"metadata: unsigned, why: {WHY}, package_keys: [{self.key.fingerprint}]"
        uri = f"{self.rhel.server.uri}/epel"
        self.rhel.write_fleet(epel=f"kind: rpm, uri: '{uri}', keyring: '{self.key.keyring}', {choice}")

    def publish(self) -> None:
        self.epel.publish(None)


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


def test_the_lock_records_the_choice_and_says_so(epel: Epel, verb: Verb) -> None:
    words = verb("lock", epel.rhel.fleet).words
    target = read_lock(epel.rhel.fleet)
    (index,) = [index for index in target.indices if index.repository == "epel"]
    assert (index.metadata, index.signed_by, index.package_keys) == ("unsigned", "", (epel.key.fingerprint,))
    assert index.why == WHY
    (dkms,) = [package for package in target.packages if package.package == "dkms"]
    assert (dkms.version, dkms.repository) == (DKMS.version, "epel")
    assert "unsigned-index" in words
    assert "its server chooses which packages are on offer" in words
    text = lockfile.beside(epel.rhel.fleet).read_text()
    assert text.count("metadata:") == 1, "signed indices are written as before"
    assert run("lock", "--check", epel.rhel.fleet) == 0
    assert (
        f"{epel.key.fingerprint} (the package; its index is unsigned: {WHY})"
        in verb("lock", "--explain", "dkms", epel.rhel.fleet).out
    )


def test_a_host_checks_its_packages_and_not_its_index(epel: Epel) -> None:
    metadata = {index.repository: index.metadata for index in indices(lock(epel.rhel.fleet))}
    assert (metadata["epel"], metadata["cuda"]) == ("unsigned", "signed")


def test_another_choice_makes_the_lock_stale(epel: Epel, verb: Verb) -> None:
    lock(epel.rhel.fleet)
    epel.write_fleet(f"metadata: unsigned, why: {WHY}, package_keys: [{epel.rhel.key.fingerprint}]")
    assert "repositories epel.package_keys" in verb("lock", "--check", epel.rhel.fleet, error=LockStale).words
    epel.write_fleet(f"fingerprints: [{epel.key.fingerprint}]")
    assert "repositories epel.metadata" in verb("lock", "--check", epel.rhel.fleet, error=LockStale).words


def test_without_the_choice_it_is_refused_and_named(epel: Epel, verb: Verb) -> None:
    epel.write_fleet(f"fingerprints: [{epel.key.fingerprint}]")
    words = verb("lock", epel.rhel.fleet, error=RepositoryUntrusted).words
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
def test_half_a_choice_is_refused(epel: Epel, verb: Verb, choice: str, words: str) -> None:
    epel.write_fleet(choice.format(key=epel.key.fingerprint))
    # A name without a preset, which would have the keys.
    epel.rhel.fleet.write_text(epel.rhel.fleet.read_text().replace("epel", "extras"))
    assert words in verb("lock", epel.rhel.fleet, error=FleetInvalid).words


def payload(path: Path) -> int:
    """Where the payload begins: behind the two headers."""
    text = path.read_bytes()
    return text.index(b"\x1f\x8b", 200)


def test_what_no_key_vouches_for_is_refused(epel: Epel, verb: Verb, key: Key) -> None:
    """Whoever serves the repository also writes its index, so the digests there always fit."""
    good = epel.package.read_bytes()
    cases = {
        "another key": (lambda: sign([epel.package], key), "the signature does not hold"),
        "no signature": (
            lambda: subprocess.run(["rpmsign", "--delsign", epel.package], check=True, capture_output=True),
            "the package is not signed",
        ),
        "another payload": (lambda: flip(epel.package, payload(epel.package) + 20), "not the signed one"),
        "a longer payload": (lambda: epel.package.write_bytes(good + b"more"), "not the signed one"),
        "another header": (lambda: flip(epel.package, good.index(b"Fedora Project")), "the signature does not hold"),
    }
    for name, (change, words) in cases.items():
        epel.package.write_bytes(good)
        change()
        epel.publish()
        text = verb("lock", epel.rhel.fleet, error=RepositoryUntrusted).words
        assert words in text, name
        assert DKMS.file in text
        assert not lockfile.beside(epel.rhel.fleet).exists()
    epel.package.write_bytes(good)
    epel.publish()
    lock(epel.rhel.fleet)


def test_a_signed_package_under_another_name_is_refused(epel: Epel, verb: Verb) -> None:
    """An attacker can give out an old signed package as a new one."""
    epel.epel.rewrite("primary", lambda text: text.replace(b'ver="3.4.3"', b'ver="3.9.9"'), epel.key)
    (epel.epel.root / "repodata" / "repomd.xml.asc").unlink()
    words = verb("lock", epel.rhel.fleet, error=RepositoryUntrusted).words
    assert "the index calls it dkms 3.9.9-2.el9 noarch, but the signed package is dkms 0:3.4.3-2.el9 noarch" in words


@pytest.mark.parametrize("size", [0, 50, 96, 110, 300])
def test_a_file_that_is_cut_off_is_refused(epel: Epel, tmp_path: Path, size: int) -> None:
    path = tmp_path / "cut.rpm"
    path.write_bytes(epel.package.read_bytes()[:size])
    expected = ("dkms", DKMS.version, "noarch")
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
    done = run_dnf(tmp_path, "install", "tool")
    assert (done.returncode == 0) is signed, done.stdout + done.stderr
    assert ("GPG check FAILED" in done.stderr) is not signed


def test_a_mirror_signs_what_it_has_checked(
    epel: Epel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    """Hosts then have a signed index; a package that nobody signed never gets there."""
    target = lock(epel.rhel.fleet)
    monkeypatch.setenv("GNUPGHOME", str(epel.rhel.key.home))
    folder = tmp_path / "mirror"
    keys = [word for key in (epel.rhel.key, epel.key) for word in ("--keyring", key.keyring)]
    words = ("mirror", lockfile.beside(epel.rhel.fleet), folder, "--key", epel.rhel.key.fingerprint, *keys)
    assert run(*words, "--no-dependencies") == 0
    (package,) = folder.rglob(DKMS.file)
    assert package.read_bytes() == epel.package.read_bytes()
    assert (folder / "rpm/rhel-9/x86_64/repodata/repomd.xml.asc").is_file()
    # A file in the mirror that its repository never signed, with an index to match.
    shutil.rmtree(folder)
    subprocess.run(["rpmsign", "--delsign", epel.package], check=True, capture_output=True)
    epel.publish()
    old = next(p for p in target.packages if p.package == "dkms")
    primary = gzip.decompress(epel.epel.find("primary").read_bytes())
    new = re.search(rb'pkgid="YES">([0-9a-f]{64})', primary)
    assert new is not None
    changed = old.model_copy(update={"sha256": new[1].decode(), "size": epel.package.stat().st_size})
    packages = tuple(changed if p == old else p for p in target.packages)
    lockfile.write(
        lockfile.beside(epel.rhel.fleet), lockfile.build({"gds": target.model_copy(update={"packages": packages})})
    )
    assert "the package is not signed" in verb(*words, "--no-dependencies", error=RepositoryUntrusted).words
    assert not list(folder.rglob(DKMS.file))
    assert not list(folder.rglob("repomd.xml.asc"))
