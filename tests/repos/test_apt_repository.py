"""Trust, from the pinned fingerprint to the package file: every link is broken once."""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import GdsError, RepositoryUntrusted, RepositoryUnusable, RollbackFailed
from gdsdeploy.host.apply.packages import dnf, managers
from gdsdeploy.host.apply.packages.managers import RETURNING
from gdsdeploy.model.lock import Component, Index, Kernel, LockedDriver, Package, Target
from gdsdeploy.repo import unpack
from gdsdeploy.repo.apt import read
from gdsdeploy.repo.fetch import Fetcher, address
from gdsdeploy.repo.packages import Universe
from gdsdeploy.repo.repository import Repository, verify
from gdsdeploy.rollout import previous_packages
from tests.pins.aptmachine import AptMachine
from tests.repos.archive import Archive, Key, Server, Suite, flip, serve
from tests.repos.stack import package, write_pool

NOW = datetime.now(UTC)
HELLO = package("hello", "1:2.10-3", depends="libc6 (>= 2.34)")


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "www")


@pytest.fixture
def server(archive: Archive) -> Iterator[Server]:
    with serve(archive.root) as running:
        yield running


def suite(name: str = "stable", **changes: Any) -> Suite:
    return Suite(name, {"main": [HELLO]}, **changes)


def fetch(server: Server, key: Key, name: str = "stable", *, components: tuple[str, ...] = ("main",)) -> Universe:
    repository = Repository("test", server.uri, key.keyring, (key.fingerprint,), "/k.gpg", (name,), components)
    with Fetcher(sleep=lambda seconds: None) as fetcher:
        return read(fetcher, [repository], "amd64")[0]


def test_release_with_a_detached_signature_is_read(archive: Archive, server: Server, key: Key) -> None:
    archive.publish(suite(), key, detached=True)
    assert fetch(server, key).named("hello")


def test_a_flat_repository_is_read(archive: Archive, server: Server, key: Key) -> None:
    archive.publish(Suite("x86_64/", {"": [HELLO]}, origin="NVIDIA", by_hash=False, compressions=(".gz",)), key)
    (package,) = fetch(server, key, "x86_64/", components=()).named("hello")
    assert (package.origin, package.component) == ("nvidia", "")


@pytest.mark.parametrize(
    ("origin", "package", "maker"),
    [
        ("NVIDIA CUDA", "hello", "nvidia"),
        ("", "nvidia-fs-dkms", "nvidia"),
        ("", "nvidia-kernel-source-580-open", "nvidia"),
        ("", "hello", ""),
        ("Site", "nvidia-fs-dkms", "site"),
    ],
)
def test_a_local_installer_is_of_nvidia_whatever_its_release_says(
    origin: str, package: str, maker: str, archive: Archive, server: Server, key: Key
) -> None:
    stanza = {**HELLO, "Package": package}
    archive.publish(Suite("/", {"": [stanza]}, origin=origin, by_hash=False, compressions=(".gz", "")), key)
    (candidate,) = fetch(server, key, "/", components=()).named(package)
    assert candidate.origin == maker
    # Again, from the list that was kept.
    assert fetch(server, key, "/", components=()).named(package)[0].origin == maker


def test_backports_have_the_maker_of_what_they_were_ported_from(archive: Archive, server: Server, key: Key) -> None:
    archive.publish(suite("stable-backports", origin="Debian Backports"), key)
    (package,) = fetch(server, key, "stable-backports").named("hello")
    assert (package.origin, package.suite) == ("debian", "stable-backports")


