"""``gdsdeploy mirror``: exactly the locked files and what they need, signed.

The real apt and the real dnf install the locked stack from it and from nothing else.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gdsdeploy.errors import (
    GdsError,
    LockStale,
    MissingProgram,
    NoSolution,
    RepositoryUntrusted,
    RepositoryUnusable,
)
from gdsdeploy.host.apply.packages.dnf import render_repositories
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror import fill as mirror, host_sources
from gdsdeploy.mirror.fill import closure
from gdsdeploy.mirror.writing import RECORD
from gdsdeploy.model.fleet import Mirror
from gdsdeploy.model.lock import Target
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import DEB, RPM, Candidate, Origin, PackageList, Universe
from gdsdeploy.repo.repository import Repository, verify
from gdsdeploy.repo.rpm import nevra, read
from tests import commandline
from tests.pins.aptmachine import AptMachine
from tests.repos import rpmstack
from tests.repos.archive import Archive, Key, Suite, files, flip
from tests.repos.conftest import Debian, Rhel, Ubuntu, lock, publish_all, serve_rhel, signed_by
from tests.repos.rpmarchive import DNF_ENVIRONMENT, Rpm, RpmArchive, Stream, build, run_dnf, sign
from tests.repos.stack import TRIXIE, for_arm64, package, suites, text, without

FOLDER = "rpm/rhel-9/x86_64"
TOOL = "python3-dnf-plugin-versionlock"
DRIVER_FILE = "nvidia-kmod-common-580.95.05-1.el9.noarch.rpm"


@dataclass
class Mirroring:
    """A lock of served repositories, which is mirrored to ``folder`` by a user whose own key is not the makers'."""

    site: Debian | Rhel
    target: Target
    key: Key
    folder: Path
    #: the file of a locked package in its repository, and how a message names the package
    file: Path
    words: str

    @classmethod
    def of(
        cls, site: Debian | Rhel, key: Key, folder: Path, file: str, words: str, capsys: pytest.CaptureFixture[str]
    ) -> Mirroring:
        """With a new lock; the server's log is empty again."""
        target = lock(site.fleet)
        site.server.log.clear()
        capsys.readouterr()
        (path,) = (site.fleet.parent / "www").rglob(file)
        return cls(site, target, key, folder, path, words)

    @property
    def lock(self) -> Path:
        return lockfile.beside(self.site.fleet)

    def run(self, *more: str, key: str = "") -> int:
        """The exit code of ``gdsdeploy mirror``."""
        words = ("--keyring", self.site.key.keyring, "--key", key or self.key.fingerprint)
        return commandline.run("mirror", self.lock, self.folder, *words, *more)

    def downloads(self) -> list[str]:
        """Packages that were asked for."""
        return [line.split()[1] for line in self.site.server.log if re.search(r"\.(deb|rpm) ", line)]

    def packages(self) -> list[Path]:
        """Those in the mirror."""
        return [path for path in self.folder.rglob("*") if path.suffix in (".deb", ".rpm")]

    def indices(self) -> list[Path]:
        """Folders in the mirror with what it offers."""
        return [*self.folder.glob("dists"), *self.folder.rglob("repodata")]

    def lose(self) -> None:
        """Let the package vanish from its repository."""
        if isinstance(self.site, Debian):
            self.site.publish(suites(without(TRIXIE, self.words.split()[0])))
        else:
            self.file.unlink()
            self.site.cuda.publish(self.site.key)


@pytest.fixture
def apt(
    debian: Debian, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Mirroring:
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))
    words = "nvidia-fs-dkms 2.19.7~12.4.1-2"
    return Mirroring.of(debian, other_key, tmp_path / "mirror", "nvidia-fs-dkms_*.deb", words, capsys)


@pytest.fixture(scope="module")
def signed_pool(tmp_path_factory: pytest.TempPathFactory, rpm_pool: Path, key: Key) -> Path:
    """The repositories with packages that their maker signed."""
    root = tmp_path_factory.mktemp("signed") / "www"
    shutil.copytree(rpm_pool, root)
    # What the role installs beside the lock, in two versions.
    versions = ("4.3.0-13.el9", "4.3.0-16.el9")
    tools = build([Rpm(TOOL, version, "noarch", requires=("python3",)) for version in versions], root.parent / "tools")
    for path in tools.glob("*.rpm"):
        path.rename(root / "baseos" / path.name)
    sign(root.glob("*/*.rpm"), key)
    RpmArchive(root / "cuda", streams=rpmstack.STREAMS).publish(key)
    RpmArchive(root / "baseos").publish(key)
    return root


