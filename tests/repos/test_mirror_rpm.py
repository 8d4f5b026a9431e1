"""``gdsdeploy mirror`` of rpm locks: the real dnf installs the locked stack from the mirror and from nothing else."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cli import main
from gdsdeploy.errors import LockStale, MissingProgram, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.host.apply.packages.dnf import render_repositories
from gdsdeploy.host.apply.packages.managers import Index
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror import host_vars
from gdsdeploy.mirror.fill import closure
from gdsdeploy.mirror.writing import RECORD
from gdsdeploy.model.fleet import Mirror
from gdsdeploy.model.lock import Target
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import RPM
from gdsdeploy.repo.repository import verify
from gdsdeploy.repo.rpm import Repository, nevra, read
from tests.repos import rpmstack
from tests.repos.archive import Key
from tests.repos.conftest import Rhel, serve_rhel
from tests.repos.rpmarchive import Rpm, RpmArchive, Stream, build

Run = Callable[..., int]
FOLDER = "rpm/rhel-9/x86_64"
TOOL = "python3-dnf-plugin-versionlock"
DRIVER_FILE = "nvidia-kmod-common-580.95.05-1.el9.noarch.rpm"


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
    defines = {"__gpg": "/usr/bin/gpg", "_gpg_name": key.fingerprint, "_gpg_path": key.home}
    options = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
    subprocess.run(["rpmsign", "--addsign", *options, *root.glob("*/*.rpm")], check=True, capture_output=True)
    RpmArchive(root / "cuda", streams=rpmstack.STREAMS).publish(key)
    RpmArchive(root / "baseos").publish(key)
    return root


@pytest.fixture
def site(tmp_path: Path, signed_pool: Path, key: Key) -> Iterator[Rhel]:
    """The signed packages, served, and a fleet file for them."""
    with serve_rhel(tmp_path, signed_pool, key) as offer:
        yield offer


@pytest.fixture
def locked(site: Rhel, capsys: pytest.CaptureFixture[str]) -> Target:
    """The only target of a lock of it; the server's log is empty again."""
    with pytest.raises(SystemExit) as end:
        main(["lock", str(site.fleet)])
    assert end.value.code == 0, capsys.readouterr().err
    site.server.log.clear()
    capsys.readouterr()
    return lockfile.read(lockfile.beside(site.fleet)).targets["gds"]