#: A relation, fields of a package ``x`` in version 1, and whether that answers it.
QUALIFIED: tuple[tuple[str, dict[str, str], bool], ...] = (
    ("x", {}, True),
    ("x:amd64", {}, True),
    ("x:native", {}, True),
    ("x:i386", {}, False),
    ("x:any", {}, False),
    ("x:any", {"multi_arch": "foreign"}, False),
    ("x:any (= 1)", {"multi_arch": "allowed"}, True),
    ("x:any (>> 1)", {"multi_arch": "allowed"}, False),
    ("v", {"provides": "v:amd64"}, True),
    ("v:amd64", {"provides": "v (= 2)"}, True),
    ("v:any", {"provides": "v:any"}, True),
    ("v:any", {"provides": "v", "multi_arch": "allowed"}, True),
    ("v:any", {"provides": "v:amd64", "multi_arch": "allowed"}, False),
    ("v:any", {"provides": "v", "multi_arch": "foreign"}, False),
    ("v", {"provides": "v:any"}, False),
    ("v:i386", {"provides": "v:i386"}, True),
    ("v", {"provides": "v (>= 1)"}, False),
)


def test_qualifiers_of_architectures_mean_what_they_mean_to_apt(
    archive: Archive, server: Server, key: Key, tmp_path: Path
) -> None:
    """Both as a dependency and as a conflict, which apt can't meet where it can't do without the package."""
    stanzas = []
    for number, (relation, fields, _) in enumerate(QUALIFIED):
        own = re.sub(r"^([xv])", rf"\g<1>{number}", relation)
        offers = {each: re.sub(r"^v", f"v{number}", value) for each, value in fields.items()}
        stanzas += [
            package(f"x{number}", "1", **offers),
            package(f"needs{number}", "1", depends=own),
            package(f"bars{number}", "1", depends=f"x{number}", conflicts=own),
        ]
    archive.publish(Suite("stable", {"main": stanzas}), key)
    machine = AptMachine.make(tmp_path / "machine", ())
    machine.source("it", f"deb [signed-by={key.keyring}] {server.uri} stable main")
    machine.run("apt-get", "--error-on=any", "update")
    universe = fetch(server, key)
    unmet = machine.run("apt-cache", "unmet")
    for number, (relation, fields, answers) in enumerate(QUALIFIED):
        needs, bars = (universe.named(f"{word}{number}")[0] for word in ("needs", "bars"))
        (group,), (conflict,) = needs.depends, bars.conflicts
        mine = [[c.package for c in universe.answering(each)] == [f"x{number}"] for each in (group[0], conflict)]
        by_apt = [f"Package needs{number} " not in unmet, not machine.simulate("install", f"bars{number}")]
        assert (mine, by_apt) == ([answers] * 2, [answers] * 2), (relation, fields)


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ({}, {"hello", "common"}),
        ({"Architectures": "amd64"}, {"hello"}),
        ({"Architectures": "all"}, {"hello", "common"}),
        ({"Architectures": ""}, {"hello", "common"}),
        ({"No-Support-for-Architecture-all": "Contents Packages"}, {"hello"}),
        ({"Components": "other"}, {"hello", "common"}),
    ],
)
def test_what_is_of_all_architectures_may_be_apart(
    release: dict[str, str], expected: set[str], archive: Archive, server: Server, key: Key, tmp_path: Path
) -> None:
    common = package("common", "1", architecture="all")
    archive.publish(Suite("stable", {"main": [HELLO, common]}, all_apart=True, fields=release), key)
    machine = AptMachine.make(tmp_path / "machine", ())
    machine.source("it", f"deb [signed-by={key.keyring}] {server.uri} stable main")
    machine.run("apt-get", "--error-on=any", "update")
    assert {name for name in ("hello", "common") if machine.candidate(name)} == expected
    assert fetch(server, key).names() == expected


def test_a_component_has_no_package_for_an_architecture(archive: Archive, server: Server, key: Key) -> None:
    archive.publish(Suite("stable", {"main": [HELLO]}, fields={"Components": "main contrib"}), key)
    assert fetch(server, key, components=("main", "contrib")).names() == {"hello"}