@pytest.fixture
def site(tmp_path: Path, signed_pool: Path, key: Key) -> Iterator[Rhel]:
    """The signed packages, served, and a fleet file for them."""
    with serve_rhel(tmp_path, signed_pool, key) as offer:
        yield offer


@pytest.fixture
def rpm(
    site: Rhel, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Mirroring:
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))
    words = "nvidia-kmod-common 3:580.95.05-1.el9 (cuda)"
    return Mirroring.of(site, other_key, tmp_path / "mirror", DRIVER_FILE, words, capsys)


@pytest.fixture(params=["apt", "rpm"])
def either(request: pytest.FixtureRequest) -> Mirroring:
    """Of both families."""
    made: Mirroring = request.getfixturevalue(request.param)
    return made


def test_a_second_run_downloads_nothing_and_changes_nothing(either: Mirroring) -> None:
    assert either.run() == 0
    before = files(either.folder)
    either.site.server.log.clear()
    assert either.run() == 0
    assert either.downloads() == []
    assert files(either.folder) == before


def test_an_interrupted_run_is_finished_by_the_next(
    either: Mirroring, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch, begun, counting = Fetcher.file, [0], threading.Lock()

    def stopped(self: Fetcher, uri: str, *, sha256: str, size: int) -> Path:
        with counting:
            begun[0] += uri.endswith((".deb", ".rpm"))
            if begun[0] > 5:
                raise KeyboardInterrupt
        return fetch(self, uri, sha256=sha256, size=size)

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "file", stopped)
        assert either.run() == 130
    assert "Traceback" not in capsys.readouterr().err
    assert len(either.packages()) == 5
    assert either.indices() == [], "nothing is offered that is not whole"
    assert either.run("--json") == 0
    assert json.loads(capsys.readouterr().out)["present"] == 5
    assert list(either.folder.rglob(".*")) == []


def test_a_changed_byte_in_the_repository_is_refused_by_name(
    either: Mirroring, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(either.file, -1)
    assert either.run() == RepositoryUntrusted.exit_code
    assert either.file.name in re.sub(r"\s", "", capsys.readouterr().err)
    assert not [path for path in either.packages() if path.name == either.file.name]
    assert either.indices() == []


def test_a_locked_file_that_is_gone_is_named(either: Mirroring, capsys: pytest.CaptureFixture[str]) -> None:
    either.lose()
    assert either.run() == LockStale.exit_code
    assert either.words in capsys.readouterr().err
    assert either.downloads() == []


def test_a_damaged_file_of_the_mirror_is_fetched_again(either: Mirroring, capsys: pytest.CaptureFixture[str]) -> None:
    assert either.run() == 0
    (path,) = (path for path in either.packages() if path.name == either.file.name)
    flip(path)
    either.site.server.log.clear()
    assert either.run() == 0
    assert path.read_bytes() == either.file.read_bytes()
    assert len(either.downloads()) == 1
    words = f"{path.relative_to(either.folder)}: damaged; fetching it again"
    assert words in " ".join(capsys.readouterr().err.split())


def test_exactly_the_locked_files_and_what_they_need_by_apt(apt: Mirroring, capsys: pytest.CaptureFixture[str]) -> None:
    assert apt.run("--json") == 0
    report = json.loads(capsys.readouterr().out)
    system = {"linux-base", "initramfs-tools", "libc6", "gcc-14", "pahole", "kmod", "dpkg-dev", "make", "python3",
              "libnuma1"}  # fmt: skip
    stack = {package.package for package in apt.target.packages}
    assert report["suites"] == [
        {"os": "debian-13", "architecture": "amd64", "stack": len(stack), "system": len(system)}
    ]
    pool = {path.name.split("_")[0] for path in apt.packages()}
    assert pool == stack | system
    assert len(apt.downloads()) == report["downloaded"] == len(pool)
    release = apt.folder / "dists" / "debian-13"
    keyring, pin = Path(report["keyring"]), [apt.key.fingerprint]
    signed = verify((release / "InRelease").read_bytes(), keyring=keyring, fingerprints=pin, name="InRelease")
    assert signed.text == (release / "Release").read_bytes()
    detached = (release / "Release.gpg").read_bytes()
    verify(signed.text, detached=detached, keyring=keyring, fingerprints=pin, name="Release")
    listed = (release / "stack" / "binary-amd64" / "Packages").read_text()
    stanza = next(block for block in listed.split("\n\n") if block.startswith("Package: nvidia-fs-dkms\n"))
    original = next(entry for entry in TRIXIE if entry["Package"] == "nvidia-fs-dkms")
    assert f"Depends: {original['Depends']}\n" in stanza
    assert re.findall(r"^Filename: .*/", stanza, re.MULTILINE) == ["Filename: pool/debian/"]
    assert not (apt.folder / ".part").exists()


def test_a_changed_signature_of_the_mirror_is_made_anew(apt: Mirroring) -> None:
    assert apt.run() == 0
    path = apt.folder / "dists" / "debian-13" / "InRelease"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"Label: gdsdeploy", b"Label: somebody"))
    assert apt.run() == 0
    assert b"Label: gdsdeploy" in path.read_bytes()


