"""``gdsdeploy mirror``: exactly the locked files and what they need, signed; apt installs from nothing else."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.cli import main
from gdsdeploy.errors import GdsError, LockStale, NoSolution, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror import fill as mirror
from gdsdeploy.mirror import host_vars
from gdsdeploy.mirror.fill import closure
from gdsdeploy.model.fleet import Mirror
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import DEB, Candidate, Origin, PackageList, Universe
from gdsdeploy.repo.repository import verify
from tests import commandline
from tests.repos.archive import Key
from tests.repos.conftest import Debian, Ubuntu
from tests.repos.stack import TRIXIE, package, suites, text, without

Run = Callable[..., int]


@pytest.fixture
def locked(debian: Debian, capsys: pytest.CaptureFixture[str]) -> Path:
    """A lock of the imitated archive; the server's log is empty again."""
    with pytest.raises(SystemExit) as end:
        main(["lock", str(debian.fleet)])
    assert end.value.code == 0
    debian.server.log.clear()
    capsys.readouterr()
    return lockfile.beside(debian.fleet)


@pytest.fixture
def run(debian: Debian, locked: Path, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Mirror the lock to ``tmp_path/mirror``, as a user whose own key is not the archive's; return the exit code."""
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))

    def invoke(*more: str, key: str | None = None) -> int:
        named = ["--key", key or other_key.fingerprint]
        argv = ["mirror", str(locked), str(tmp_path / "mirror"), "--keyring", str(debian.key.keyring)]
        with pytest.raises(SystemExit) as end:
            main([*argv, *named, *more])
        assert isinstance(end.value.code, int)
        return end.value.code

    return invoke


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def downloads(debian: Debian) -> list[str]:
    return [line.split()[1] for line in debian.server.log if "/pool/" in line]


def test_exactly_the_locked_files_and_what_they_need(
    debian: Debian, locked: Path, run: Run, tmp_path: Path, other_key: Key, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--json") == 0
    report = json.loads(capsys.readouterr().out)
    target = lockfile.read(locked).targets["gds"]
    system = {"linux-base", "initramfs-tools", "libc6", "gcc-14", "pahole", "kmod", "dpkg-dev", "make", "python3",
              "libnuma1"}  # fmt: skip
    stack = {package.package for package in target.packages}
    assert report["suites"] == [
        {"os": "debian-13", "architecture": "amd64", "stack": len(stack), "system": len(system)}
    ]
    pool = {path.name.split("_")[0] for path in (tmp_path / "mirror" / "pool").rglob("*.deb")}
    assert pool == stack | system
    assert len(downloads(debian)) == report["downloaded"] == len(pool)
    release = tmp_path / "mirror" / "dists" / "debian-13"
    keyring, pin = Path(report["keyring"]), [other_key.fingerprint]
    signed = verify((release / "InRelease").read_bytes(), keyring=keyring, fingerprints=pin, name="InRelease")
    assert signed.text == (release / "Release").read_bytes()
    detached = (release / "Release.gpg").read_bytes()
    verify(signed.text, detached=detached, keyring=keyring, fingerprints=pin, name="Release")
    listed = (release / "stack" / "binary-amd64" / "Packages").read_text()
    stanza = next(block for block in listed.split("\n\n") if block.startswith("Package: nvidia-fs-dkms\n"))
    original = next(entry for entry in TRIXIE if entry["Package"] == "nvidia-fs-dkms")
    assert f"Depends: {original['Depends']}\n" in stanza
    assert re.findall(r"^Filename: .*/", stanza, re.MULTILINE) == ["Filename: pool/debian/"]
    assert not (tmp_path / "mirror" / ".part").exists()


def test_a_second_run_downloads_nothing_and_changes_nothing(debian: Debian, run: Run, tmp_path: Path) -> None:
    assert run() == 0
    before = files(tmp_path / "mirror")
    debian.server.log.clear()
    assert run() == 0
    assert downloads(debian) == []
    assert files(tmp_path / "mirror") == before


def test_an_interrupted_run_is_finished_by_the_next(
    debian: Debian, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch, begun, lock = Fetcher.file, [0], threading.Lock()

    def stopped(self: Fetcher, uri: str, *, sha256: str, size: int) -> Path:
        with lock:
            begun[0] += "/pool/" in uri
            if begun[0] > 5:
                raise KeyboardInterrupt
        return fetch(self, uri, sha256=sha256, size=size)

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "file", stopped)
        assert run() == 130
    assert "Traceback" not in capsys.readouterr().err
    count = len(list((tmp_path / "mirror").rglob("*.deb")))
    assert count == 5
    assert not (tmp_path / "mirror" / "dists").exists(), "nothing is offered that is not whole"
    debian.server.log.clear()
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out)["present"] == count
    assert list((tmp_path / "mirror").rglob(".*")) == []