def test_a_file_with_a_blank_in_its_name(archive: Archive, server: Server, key: Key, tmp_path: Path) -> None:
    stanza = {**package("plain", "1"), "Filename": "pool/a folder/plain 1.deb"}
    write_pool(archive.root, [stanza])
    archive.publish(Suite("stable", {"main": [stanza]}), key)
    machine = AptMachine.make(tmp_path / "machine", ())
    machine.source("it", f"deb [signed-by={key.keyring}] {server.uri} stable main")
    machine.run("apt-get", "--error-on=any", "update")
    machine.run("apt-get", "--yes", "--download-only", "install", "plain")
    (found,) = fetch(server, key).named("plain")
    with Fetcher(tmp_path / "first") as fetcher:
        assert fetcher.file(address(server.uri, found.filename), sha256=found.sha256, size=found.size)


def test_package_lists_are_taken_by_hash_where_that_is_offered(archive: Archive, server: Server, key: Key) -> None:
    archive.publish(suite(), key)
    fetch(server, key)
    lists = [line for line in server.log if "Packages" in line or "by-hash" in line]
    assert len(lists) == 1
    assert "/by-hash/SHA256/" in lists[0]


def test_a_list_that_is_known_is_neither_fetched_nor_unpacked_again(
    archive: Archive, server: Server, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.publish(suite(), key)
    fetch(server, key)
    server.log.clear()
    monkeypatch.setitem(unpack._READERS, "xz", None)
    assert fetch(server, key).named("hello")
    assert [line.split()[1] for line in server.log] == ["/dists/stable/InRelease"]


def test_a_damaged_cache_is_fetched_anew(archive: Archive, server: Server, key: Key, tmp_path: Path) -> None:
    archive.publish(suite(), key)
    fetch(server, key)
    cached = [path for path in (tmp_path / "cache" / "repo").rglob("*") if path.is_file()]
    assert len(cached) == 2  # as it was fetched, and unpacked
    for path in cached:
        path.write_bytes(b"x" * path.stat().st_size)
    assert fetch(server, key).named("hello")


@pytest.mark.parametrize("suffix", [False, True])
def test_text_around_the_signed_text_is_not_read(suffix: bool, archive: Archive, server: Server, key: Key) -> None:
    """If it were, the index would be an expired one."""
    archive.publish(suite(valid_for=None), key)
    path = archive.folder("stable") / "InRelease"
    expired, signed = b"Valid-Until: Thu, 01 Jan 1970 00:00:00 GMT\n\n", path.read_bytes()
    path.write_bytes(signed + expired if suffix else expired + signed)
    assert fetch(server, key).named("hello")


def test_an_expired_key_is_refused(archive: Archive, server: Server, tmp_path: Path) -> None:
    short = Key.generate(tmp_path / "short", "short", expires="seconds=3600", at=datetime.now(UTC) - timedelta(hours=3))
    try:
        archive.publish(suite(), short)
        with pytest.raises(RepositoryUntrusted, match="the key has expired"):
            fetch(server, short)
    finally:
        short.forget()


@dataclass
class Offer:
    """An archive that can be broken, and who asks for what."""

    archive: Archive
    #: pinned by who asks
    key: Key
    other_key: Key
    suite: str = "stable"
    components: tuple[str, ...] = ("main",)

    def publish(self, key: Key | None = None, name: str = "stable", **changes: Any) -> Path:
        """Publish one suite, by default signed with the pinned key; returns its folder."""
        detached = changes.pop("detached", False)
        self.archive.architectures = changes.pop("architectures", ("amd64",))
        self.archive.publish(suite(name, **changes), key or self.key, detached=detached)
        return self.archive.folder(name)

    def other_components(self) -> None:
        self.publish()
        self.components = ("main", "non-free")

    def other_suite(self) -> None:
        self.publish()
        self.suite = "trixie"

    def other_keyring(self) -> None:
        self.publish()
        self.key = replace(self.key, keyring=self.key.home / "none.gpg")

    def both_keys(self) -> None:
        """The stranger's key is in the keyring, too."""
        self.publish(self.other_key)
        keyring = self.archive.root / "both.gpg"
        keyring.write_bytes(self.key.keyring.read_bytes() + self.other_key.keyring.read_bytes())
        self.key = replace(self.key, keyring=keyring)

    def tampered(self) -> None:
        path = self.publish() / "InRelease"
        path.write_bytes(path.read_bytes().replace(b"Label: Debian", b"Label: debian"))

    def tampered_detached(self) -> None:
        (self.publish(detached=True) / "Release").open("ab").write(b"X: y\n")

    def unsigned(self) -> Path:
        self.archive.publish(suite(), None)
        return self.archive.folder("stable")

    def unsigned_in_place_of_signed(self) -> None:
        (self.unsigned() / "Release").rename(self.archive.folder("stable") / "InRelease")

    def another_suite_under_this_name(self) -> None:
        self.publish(name="oldstable").rename(self.archive.folder("stable"))

    def tampered_list(self) -> None:
        self.publish()
        for path in self.archive.root.rglob("by-hash/SHA256/*"):
            flip(path, -1)

    def longer_list(self) -> None:
        self.publish(by_hash=False, compressions=(".gz",))
        (path,) = self.archive.root.rglob("Packages.gz")
        path.open("ab").write(bytes(5_000_000))

    def lost_list(self) -> None:
        self.publish()
        for path in (*self.archive.root.rglob("Packages*"), *self.archive.root.rglob("by-hash/SHA256/*")):
            path.unlink()


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [
        (Offer.tampered, RepositoryUntrusted, r"dists/stable/InRelease.*\n.*changed after key"),
        (Offer.tampered_detached, RepositoryUntrusted, "dists/stable/Release"),
        (lambda offer: offer.publish(offer.other_key), RepositoryUntrusted, "not in the keyring"),
        (Offer.both_keys, RepositoryUntrusted, "[0-9A-F]{40}, which is not one of the pinned"),
        (Offer.unsigned, RepositoryUnusable, r"neither InRelease nor Release with Release\.gpg"),
        (Offer.unsigned_in_place_of_signed, RepositoryUntrusted, "it is not signed"),
        (lambda offer: offer.publish(date=NOW - timedelta(days=8)), RepositoryUntrusted,
         "InRelease: this index was valid until"),
        (lambda offer: offer.publish(date=NOW + timedelta(days=1)), RepositoryUntrusted, "this index is dated"),
        (Offer.another_suite_under_this_name, RepositoryUntrusted, "the index of oldstable, not of stable"),
        (Offer.tampered_list, RepositoryUntrusted, "by-hash/SHA256/.*not the file that the signed index names"),
        (Offer.longer_list, RepositoryUntrusted, r"Packages\.gz: longer than the"),
        (Offer.lost_list, RepositoryUnusable,
         "main/binary-amd64/Packages: the signed index names this list, but"),
        (lambda offer: offer.publish(fields={"Suite": "", "Codename": ""}), RepositoryUntrusted,
         "InRelease: it has neither Suite nor Codename"),
        (lambda offer: offer.publish(fields={"Architectures": "arm64"}, architectures=("arm64",)), RepositoryUnusable,
         "stable lists no main/binary-amd64/Packages"),
        (Offer.other_components, RepositoryUnusable, "stable has no component non-free; it has main"),
        (Offer.other_suite, RepositoryUnusable, "dists/trixie/: there is neither InRelease"),
        (Offer.other_keyring, RepositoryUnusable, r"none\.gpg: there is no such keyring"),
    ],
)  # fmt: skip
def test_a_broken_link_of_trust_is_refused(
    broken: Callable[[Offer], object], error: type[GdsError], words: str, archive: Archive, server: Server, key: Key,
    other_key: Key,
) -> None:  # fmt: skip
    offer = Offer(archive, key, other_key)
    broken(offer)
    with pytest.raises(error, match=words):
        fetch(server, offer.key, offer.suite, components=offer.components)