def test_a_dependency_that_nobody_offers_is_named_unless_they_are_left_out(
    apt: Mirroring, debian: Debian, capsys: pytest.CaptureFixture[str]
) -> None:
    debian.publish(suites(without(TRIXIE, "make", "pahole")))
    assert apt.run() == NoSolution.exit_code
    output = capsys.readouterr().err
    assert "dkms 3.2.2-1~deb13u1 needs make | build-essential" in output
    assert "needs pahole" in output
    assert apt.run("--no-dependencies") == 0
    assert not list(apt.folder.rglob("libc6_*"))
    assert list(apt.folder.rglob("libcuda1_*"))


def test_without_a_key_those_there_are_are_listed(apt: Mirroring, capsys: pytest.CaptureFixture[str]) -> None:
    assert commandline.run("mirror", apt.lock, apt.folder) == GdsError.exit_code
    output = capsys.readouterr().err
    assert apt.key.fingerprint in output
    assert "--quick-generate-key" in output
    assert apt.run(key="A" * 40) == GdsError.exit_code
    assert "there is no secret key with this fingerprint" in capsys.readouterr().err


def install_from_mirror(mirror_folder: Path, target: Target, machine: AptMachine) -> set[str]:
    """Names of what the real apt takes for the locked stack, on a machine that has nothing and this one source."""
    wish = Mirror(uri=mirror_folder.as_uri(), keyring=f"{mirror_folder}/{mirror.KEYRING}")
    (source,), keyrings = host_sources.of_mirror(wish, target, mirror_folder, {})
    (key,) = keyrings.values()
    place = f"{source.uri} {source.suite} {' '.join(source.components)}"
    machine.source("mirror", f"deb [signed-by={key}] {place}")
    machine.run("apt-get", "--error-on=any", "update")
    expected = [f"{package.package}={package.version}" for package in target.packages]
    taken = machine.simulate("install", *expected)
    machine.run("apt-get", "--yes", "--download-only", "install", *expected)
    return set(taken)


def test_apt_itself_takes_the_whole_stack_from_the_mirror_and_nothing_else(apt: Mirroring, tmp_path: Path) -> None:
    """So all that is needed is there, signed, and of the locked version."""
    assert apt.run() == 0
    taken = install_from_mirror(apt.folder, apt.target, AptMachine.make(tmp_path / "machine", ()))
    assert taken == {path.name.split("_")[0] for path in apt.packages()}