@pytest.fixture
def run(site: Rhel, locked: Target, other_key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Mirror the lock to ``tmp_path/mirror``, as a user whose own key is not the makers'; return the exit code."""
    assert locked.packages
    monkeypatch.setenv("GNUPGHOME", str(other_key.home))

    def invoke(*more: str) -> int:
        argv = ["mirror", lockfile.beside(site.fleet), tmp_path / "mirror", "--key", other_key.fingerprint]
        with pytest.raises(SystemExit) as end:
            main([*map(str, argv), "--keyring", str(site.key.keyring), *more])
        assert isinstance(end.value.code, int)
        return end.value.code

    return invoke


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def downloads(site: Rhel) -> list[str]:
    return [line.split()[1] for line in site.server.log if ".rpm" in line]


def listed(repodata: Path, kind: str) -> str:
    (path,) = repodata.glob(f"*-{kind}.*.gz")
    return gzip.decompress(path.read_bytes()).decode()


def test_exactly_the_locked_files_and_what_they_need(
    site: Rhel, locked: Target, run: Run, tmp_path: Path, other_key: Key, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--json") == 0
    report = json.loads(capsys.readouterr().out)
    stack = {Path(package.file).name for package in locked.packages}
    names = {path.name for path in (tmp_path / "mirror").rglob("*.rpm")}
    system = {name.rsplit("-", 2)[0] for name in names - stack}
    assert system == {
        "dracut", "elfutils-libelf-devel", "gcc", "glibc", "linux-firmware", "make", "numactl-libs", "ocl-icd",
        "python3", "shadow-utils", "systemd", "systemd-udev", TOOL,
    }  # fmt: skip
    assert stack <= names
    assert f"{TOOL}-4.3.0-16.el9.noarch.rpm" in names
    (suite,) = report["suites"]
    assert suite == {"os": "rhel-9", "architecture": "x86_64", "stack": len(stack), "system": len(system)}
    assert len(downloads(site)) == report["downloaded"] == len(names)
    repodata = tmp_path / "mirror" / FOLDER / "repodata"
    verify(
        (repodata / "repomd.xml").read_bytes(), detached=(repodata / "repomd.xml.asc").read_bytes(),
        keyring=tmp_path / "mirror" / "gdsdeploy-mirror.asc", fingerprints=[other_key.fingerprint], name="repomd.xml",
    )  # fmt: skip
    modules = listed(repodata, "modules")
    streams = re.findall(r'^  stream: "(.*)"$', modules, re.MULTILINE)
    assert streams == ["580-open"]
    assert not list((tmp_path / "mirror").rglob(".*"))


def test_a_second_run_downloads_nothing_and_changes_nothing(site: Rhel, run: Run, tmp_path: Path) -> None:
    assert run() == 0
    before = files(tmp_path / "mirror")
    site.server.log.clear()
    originals = site.cuda.repomd.read_text() + site.baseos.repomd.read_text()
    newest = max(int(stamp) for stamp in re.findall(r"<timestamp>(\d+)<", originals))
    index = (tmp_path / "mirror" / FOLDER / "repodata" / "repomd.xml").read_text()
    assert set(re.findall(r"<(?:timestamp|revision)>(.*)<", index)) == {str(newest)}
    assert run() == 0
    assert downloads(site) == []
    assert files(tmp_path / "mirror") == before


@pytest.mark.parametrize("what", ["repomd.xml.asc", "primary"])
def test_damaged_metadata_is_made_anew(what: str, run: Run, tmp_path: Path) -> None:
    assert run() == 0
    before = files(tmp_path / "mirror")
    repodata = tmp_path / "mirror" / FOLDER / "repodata"
    path = repodata / what if what.startswith("repomd") else next(repodata.glob(f"*-{what}.*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    (repodata / "old-primary.xml.gz").touch()
    record = tmp_path / "mirror" / RECORD
    record.write_text(record.read_text().replace('"files": [', f'"files": ["{FOLDER}/repodata/old-primary.xml.gz",'))
    assert run() == 0
    after = files(tmp_path / "mirror")
    signature = f"{FOLDER}/repodata/repomd.xml.asc"
    assert {**after, signature: b""} == {**before, signature: b""}


def test_a_changed_byte_in_the_repository_is_refused_by_name(
    site: Rhel, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = site.cuda.root / DRIVER_FILE
    path.write_bytes(path.read_bytes()[:-1] + b"X")
    assert run() == RepositoryUntrusted.exit_code
    assert DRIVER_FILE in re.sub(r"\s", "", capsys.readouterr().err)
    assert not list((tmp_path / "mirror").rglob(DRIVER_FILE))
    assert not list((tmp_path / "mirror").rglob("repodata")), "nothing is offered that is not whole"


def test_an_interrupted_run_is_finished_by_the_next(
    site: Rhel, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch = Fetcher.file

    def stopped(self: Fetcher, uri: str, *, sha256: str, size: int) -> Path:
        if uri.endswith(DRIVER_FILE):
            raise KeyboardInterrupt
        return fetch(self, uri, sha256=sha256, size=size)

    with monkeypatch.context() as patch:
        patch.setattr(Fetcher, "file", stopped)
        assert run("--jobs", "1") == 130
    assert "Traceback" not in capsys.readouterr().err
    count = len(list((tmp_path / "mirror").rglob("*.rpm")))
    assert count > 0
    assert not list((tmp_path / "mirror").rglob("repodata"))
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out)["present"] == count


def test_a_locked_file_that_is_gone_is_named(site: Rhel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    (site.cuda.root / DRIVER_FILE).unlink()
    site.cuda.publish(site.key)
    assert run() == LockStale.exit_code
    assert "nvidia-kmod-common 3:580.95.05-1.el9 (cuda)" in capsys.readouterr().err
    assert downloads(site) == []


def test_a_package_that_left_its_stream_is_named(site: Rhel, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """With the stream enabled, no host would see it."""
    streams = [
        Stream(s.module, s.stream, tuple(rpm for rpm in s.rpms if rpm.file != DRIVER_FILE)) for s in rpmstack.STREAMS
    ]
    site.cuda.streams = [*streams, Stream("nvidia-driver", "old", (rpmstack.D580[2],))]
    site.cuda.publish(site.key)
    assert run() == LockStale.exit_code
    output = capsys.readouterr().err
    assert "outside of nvidia-driver:580-open now:" in output
    assert "- nvidia-kmod-common 3:580.95.05-1.el9 (cuda)" in output


def test_what_writes_the_metadata_is_asked_for_before_anything_is_downloaded(
    site: Rhel, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("gpg", "gpgv", "gpg-agent"):
        (programs / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(programs))
    assert run() == MissingProgram.exit_code
    output = " ".join(capsys.readouterr().err.split())
    assert "createrepo_c is not installed" in output
    assert "createrepo-c" in output
    assert downloads(site) == []


def test_of_several_keyrings_the_one_with_the_key_is_taken(
    site: Rhel, run: Run, other_key: Key, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.asc").write_text(other_key.armoured())
    (tmp_path / "b.asc").write_text(site.key.armoured())
    site.key.keyring.rename(tmp_path / "kept")
    try:
        assert run("--keyring", str(tmp_path / "a.asc"), "--keyring", str(tmp_path / "b.asc")) == 0
        (tmp_path / "b.asc").write_text(other_key.armoured())
        assert run("--keyring", str(tmp_path / "a.asc"), "--keyring", str(tmp_path / "b.asc")) == (
            RepositoryUnusable.exit_code
        )
        assert f"the key {site.key.fingerprint}: --keyring FILE" in " ".join(capsys.readouterr().err.split())
    finally:
        (tmp_path / "kept").rename(site.key.keyring)


class RpmHost:
    """An empty system with the source that the role writes for a mirror, and the real dnf."""

    def __init__(self, root: Path, target: Target, mirror: Path, key: Key) -> None:
        self.root = root
        keys = {name: root / "keys" / name for name in ("mirror", "maker")}
        (root / "keys").mkdir(parents=True)
        keys["maker"].write_text(key.armoured())
        brought = [{"src": "maker", "dest": target.indices[0].host_keyring}]
        wish = Mirror(uri=mirror.as_uri(), keyring="mirror/gdsdeploy-mirror.gpg")
        self.variables: dict[str, Any] = host_vars.variables(wish, target, mirror.parent, brought)
        (index,) = self.variables["gds_repo_indices"]
        shutil.copy(self.variables["gds_repo_keys"][0]["src"], keys["mirror"])
        index["host_keyring"], index["package_keys"] = str(keys["mirror"]), [str(keys["maker"])]
        self.write()

    def write(self) -> None:
        """The source, as the role writes it."""
        text = render_repositories([Index(**index) for index in self.variables["gds_repo_indices"]], [])
        (self.root / "repos").mkdir(exist_ok=True)
        (self.root / "repos" / "gdsdeploy.repo").write_text(text)

    def dnf(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [
            "unshare", "--map-root-user", "--pid", "--fork", "dnf", "--assumeyes",
            f"--installroot={self.root / 'root'}", "--releasever=9", "--forcearch=x86_64", "--noplugins",
            f"--setopt=reposdir={self.root / 'repos'}",
            f"--setopt=cachedir={self.root / 'cache'}", f"--setopt=logdir={self.root}",
            "--setopt=module_platform_id=platform:el9", "--setopt=install_weak_deps=0", *words,
        ]  # fmt: skip
        return subprocess.run(argv, capture_output=True, text=True, env=self.environment(), timeout=60, check=False)

    def environment(self) -> dict[str, str]:
        """Debian's rpm keeps its database in the home folder, below the root."""
        return {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C", "HOME": "/root"}

    def enable(self, *streams: str) -> None:
        done = self.dnf("module", "enable", *streams)
        assert done.returncode == 0, done.stdout + done.stderr

    def installed(self) -> set[str]:
        argv = ["rpm", f"--root={self.root / 'root'}", "-qa", "--qf", "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n"]
        argv = ["unshare", "--map-root-user", *argv]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, env=self.environment())
        return {line for line in done.stdout.splitlines() if not line.startswith("gpg-pubkey")}


def specs(target: Target) -> list[str]:
    return [f"{p.package}-{p.version}" for p in target.packages]


def locked_specs(target: Target) -> set[str]:
    return {f"{p.package} {p.version if ':' in p.version else '0:' + p.version}" for p in target.packages}


def test_dnf_installs_the_whole_stack_from_the_mirror_and_nothing_else(
    site: Rhel, locked: Target, run: Run, tmp_path: Path
) -> None:
    """On a system that has nothing at all: so all that is needed is there, signed, and of the locked version."""
    assert run() == 0
    host = RpmHost(tmp_path / "host", locked, tmp_path / "mirror", site.key)
    host.enable(*locked.modules)
    done = host.dnf("install", TOOL, *specs(locked))
    assert done.returncode == 0, done.stdout + done.stderr
    assert locked_specs(locked) <= host.installed()
    in_mirror = {path.name.rsplit("-", 2)[0] for path in (tmp_path / "mirror").rglob("*.rpm")}
    assert {row.split()[0] for row in host.installed()} == in_mirror


def test_dnf_filters_by_the_streams_of_the_mirror(site: Rhel, locked: Target, run: Run, tmp_path: Path) -> None:
    """Without the stream enabled, its packages do not exist, as in the original repository."""
    assert run() == 0
    host = RpmHost(tmp_path / "host", locked, tmp_path / "mirror", site.key)
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
def test_dnf_refuses_what_was_changed_in_the_mirror(
    changed: str, words: str, site: Rhel, locked: Target, run: Run, tmp_path: Path
) -> None:
    """And packages of a maker whose key is not one of those that the role gives to dnf."""
    assert run() == 0
    host = RpmHost(tmp_path / "host", locked, tmp_path / "mirror", site.key)
    if changed == "maker":
        del host.variables["gds_repo_indices"][0]["package_keys"]
        host.write()
    else:
        (path,) = (p for p in (tmp_path / "mirror").rglob(f"*{changed}*") if not p.name.endswith(".asc"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    enabled = host.dnf("module", "enable", *locked.modules)
    done = host.dnf("install", *specs(locked))
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