def test_the_next_compression_is_taken_where_the_best_is_gone(archive: Archive, server: Server, key: Key) -> None:
    archive.publish(suite(compressions=(".gz",)), key)
    assert fetch(server, key).named("hello")


@pytest.mark.parametrize("lost", ["by-hash", "Packages.xz", "InRelease"])
def test_a_server_that_refuses_what_it_does_not_have(
    lost: str, archive: Archive, server: Server, key: Key, tmp_path: Path
) -> None:
    """As S3 does where nobody may list: it's looked for elsewhere where apt does so, which it doesn't for InRelease."""
    server.instead[404] = 403
    archive.publish(suite(by_hash=lost == "by-hash"), key, detached=lost == "InRelease")
    for path in archive.root.rglob("*"):
        if path.is_file() and lost in str(path):
            path.unlink()
    machine = AptMachine.make(tmp_path / "machine", ())
    machine.source("it", f"deb [signed-by={key.keyring}] {server.uri} stable main")
    machine.run("apt-get", "update", ok=(0, 100))
    assert (machine.candidate("hello") != "") is (lost != "InRelease")
    if lost != "InRelease":
        assert fetch(server, key).named("hello")
        return
    with pytest.raises(RepositoryUnusable, match="InRelease: the server answered with status 403") as error:
        fetch(server, key)
    assert "`credentials`" in (error.value.hint or "")