def test_one_suite_serves_both_architectures_and_all_repositories_of_an_address(
    debian: Debian, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two profiles have their packages from one archive, of which each component is a repository of its own."""
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))
    stanzas = [*TRIXIE, *(for_arm64(stanza) for stanza in TRIXIE if stanza["Architecture"] != "all")]
    rest = [stanza for stanza in stanzas if stanza["Package"].startswith(("nvidia", "lib"))]
    own = [stanza for stanza in stanzas if stanza not in rest]
    debian.archive.architectures = ("amd64", "arm64")
    debian.publish([Suite("trixie", {"main": own, "non-free": rest})])
    entry = f"uri: '{debian.server.uri}', suites: [trixie], {signed_by(debian.key)}"
    repositories = {name: f"{entry}, components: [{name}]" for name in ("main", "non-free")}
    debian.write(repositories, "os: debian-13")
    profiles = "profiles:\n  arm: {os: debian-13, arch: aarch64, repositories: [main, non-free]}\n"
    debian.fleet.write_text(debian.fleet.read_text().replace("profiles:\n", profiles) + "  gpu2: arm\n")
    assert commandline.run("lock", debian.fleet) == 0
    path, folder = lockfile.beside(debian.fleet), tmp_path / "mirror"
    words = ("--keyring", debian.key.keyring, "--key", other_key.fingerprint)
    assert commandline.run("mirror", path, folder, *words) == 0
    carried = {file.name for file in folder.rglob("*.deb")}
    for name, architecture in (("gds", "amd64"), ("arm", "arm64")):
        machine = AptMachine.make(tmp_path / architecture, (), architecture)
        taken = install_from_mirror(folder, lockfile.read(path).targets[name], machine)
        assert taken == {file.split("_")[0] for file in carried if file.endswith((f"_{architecture}.deb", "_all.deb"))}


def test_two_repositories_of_one_name_have_different_files_of_all_architectures(apt: Mirroring, debian: Debian) -> None:
    """As NVIDIA's, of which each architecture has its own."""
    there = Archive(debian.archive.root / "arm", ("arm64",))
    dkms = next(stanza for stanza in TRIXIE if stanza["Package"] == "dkms")
    publish_all(there, suites([{**dkms, "SHA256": "1" * 64}]), debian.key)
    (locked,) = (package for package in apt.target.packages if package.package == "dkms")
    indices = tuple(index.model_copy(update={"uri": f"{index.uri}/arm"}) for index in apt.target.indices)
    packages = (locked.model_copy(update={"sha256": "1" * 64}),)
    arm = apt.target.model_copy(update={"arch": "aarch64", "indices": indices, "packages": packages})
    mirror._require_one_file_each([apt.target, arm])
    with Fetcher() as fetcher:
        content = mirror.apt_content(
            "dists/debian-13", [arm, apt.target], fetcher, [debian.key.keyring], dependencies=False
        )
    files = {file.place: (file.uri, file.sha256) for file in content.files if "dkms_3" in file.place}
    name = Path(locked.file).name
    assert files == {
        f"pool/debian/{name}": (f"{debian.server.uri}/{locked.file}", locked.sha256),
        f"pool/debian-arm64/{name}": (f"{debian.server.uri}/arm/{locked.file}", "1" * 64),
    }


def test_two_files_of_one_version_cannot_be_in_one_mirror(apt: Mirroring) -> None:
    first, *others = apt.target.packages
    other = first.model_copy(update={"repository": "site", "sha256": "0" * 64})
    with pytest.raises(RepositoryUnusable, match=rf"{first.package} .* of debian and of site aren't the same file"):
        mirror._require_one_file_each([apt.target, apt.target.model_copy(update={"packages": (*others, other)})])


def universe(*stanzas: dict[str, str]) -> Universe:
    where = Origin("debian", "trixie", "main", "debian", ("amd64", "all"), "Packages")
    return Universe([PackageList(text(stanzas), where)])


def names(candidates: list[Candidate]) -> set[str]:
    return {str(candidate) for candidate in candidates}


def test_of_alternatives_the_locked_one_counts_then_the_first_in_its_newest_version() -> None:
    offer = universe(
        package("root", "1", depends="locked-x | other, a | b, virtual, versioned (<< 2)"),
        package("locked-x", "1"), package("other", "1"), package("a", "1"), package("a", "2"), package("b", "1"),
        package("provider", "1", provides="virtual"), package("versioned", "1"), package("versioned", "2"),
    )  # fmt: skip
    roots = [*offer.named("root"), *offer.named("locked-x")]
    members, lacking = closure(roots, offer, DEB)
    assert (names(members), lacking) == ({"a 2", "provider 1", "versioned 1"}, [])


def test_two_that_want_different_versions_both_get_theirs_and_circles_end() -> None:
    offer = universe(
        package("one", "1", depends="lib (= 1), two"), package("two", "1", pre_depends="lib (= 2), one"),
        package("lib", "1"), package("lib", "2", depends="two, none (>= 3) | nothing"),
    )  # fmt: skip
    members, lacking = closure(offer.named("one"), offer, DEB)
    assert names(members) == {"two 1", "lib 1", "lib 2"}
    assert lacking == ["lib 2 needs none (>= 3) | nothing"]


def test_a_flat_repository_and_an_archive_become_one_suite(
    ubuntu: Ubuntu, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))
    target, folder = lock(ubuntu.fleet), tmp_path / "mirror"
    words = ("--keyring", ubuntu.key.keyring, "--key", other_key.fingerprint)
    assert commandline.run("mirror", lockfile.beside(ubuntu.fleet), folder, *words) == 0
    listed = (folder / "dists" / "ubuntu-24.04" / "stack" / "binary-amd64" / "Packages").read_text()
    names = re.findall(r"^Filename: (.*)$", listed, re.MULTILINE)
    assert len(names) == len(target.packages)
    assert {name.split("/")[1] for name in names} == {"cuda", "ubuntu", "ubuntu-security"} & {
        package.repository for package in target.packages
    }
    assert all((folder / name).is_file() for name in names)