def test_a_damaged_file_of_the_mirror_is_fetched_again(
    debian: Debian, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    (path,) = (tmp_path / "mirror").rglob("libcufile0_*.deb")
    good = path.read_bytes()
    path.write_bytes(b"X" + good[1:])
    debian.server.log.clear()
    assert run() == 0
    assert path.read_bytes() == good
    assert len(downloads(debian)) == 1
    assert f"pool/debian/{path.name}: damaged; fetching it again" in capsys.readouterr().err


def test_a_changed_byte_in_the_repository_is_refused_by_name(
    debian: Debian, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = debian.archive.root.rglob("nvidia-fs-dkms_*.deb")
    path.write_bytes(b"X" + path.read_bytes()[1:])
    assert run() == RepositoryUntrusted.exit_code
    assert path.name in re.sub(r"\s", "", capsys.readouterr().err)
    assert not list((tmp_path / "mirror").rglob("nvidia-fs-dkms_*"))
    assert not (tmp_path / "mirror" / "dists").exists()


def test_a_changed_signature_of_the_mirror_is_made_anew(run: Run, tmp_path: Path) -> None:
    assert run() == 0
    path = tmp_path / "mirror" / "dists" / "debian-13" / "InRelease"
    good = path.read_bytes()
    path.write_bytes(good.replace(b"Label: gdsdeploy", b"Label: somebody"))
    assert run() == 0
    assert b"Label: gdsdeploy" in path.read_bytes()


def test_a_locked_file_that_is_gone_is_named(debian: Debian, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    debian.publish(suites(without(TRIXIE, "libcufile0")))
    assert run() == LockStale.exit_code
    assert "libcufile0 1.9.1.3~12.4.1-2" in capsys.readouterr().err
    assert downloads(debian) == []


def test_a_dependency_that_nobody_offers_is_named_unless_they_are_left_out(
    debian: Debian, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debian.publish(suites(without(TRIXIE, "make", "pahole")))
    assert run() == NoSolution.exit_code
    output = capsys.readouterr().err
    assert "dkms 3.2.2-1~deb13u1 needs make | build-essential" in output
    assert "needs pahole" in output
    assert run("--no-dependencies") == 0
    assert not list((tmp_path / "mirror").rglob("libc6_*"))
    assert list((tmp_path / "mirror").rglob("libcuda1_*"))


def test_without_a_key_those_there_are_are_listed(
    locked: Path, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with pytest.raises(SystemExit) as end:
        main(["mirror", str(locked), str(tmp_path / "mirror")])
    assert end.value.code == GdsError.exit_code
    output = capsys.readouterr().err
    assert other_key.fingerprint in output
    assert "--quick-generate-key" in output
    assert run(key="A" * 40) == GdsError.exit_code
    assert "there is no secret key with this fingerprint" in capsys.readouterr().err


def test_apt_itself_takes_the_whole_stack_from_the_mirror_and_nothing_else(
    debian: Debian, locked: Path, run: Run, tmp_path: Path
) -> None:
    """On a machine that has nothing at all: so all that is needed is there, signed, and of the locked version."""
    # Its relations to python3:any ask for it.
    debian.publish(suites([{**s, "Multi-Arch": "allowed"} if s["Package"] == "python3" else s for s in TRIXIE]))
    assert run() == 0
    target = lockfile.read(locked).targets["gds"]
    wish = Mirror(uri=(tmp_path / "mirror").as_uri(), keyring=f"mirror/{mirror.KEYRING}")
    variables = host_vars.variables(wish, target, tmp_path)
    (source,), (key,) = variables["gds_repo_indices"], variables["gds_repo_keys"]
    root = tmp_path / "machine"
    for folder in ("etc/apt/sources.list.d", "etc/apt/preferences.d", "etc/apt/apt.conf.d", "var/lib/dpkg",
                   "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):  # fmt: skip
        (root / folder).mkdir(parents=True)
    (root / "var/lib/dpkg/status").touch()
    (root / "etc/apt/sources.list.d/gdsdeploy.sources").write_text(
        f"Types: deb\nURIs: {source['uri']}\nSuites: {source['suite']}\n"
        f"Components: {' '.join(source['components'])}\nSigned-By: {key['src']}\n"
    )
    status = f"Dir::State::status={root / 'var/lib/dpkg/status'}"
    options = ["-o", f"Dir={root}", "-o", status, "-o", "APT::Architecture=amd64", "-o", "APT::Sandbox::User=root",
               "-o", "Acquire::http::Proxy=http://127.0.0.1:9"]  # fmt: skip
    apt(*options, "--error-on=any", "update")
    expected = [f"{package.package}={package.version}" for package in target.packages]
    shown = apt(*options, "--simulate", "--no-install-recommends", "install", *expected)
    installed = {line.split()[1] for line in shown.splitlines() if line.startswith("Inst ")}
    pool = {path.name.split("_")[0] for path in (tmp_path / "mirror" / "pool").rglob("*.deb")}
    assert installed == pool
    apt(*options, "--yes", "--download-only", "--no-install-recommends", "install", *expected)


def apt(*arguments: str) -> str:
    done = subprocess.run(
        ["apt-get", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
    ubuntu: Ubuntu, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))
    lock, folder = lockfile.beside(ubuntu.fleet), tmp_path / "mirror"
    for argv in (
        ["lock", ubuntu.fleet],
        ["mirror", lock, folder, "--keyring", ubuntu.key.keyring, "--key", other_key.fingerprint, "--json"],
    ):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in argv])
        assert end.value.code == 0, capsys.readouterr().err
    (target,) = lockfile.read(lock).targets.values()
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