def test_a_server_that_does_not_answer_is_named_after_three_tries(key: Key) -> None:
    waited: list[float] = []
    repository = Repository("t", "http://127.0.0.1:9", key.keyring, (key.fingerprint,), "/k", ("s",), ("main",))
    with Fetcher(sleep=waited.append) as fetcher, pytest.raises(RepositoryUnusable, match=r"127\.0\.0\.1:9.*3 tries"):
        read(fetcher, [repository], "amd64")
    assert waited == [0.5, 1.0]


def test_a_repository_on_disk_is_read(archive: Archive, key: Key) -> None:
    archive.publish(suite(), key)
    assert fetch(Server(archive.root.as_uri(), []), key).named("hello")


def deb(folder: Path, version: str) -> Path:
    """A package nvidia-small of dpkg's own."""
    root = folder / version
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: nvidia-small\nVersion: {version}\nArchitecture: amd64\nDepends: libc6 (>= 2.36)\n"
        "Maintainer: nobody <nobody@archive.example>\nDescription: small\n with a second line\n"
    )
    path = folder / f"nvidia-small_{version}_amd64.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", root, path], check=True, capture_output=True)
    return path


# -- The packages that a host had before: fetched once, kept whatever the archive does, and offered signed.


def locked(file: Path) -> Package:
    data, version = file.read_bytes(), file.name.split("_")[1]
    return Package(
        package="nvidia-small", version=version, architecture="amd64", part="driver-userland", needed_by="host",
        file=f"pool/{file.name}", size=len(data), sha256=hashlib.sha256(data).hexdigest(), repository="small",
        suite="stable", component="main",
    )  # fmt: skip


def target(root: Path, *packages: Package) -> Target:
    index = Index(
        repository="small", uri=f"file://{root}", suite="stable", components=("main",), date="2026-01-01T00:00:00Z",
        signed_by="A" * 40, host_keyring="/etc/apt/keyrings/gdsdeploy-small.gpg",
    )  # fmt: skip
    return Target(
        os="debian-13",
        arch="x86_64",
        kernel=Kernel(release="6.12.94+deb13-amd64", version="1"),
        driver=LockedDriver(version="550.1", flavour="open", source_tree="/usr/src/nvidia", dkms_name="nvidia"),
        nvidia_fs=None,
        libcufile=Component(version="1.9.1.3"),
        gds_tools=None,
        rules=(),
        pins={},
        indices=(index,),
        packages=packages,
    )


@pytest.fixture
def small_archive(tmp_path: Path) -> Path:
    root = tmp_path / "archive"
    (root / "pool").mkdir(parents=True)
    for version in ("1", "2"):
        deb(tmp_path, version).rename(root / f"pool/nvidia-small_{version}_amd64.deb")
    return root


def test_only_what_the_new_lock_does_not_have_is_needed(small_archive: Path) -> None:
    one, two = (locked(small_archive / f"pool/nvidia-small_{version}_amd64.deb") for version in ("1", "2"))
    assert previous_packages.differing_packages([one], [two]) == [one]
    assert previous_packages.differing_packages([one], [one, two]) == []