def test_a_server_that_wants_a_login(
    debian: Debian, tmp_path: Path, other_key: Key, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """lock and mirror have it from the file that the fleet file names; nothing that they write or say has."""
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))
    debian.server.logins.append("Basic " + base64.b64encode(b"someone:hunter2").decode())
    assert commandline.run("lock", debian.fleet) == RepositoryUnusable.exit_code
    assert "`credentials`" in capsys.readouterr().err
    login = tmp_path / "login.conf"
    login.write_text(f"machine {debian.server.uri} login someone password hunter2\n")
    login.chmod(0o600)
    debian.fleet.write_text(f"credentials: login.conf\n{debian.fleet.read_text()}")
    assert commandline.run("lock", debian.fleet) == 0
    assert commandline.run("lock", "--check", debian.fleet) == 0
    lock = lockfile.beside(debian.fleet)
    words = ("--key", other_key.fingerprint, "--keyring", debian.key.keyring)
    assert commandline.run("mirror", lock, tmp_path / "mirror", *words) == 0
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err + lock.read_text()


def listed(repodata: Path, kind: str) -> str:
    (path,) = repodata.glob(f"*-{kind}.*.gz")
    return gzip.decompress(path.read_bytes()).decode()


def test_exactly_the_locked_files_and_what_they_need_by_dnf(rpm: Mirroring, capsys: pytest.CaptureFixture[str]) -> None:
    assert rpm.run("--json") == 0
    report = json.loads(capsys.readouterr().out)
    stack = {Path(package.file).name for package in rpm.target.packages}
    names = {path.name for path in rpm.packages()}
    system = {name.rsplit("-", 2)[0] for name in names - stack}
    assert system == {
        "dracut", "elfutils-libelf-devel", "gcc", "glibc", "linux-firmware", "make", "numactl-libs", "ocl-icd",
        "python3", "shadow-utils", "systemd", "systemd-udev", TOOL,
    }  # fmt: skip
    assert stack <= names
    assert f"{TOOL}-4.3.0-16.el9.noarch.rpm" in names
    (suite,) = report["suites"]
    assert suite == {"os": "rhel-9", "architecture": "x86_64", "stack": len(stack), "system": len(system)}
    assert len(rpm.downloads()) == report["downloaded"] == len(names)
    repodata = rpm.folder / FOLDER / "repodata"
    verify(
        (repodata / "repomd.xml").read_bytes(), detached=(repodata / "repomd.xml.asc").read_bytes(),
        keyring=rpm.folder / "gdsdeploy-mirror.asc", fingerprints=[rpm.key.fingerprint], name="repomd.xml",
    )  # fmt: skip
    modules = listed(repodata, "modules")
    streams = re.findall(r'^  stream: "(.*)"$', modules, re.MULTILINE)
    assert streams == ["580-open"]
    assert not list(rpm.folder.rglob(".*"))


def test_the_index_has_the_newest_date_of_the_originals(rpm: Mirroring, site: Rhel) -> None:
    originals = site.cuda.repomd.read_text() + site.baseos.repomd.read_text()
    newest = max(int(stamp) for stamp in re.findall(r"<timestamp>(\d+)<", originals))
    assert rpm.run() == 0
    index = (rpm.folder / FOLDER / "repodata" / "repomd.xml").read_text()
    assert set(re.findall(r"<(?:timestamp|revision)>(.*)<", index)) == {str(newest)}


