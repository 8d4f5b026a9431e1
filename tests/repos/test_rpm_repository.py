"""Trust, from the pinned fingerprint to the package file: every link is broken once."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gdsdeploy.converge.inventory import _indices
from gdsdeploy.errors import FleetInvalid, GdsError, LockStale, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.host.apply.packages.dnf import render_repositories
from gdsdeploy.host.apply.packages.managers import Index as HostIndex
from gdsdeploy.lock import lockfile
from gdsdeploy.model.lock import Index, Target
from gdsdeploy.repo import packagefile
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Relation, Universe
from gdsdeploy.repo.rpm import Repository, read, rpm_relation
from tests.commandline import run
from tests.repos.archive import Key, Server
from tests.repos.conftest import Rhel
from tests.repos.rpmarchive import Rpm, RpmArchive, build, sign

KMOD = "kmod-nvidia-open-dkms"


def fetch(rhel: Rhel, key: Key | None = None, *, now: datetime | None = None) -> Universe:
    """What the CUDA repository offers to somebody who pins ``key``."""
    pinned = key or rhel.key
    repository = Repository("cuda", f"{rhel.server.uri}/cuda", pinned.keyring, (pinned.fingerprint,), "/k")
    with Fetcher(apt={}, sleep=lambda seconds: None) as fetcher:
        return read(fetcher, [repository], "x86_64", now=now)[0]


def flip(path: Path, at: int = -1) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


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


def test_an_unsigned_repository_is_refused(rhel: Rhel) -> None:
    rhel.cuda.sign(None)
    with pytest.raises(RepositoryUntrusted, match=r"cuda/repodata/repomd\.xml: it is not signed"):
        fetch(rhel)


def test_a_missing_repository_is_named(rhel: Rhel) -> None:
    rhel.cuda.repomd.unlink()
    with pytest.raises(RepositoryUnusable, match=r"cuda/repodata/repomd\.xml: there is no such file"):
        fetch(rhel)


def test_a_changed_byte_in_the_index_is_refused(rhel: Rhel) -> None:
    flip(rhel.cuda.repomd)
    with pytest.raises(RepositoryUntrusted, match=r"cuda/repodata/repomd\.xml.*\n.*changed after key"):
        fetch(rhel)


def test_a_signature_by_a_stranger_is_refused(rhel: Rhel, other_key: Key) -> None:
    rhel.cuda.sign(other_key)
    with pytest.raises(RepositoryUntrusted, match="not in the keyring"):
        fetch(rhel)


def test_a_key_of_the_keyring_that_is_not_pinned_is_refused(rhel: Rhel, other_key: Key, tmp_path: Path) -> None:
    rhel.cuda.sign(other_key)
    both = tmp_path / "both.gpg"
    both.write_bytes(rhel.key.keyring.read_bytes() + other_key.keyring.read_bytes())
    with pytest.raises(RepositoryUntrusted, match=f"{other_key.fingerprint}, which is not one of the pinned"):
        fetch(rhel, Key(rhel.key.home, rhel.key.fingerprint, both))


def test_an_expired_key_is_refused(rhel: Rhel, tmp_path: Path) -> None:
    short = Key.generate(tmp_path / "short", "short", expires="seconds=3600", at=datetime.now(UTC) - timedelta(hours=3))
    try:
        rhel.cuda.sign(short)
        with pytest.raises(RepositoryUntrusted, match="the key has expired"):
            fetch(rhel, short)
    finally:
        short.forget()


def test_an_index_from_the_future_is_refused(rhel: Rhel) -> None:
    with pytest.raises(RepositoryUntrusted, match=r"repomd\.xml: this index is dated"):
        fetch(rhel, now=datetime.now(UTC) - timedelta(days=1))


@pytest.mark.parametrize("kind", ["primary", "modules"])
def test_a_changed_byte_in_a_list_is_refused(kind: str, rhel: Rhel) -> None:
    path = rhel.cuda.find(kind)
    flip(path)
    with pytest.raises(RepositoryUntrusted, match=rf"{re.escape(path.name)}: this is not the file that the signed"):
        fetch(rhel)


def test_a_longer_list_is_refused_without_reading_it_all(rhel: Rhel) -> None:
    path = rhel.cuda.find("primary")
    path.write_bytes(path.read_bytes() + b"\0" * 5_000_000)
    with pytest.raises(RepositoryUntrusted, match=r"primary\.xml\.gz: longer than the"):
        fetch(rhel)


def test_a_list_that_is_gone_is_named(rhel: Rhel) -> None:
    rhel.cuda.find("primary").unlink()
    with pytest.raises(RepositoryUnusable, match=r"primary\.xml\.gz: the signed index names this list, but"):
        fetch(rhel)


def test_a_changed_byte_in_a_package_is_refused(rhel: Rhel, tmp_path: Path) -> None:
    package = fetch(rhel).named(KMOD)[0]
    uri = f"{rhel.server.uri}/cuda/{package.filename}"
    with Fetcher(tmp_path / "packages", apt={}) as fetcher:
        assert fetcher.file(uri, sha256=package.sha256, size=package.size).read_bytes().startswith(b"\xed\xab\xee\xdb")
    flip(rhel.cuda.root / package.filename)
    with (
        Fetcher(tmp_path / "others", apt={}) as fetcher,
        pytest.raises(RepositoryUntrusted, match=rf"{re.escape(package.filename)}: this is not the file"),
    ):
        fetcher.file(uri, sha256=package.sha256, size=package.size)


def test_a_list_that_decompresses_to_more_than_it_may_is_refused(rhel: Rhel) -> None:
    """The signature is good; a small file that fills the memory would still be read no further than the index says."""
    text = rhel.cuda.repomd.read_text()
    size = re.search(r"primary.*?<open-size>(\d+)<", text, re.DOTALL)
    assert size
    rhel.cuda.reindex(f"<open-size>{size[1]}<", "<open-size>1000<", rhel.key)
    with pytest.raises(RepositoryUntrusted, match="it decompresses to more than the 1000 bytes"):
        fetch(rhel)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('<checksum type="sha256">', '<checksum type="sha">', "its checksum is a sha, not a sha256"),
        ('href="repodata/', 'href="../', "not a path inside the repository"),
        ('href="repodata/', 'href="http://elsewhere.example/', "not a path inside the repository"),
        ("<size>", f"<size>{10**10}", "not a number of bytes"),
        ("<size>", "<size>-", "not a number of bytes"),
        ('type="primary"', 'type="primarily"', "it lists no primary"),
        ("</repomd>", "", "not well-formed XML"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(old: str, new: str, words: str, rhel: Rhel) -> None:
    rhel.cuda.reindex(old, new, rhel.key)
    with pytest.raises((RepositoryUnusable, RepositoryUntrusted), match=rf"cuda/repodata/repomd\.xml.*{words}"):
        fetch(rhel)


LAUGHS = '<!DOCTYPE l [<!ENTITY a "ha">' + "".join(
    f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("<repomd ", f"{LAUGHS}]>\n<repomd ", "it has a document type"),
        ("<repomd ", '<!DOCTYPE l SYSTEM "file:///etc/passwd">\n<repomd ', "it has a document type"),
        ('encoding="UTF-8"', 'encoding="cp037"', "written in cp037"),
        ('<?xml version="1.0"', '\ufeff<?xml version="1.0"', "this is not XML"),
    ],
)
def test_dangerous_xml_is_not_read_however_well_it_is_signed(old: str, new: str, words: str, rhel: Rhel) -> None:
    rhel.cuda.reindex(old, new, rhel.key)
    with pytest.raises(RepositoryUntrusted, match=rf"repomd\.xml: {words}"):
        fetch(rhel)


def test_a_document_type_in_a_list_is_not_read_either(rhel: Rhel) -> None:
    rhel.cuda.rewrite("primary", lambda text: text.replace(b"<metadata ", b"<!DOCTYPE x []><metadata ", 1), rhel.key)
    with pytest.raises(RepositoryUntrusted, match=r"primary\.xml\.gz: it has a document type"):
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


def test_a_list_with_fewer_packages_than_it_says_is_refused(rhel: Rhel) -> None:
    rhel.cuda.rewrite("primary", lambda text: re.sub(rb'packages="\d+"', b'packages="1000"', text), rhel.key)
    with pytest.raises(RepositoryUnusable, match="it says 1000 packages and has"):
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


def test_a_tampered_file_list_is_refused(rhel: Rhel) -> None:
    flip(rhel.cuda.find("filelists"))
    repository = Repository("cuda", f"{rhel.server.uri}/cuda", rhel.key.keyring, (rhel.key.fingerprint,), "/k")
    with Fetcher(apt={}, sleep=lambda seconds: None) as fetcher:
        universe, _ = read(fetcher, [repository], "x86_64")
        with pytest.raises(RepositoryUntrusted, match=r"filelists\.xml\.gz: this is not the file"):
            universe.answering(rpm_relation("/usr/share/nothing"))


def test_capabilities_are_found_with_what_they_provide(rhel: Rhel) -> None:
    universe = fetch(rhel)
    names = {str(c) for c in universe.answering(rpm_relation("nvidia-kmod", "=", "3:580.95.05"))}
    assert names == {f"{KMOD} 3:580.95.05-1.el9", "kmod-nvidia-latest-dkms 3:580.95.05-1.el9"}
    assert universe.answering(rpm_relation("libcufile.so.0()(64bit)"))
    assert not universe.answering(rpm_relation("nvidia-kmod", ">", "3:600"))


def test_module_metadata_that_cannot_be_read_is_named(rhel: Rhel) -> None:
    rhel.cuda.rewrite("modules", lambda text: text.replace(b"  name: ", b"  nome: "), rhel.key)
    with pytest.raises(RepositoryUnusable, match=r"modules\.yaml\.gz: document 1: not module metadata"):
        fetch(rhel)


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