def test_what_was_fetched_outlives_the_archive(small_archive: Path) -> None:
    one = locked(small_archive / "pool/nvidia-small_1_amd64.deb")
    lock_target = target(small_archive, one)
    messages: list[str] = []
    first = previous_packages.fetch_packages(lock_target, [one], messages.append)
    assert len(messages) == 1
    (small_archive / one.file).unlink()
    assert previous_packages.fetch_packages(lock_target, [one], messages.append) == first
    assert len(messages) == 1, "it was fetched once"
    assert hashlib.sha256(first[one].read_bytes()).hexdigest() == one.sha256


def test_what_cannot_be_had_is_listed_before_anything_is_changed(small_archive: Path) -> None:
    absent, changed = (locked(small_archive / f"pool/nvidia-small_{version}_amd64.deb") for version in ("1", "2"))
    (small_archive / absent.file).unlink()
    (small_archive / changed.file).write_bytes(b"x" * changed.size)
    with pytest.raises(RollbackFailed) as caught:
        previous_packages.fetch_packages(target(small_archive, absent, changed), [absent, changed], lambda _: None)
    assert re.search(r"nvidia-small 1: .*no such file", caught.value.message)
    assert re.search(r"nvidia-small 2: .*not the file that the signed index names", caught.value.message)
    assert "mirror" in str(caught.value.hint)


def test_the_offer_is_a_signed_repository_that_is_gone_afterwards(small_archive: Path, tmp_path: Path) -> None:
    one = locked(small_archive / "pool/nvidia-small_1_amd64.deb")
    lock_target = target(small_archive, one)
    files = previous_packages.fetch_packages(lock_target, [one], lambda _: None)
    with previous_packages.offer_packages(lock_target, files) as offer:
        assert offer is not None
        with tarfile.open(offer.archive) as tar:
            tar.extractall(tmp_path / "host", filter="data")
        listing = ["gpg", "--batch", "--with-colons", "--show-keys", str(offer.keyring)]
        shown = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
        fingerprint = next(line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr:"))
        release = tmp_path / "host/dists/restore/InRelease"
        signed = verify(release.read_bytes(), keyring=offer.keyring, fingerprints=[fingerprint], name="InRelease")
        folder = offer.archive.parent
    assert not folder.exists(), "the key with which it was signed has gone, too"
    packages = (tmp_path / "host/dists/restore/stack/binary-amd64/Packages").read_bytes()
    assert hashlib.sha256(packages).hexdigest() in signed.text.decode()
    text = packages.decode()
    assert "Depends: libc6 (>= 2.36)\n" in text
    assert f"SHA256: {one.sha256}\n" in text
    place = next(line.removeprefix("Filename: ") for line in text.splitlines() if line.startswith("Filename: "))
    assert hashlib.sha256((tmp_path / "host" / place).read_bytes()).hexdigest() == one.sha256


def test_where_nothing_has_to_come_back_nothing_is_offered(small_archive: Path) -> None:
    with previous_packages.offer_packages(target(small_archive), {}) as offer:
        assert offer is None


def test_a_host_with_dnf_gets_the_files_by_the_names_that_it_looks_for(small_archive: Path) -> None:
    one = locked(small_archive / "pool/nvidia-small_1_amd64.deb").model_copy(update={"version": "3:1-1.el9"})
    lock_target = target(small_archive, one).model_copy(update={"os": "rhel-9"})
    files = previous_packages.fetch_packages(lock_target, [one], lambda _: None)
    (small_archive / one.file).unlink()
    with previous_packages.offer_packages(lock_target, files) as offer:
        assert offer is not None
        assert offer.keyring is None
        with tarfile.open(offer.archive) as tar:
            (member,) = tar
            content = tar.extractfile(member)
            assert content is not None
            assert hashlib.sha256(content.read()).hexdigest() == one.sha256
    assert f"{RETURNING}/{member.name}" == dnf.file_of(managers.Package("nvidia-small", "3:1-1.el9"))