@pytest.mark.parametrize("what", ["repomd.xml.asc", "primary"])
def test_damaged_metadata_is_made_anew(what: str, rpm: Mirroring) -> None:
    assert rpm.run() == 0
    before = files(rpm.folder)
    repodata = rpm.folder / FOLDER / "repodata"
    flip(repodata / what if what.startswith("repomd") else next(repodata.glob(f"*-{what}.*")))
    (repodata / "old-primary.xml.gz").touch()
    record = rpm.folder / RECORD
    record.write_text(record.read_text().replace('"files": [', f'"files": ["{FOLDER}/repodata/old-primary.xml.gz",'))
    assert rpm.run() == 0
    after = files(rpm.folder)
    signature = f"{FOLDER}/repodata/repomd.xml.asc"
    assert {**after, signature: b""} == {**before, signature: b""}


def test_a_package_that_left_its_stream_is_named(
    rpm: Mirroring, site: Rhel, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the stream enabled, no host would see it."""
    streams = [
        Stream(s.module, s.stream, tuple(rpm for rpm in s.rpms if rpm.file != DRIVER_FILE)) for s in rpmstack.STREAMS
    ]
    site.cuda.streams = [*streams, Stream("nvidia-driver", "old", (rpmstack.D580[2],))]
    site.cuda.publish(site.key)
    assert rpm.run() == LockStale.exit_code
    output = capsys.readouterr().err
    assert "outside of nvidia-driver:580-open now:" in output
    assert "- nvidia-kmod-common 3:580.95.05-1.el9 (cuda)" in output


def test_what_writes_the_metadata_is_asked_for_before_anything_is_downloaded(
    rpm: Mirroring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("gpg", "gpgv", "gpg-agent"):
        (programs / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(programs))
    assert rpm.run() == MissingProgram.exit_code
    output = " ".join(capsys.readouterr().err.split())
    assert "createrepo_c is not installed" in output
    assert "createrepo-c" in output
    assert rpm.downloads() == []


def test_of_several_keyrings_the_one_with_the_key_is_taken(
    rpm: Mirroring, site: Rhel, other_key: Key, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.asc").write_text(other_key.armoured())
    (tmp_path / "b.asc").write_text(site.key.armoured())
    site.key.keyring.rename(tmp_path / "kept")
    try:
        assert rpm.run("--keyring", str(tmp_path / "a.asc"), "--keyring", str(tmp_path / "b.asc")) == 0
        (tmp_path / "b.asc").write_text(other_key.armoured())
        assert rpm.run("--keyring", str(tmp_path / "a.asc"), "--keyring", str(tmp_path / "b.asc")) == (
            RepositoryUnusable.exit_code
        )
        assert f"the key {site.key.fingerprint}: --keyring FILE" in " ".join(capsys.readouterr().err.split())
    finally:
        (tmp_path / "kept").rename(site.key.keyring)


class RpmHost:
    """An empty system with the source that the role writes for a mirror, and the real dnf."""

    def __init__(self, root: Path, mirroring: Mirroring) -> None:
        self.root, target, mirror = root, mirroring.target, mirroring.folder
        keys = {name: root / "keys" / name for name in ("mirror", "maker")}
        (root / "keys").mkdir(parents=True)
        keys["maker"].write_text(mirroring.site.key.armoured())
        brought = {target.indices[0].host_keyring: "maker"}
        wish = Mirror(uri=mirror.as_uri(), keyring="mirror/gdsdeploy-mirror.gpg")
        (index,), keyrings = host_sources.of_mirror(wish, target, mirror.parent, brought)
        shutil.copy(next(iter(keyrings.values())), keys["mirror"])
        self.index = replace(index, host_keyring=str(keys["mirror"]), package_keys=[str(keys["maker"])])
        self.write()

    def write(self) -> None:
        """The source, as the role writes it."""
        text = render_repositories([self.index], [])
        (self.root / "repos").mkdir(exist_ok=True)
        (self.root / "repos" / "gdsdeploy.repo").write_text(text)

    def dnf(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_dnf(self.root, *words)

    def enable(self, *streams: str) -> None:
        done = self.dnf("module", "enable", *streams)
        assert done.returncode == 0, done.stdout + done.stderr

    def installed(self) -> set[str]:
        argv = ["rpm", f"--root={self.root / 'root'}", "-qa", "--qf", "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n"]
        argv = ["unshare", "--map-root-user", *argv]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=DNF_ENVIRONMENT)
        return {line for line in done.stdout.splitlines() if not line.startswith("gpg-pubkey")}


def specs(target: Target) -> list[str]:
    return [f"{p.package}-{p.version}" for p in target.packages]


def locked_specs(target: Target) -> set[str]:
    return {f"{p.package} {p.version if ':' in p.version else '0:' + p.version}" for p in target.packages}


def test_dnf_installs_the_whole_stack_from_the_mirror_and_nothing_else(rpm: Mirroring, tmp_path: Path) -> None:
    """On a system that has nothing at all: so all that is needed is there, signed, and of the locked version."""
    assert rpm.run() == 0
    host = RpmHost(tmp_path / "host", rpm)
    host.enable(*rpm.target.modules)
    done = host.dnf("install", TOOL, *specs(rpm.target))
    assert done.returncode == 0, done.stdout + done.stderr
    assert locked_specs(rpm.target) <= host.installed()
    in_mirror = {path.name.rsplit("-", 2)[0] for path in rpm.packages()}
    assert {row.split()[0] for row in host.installed()} == in_mirror


def test_dnf_filters_by_the_streams_of_the_mirror(rpm: Mirroring, tmp_path: Path) -> None:
    """Without the stream enabled, its packages do not exist, as in the original repository."""
    assert rpm.run() == 0
    host = RpmHost(tmp_path / "host", rpm)
    query = ("--quiet", "repoquery", "nvidia-driver-cuda")
    assert host.dnf(*query).stdout == ""
    host.enable("nvidia-driver:580-open")
    assert "nvidia-driver-cuda-3:580.95.05-1.el9.x86_64" in host.dnf(*query).stdout
    assert host.dnf("module", "enable", "nvidia-driver:570-open").returncode != 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ("repomd.xml", "repomd.xml GPG signature verification error: Bad GPG signature"),
        ("primary", "Error: Failed to download metadata for repo 'gdsdeploy-mirror'"),
        (DRIVER_FILE, 'Package "nvidia-kmod-common-3:580.95.05-1.el9.noarch" from local repository'),
        ("maker", "Error: GPG check FAILED"),
    ],
)
def test_dnf_refuses_what_was_changed_in_the_mirror(changed: str, words: str, rpm: Mirroring, tmp_path: Path) -> None:
    """And packages of a maker whose key is not one of those that the role gives to dnf."""
    assert rpm.run() == 0
    host = RpmHost(tmp_path / "host", rpm)
    if changed == "maker":
        host.index = replace(host.index, package_keys=[])
        host.write()
    else:
        (path,) = (p for p in rpm.folder.rglob(f"*{changed}*") if not p.name.endswith(".asc"))
        flip(path)
    enabled = host.dnf("module", "enable", *rpm.target.modules)
    done = host.dnf("install", *specs(rpm.target))
    assert done.returncode != 0
    assert words in enabled.stderr + done.stderr, done.stdout + done.stderr
    assert "nvidia-kmod-common 3:580.95.05-1.el9" not in host.installed()


#: Modules as distributions have them beside the driver's: a default stream, one that nobody enables.
PIECE = Rpm("tool", "1.0-1", requires=("aid",))
NEWER_PIECE = Rpm("tool", "2.0-1")
AID = Rpm("aid", "5-1", requires=("(beside if other)", "(absent if missing)"))
SHADOWS = (PIECE, NEWER_PIECE, AID, Rpm("beside", "1-1"), Rpm("other", "1-1", conflicts=("(old or older)",)))


def test_what_is_needed_only_beside_another_package(tmp_path: Path, key: Key) -> None:
    streams = (Stream("tools", "1", (PIECE,), default=True), Stream("tools", "2", (NEWER_PIECE,)))
    RpmArchive(build(SHADOWS, tmp_path / "www"), streams=streams).publish(key)
    repository = Repository("www", (tmp_path / "www").as_uri(), key.keyring, (key.fingerprint,), "/k")
    with Fetcher(apt={}) as fetcher:
        universe = read(fetcher, [repository], "x86_64")[0].with_streams({})
    roots = universe.named("tool")
    assert [nevra(root) for root in roots] == [PIECE.nevra]
    members, lacking = closure(roots, universe, RPM)
    assert ({c.package for c in members}, lacking) == ({"aid", "beside"}, [])
    members, lacking = closure([*roots, *universe.named("other")], universe, RPM)
    assert ({c.package for c in members}, lacking) == ({"aid", "beside"}, [])
