"""Modules that are built here, by an imitated DKMS, and modules that are received from an archive."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import process
from gdsdeploy.host.apply import modules, registry
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.model import Change
from gdsdeploy.host.archive import pack
from gdsdeploy.host.archive.provenance import KEY, PUBLIC, Builder, Origin, own_key, public_pem
from gdsdeploy.host.build import dkms
from gdsdeploy.host.errors import ApplyError, BuildError, PackError
from gdsdeploy.host.kmod import files
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.process import Output
from tests.unit.host.apply.kernel_hosts import KERNEL_COMES, apply, check, desired_resource, predicted, short, tree_of
from tests.unit.host.kmod.kmod_keys import Pair, pair
from tests.unit.host.kmod.kmod_root import RELEASE, VERSION, Root

DRIVER, NVIDIA_FS = f"nvidia-open/{VERSION}", "nvidia-fs/2.19.7"
SOURCE = f"/usr/src/nvidia-{VERSION}"
ARCHIVE = modules.ARCHIVE.format(RELEASE)
WHOLE = ("place", f"/lib/modules/{RELEASE}/updates/gdsdeploy", "archive")
COMMON: dict[str, Any] = {
    "kernel_release": RELEASE,
    "driver_version": VERSION,
    "driver_flavour": "open",
    "driver_tree": SOURCE,
    "driver_dkms_name": "nvidia-open",
    "nvidia_fs_version": "2.19.7",
    "nvidia_fs_tree": "/usr/src/nvidia-fs-2.19.7",
    "names": ["nvidia", "nvidia-fs"],
}
BUILD = {"source": "build", **COMMON}
#: Who has built what is received.
BUILDER = Builder("build1", b"b" * 32, "run-1")
RECEIVE = {"source": "receive", **COMMON, "builder": "build1", "builder_key": public_pem(BUILDER.seed)}
RUN = process.run
SOURCES_COME = Change("upgrade", "nvidia-fs-dkms", "1", "2", "version", resource="packages.modules")


def sources(root: Path) -> str:
    """The driver's source tree; returns its digest."""
    folder = root / SOURCE.lstrip("/")
    for name, text in {
        "Kbuild": f'EXTRA_CFLAGS += -DNV_VERSION_STRING=\\"{VERSION}\\"\n',
        "nvidia/nv-p2p.h": "",
        "nvidia/nv.c": 'MODULE_LICENSE("Dual MIT/GPL");',
        "common/inc/nv.h": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return files.digest(files.expect(str(folder)))


def built_by_dkms(root: Root, package: str, file: str) -> None:
    """As DKMS leaves what it has built and installed."""
    name, _, version = package.partition("/")
    folder = root.path / "var/lib/dkms" / name / version / RELEASE / "x86_64"
    (folder / "module").mkdir(parents=True, exist_ok=True)
    (folder / "module" / file).write_bytes(b"")
    link = root.path / "var/lib/dkms" / name / f"kernel-{RELEASE}-x86_64"
    if not link.is_symlink():
        link.symlink_to(f"{version}/{RELEASE}/x86_64")


class Dkms:
    """In DKMS's place: installs good modules, and writes down what it was asked for."""

    def __init__(self, root: Root, digest: str) -> None:
        self.root, self.digest, self.asked, self.fails = root, digest, [], ""  # type: ignore[var-annotated]

    def install(self, package: str) -> None:
        if package == DRIVER:
            self.root.nvidia()
            built_by_dkms(self.root, DRIVER, "nvidia.ko")
        else:
            fields = {"driver": VERSION, "flavour": "open", "tree": self.digest, "source": "sha256:" + "cd" * 32}
            info = [("version", "2.19.7"), *((f"gdsdeploy_{name}", value) for name, value in fields.items())]
            self.root.nvidia_fs(info=info)
            built_by_dkms(self.root, NVIDIA_FS, "nvidia-fs.ko")

    def run(self, argv: list[str], *arguments: Any, **options: Any) -> Output:
        if argv[0] == "openssl":
            return RUN(argv, *arguments, **options)
        self.asked.append(argv[1:3])
        if self.fails:
            return Output(10, "", f"Error! {self.fails}\n")
        if argv[1] == "install":
            self.install(argv[2])
        return Output(0, "", "")


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dkms:
    """A machine with sources and headers on which nothing was built."""
    machine = Dkms(Root(tmp_path / "builder"), sources(tmp_path / "builder"))
    monkeypatch.setattr(dkms.process, "run", machine.run)
    monkeypatch.setattr(dkms, "LOGS", str(tmp_path / "logs"))
    monkeypatch.setattr(dkms, "restore", lambda *_: [])
    monkeypatch.setattr(dkms, "restored_files", lambda *_: [])
    monkeypatch.setattr(dkms, "save", lambda *_: [])
    return machine


@pytest.fixture
def built(builder: Dkms) -> Path:
    for package in (DRIVER, NVIDIA_FS):
        builder.install(package)
    return builder.root.path


def builds(*names: str, reason: str = "not-installed") -> list[tuple[str, str, str]]:
    return [("build", name, reason) for name in names]


def test_what_dkms_has_not_installed_is_built_and_audited(builder: Dkms) -> None:
    root = builder.root.path
    before = tree_of(root)
    result = check(root, "modules", BUILD)
    assert short(result.changes) == builds(DRIVER, NVIDIA_FS)
    assert (result.report["dkms"], result.report["audit"]) == ([], None)
    assert (tree_of(root), builder.asked) == (before, [])
    assert short(apply(root, "modules", BUILD).changes) == builds(DRIVER, NVIDIA_FS)
    assert builder.asked == [["install", DRIVER], ["install", NVIDIA_FS]]
    again = apply(root, "modules", BUILD)
    assert again.changes == []
    assert again.report["dkms"] == [DRIVER, NVIDIA_FS]
    assert again.report["audit"]["audited"] == ["nvidia", "nvidia_fs"]
    assert len(builder.asked) == 2


def test_a_module_that_was_built_against_another_driver_is_built_again(built: Path, builder: Dkms) -> None:
    info = [("version", "2.19.7"), ("gdsdeploy_driver", "1.0"), ("gdsdeploy_flavour", "open")]
    builder.root.nvidia_fs(info=info)
    assert short(check(built, "modules", BUILD).changes) == builds(NVIDIA_FS, reason="stale")
    assert short(apply(built, "modules", BUILD).changes) == builds(NVIDIA_FS, reason="stale")
    assert builder.asked == [["unbuild", NVIDIA_FS], ["install", NVIDIA_FS]]


def test_an_objection_that_no_build_takes_away_is_an_error(built: Path, builder: Dkms) -> None:
    builder.root.nvidia_fs(
        "updates/dkms/nvidia-fs.ko",
        info=[
            *(("version", "2.19.7"), ("gdsdeploy_driver", VERSION), ("gdsdeploy_flavour", "open")),
            ("gdsdeploy_tree", builder.digest),
        ],
        depends="nowhere",
    )
    assert short(check(built, "modules", BUILD).changes) == [("audit", "nvidia_fs", "dependency-missing")]
    with pytest.raises(ApplyError, match=r"do not pass their audit: nvidia_fs: \[dependency-missing\]") as caught:
        apply(built, "modules", BUILD)
    assert caught.value.kind == "modules"


def test_a_build_that_fails_says_why(builder: Dkms) -> None:
    builder.fails = "Bad return status for module build"
    with pytest.raises(ApplyError, match="Bad return status for module build") as caught:
        apply(builder.root.path, "modules", BUILD)
    assert caught.value.kind == "modules"


@pytest.mark.parametrize("missing", ["build", "module", "record"])
def test_dkms_that_ends_well_and_installs_nothing_is_an_error(
    missing: str, builder: Dkms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DKMS 3.4.1 defers a package whose BUILD_DEPENDS it doesn't know, with exit status 0."""
    install = builder.install

    def defer(package: str) -> None:
        if package == DRIVER:
            install(package)
        elif missing == "module":
            built_by_dkms(builder.root, package, "nvidia-fs.ko")
        elif missing == "record":
            # Of another package.
            builder.root.nvidia_fs()

    monkeypatch.setattr(builder, "install", defer)
    words = f"dkms ended without an error and did not install {NVIDIA_FS} for kernel {RELEASE}"
    with pytest.raises(ApplyError, match=re.escape(words)) as caught:
        apply(builder.root.path, "modules", BUILD)
    assert caught.value.kind == "modules"
    assert "BUILD_DEPENDS" in caught.value.hint


def test_dkms_that_built_another_version_has_not_installed_this_one(built: Path, builder: Dkms) -> None:
    link = built / f"var/lib/dkms/nvidia-fs/kernel-{RELEASE}-x86_64"
    link.unlink()
    assert short(check(built, "modules", BUILD).changes) == builds(NVIDIA_FS)
    link.symlink_to(f"2.18/{RELEASE}/x86_64")
    assert short(check(built, "modules", BUILD).changes) == builds(NVIDIA_FS)


def test_a_driver_without_its_file_is_built_again(built: Path) -> None:
    next(built.rglob("updates/dkms/nvidia.ko")).unlink()
    assert (DRIVER, "stale") in [(change.subject, change.reason) for change in check(built, "modules", BUILD).changes]


def test_packages_to_come_are_built(tmp_path: Path, built: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    result = check(empty, "modules", BUILD)
    assert result.changes == []
    assert result.unknown[0].startswith("the modules: ")
    for pending in (KERNEL_COMES, SOURCES_COME):
        assert short(predicted(empty, "modules", BUILD, pending)) == builds(DRIVER, NVIDIA_FS, reason="packages")
    # Headers come anew, so DKMS builds; dkms itself in another version builds nothing.
    assert short(predicted(built, "modules", BUILD, KERNEL_COMES)) == builds(DRIVER, NVIDIA_FS, reason="packages")
    assert predicted(built, "modules", BUILD, SOURCES_COME) == []
    hold = Change("hold", "linux-image-amd64", resource="packages.kernel")
    assert predicted(built, "modules", BUILD, hold) == []


def test_an_archive_is_handed_over_when_it_would_change(built: Path, builder: Dkms) -> None:
    desired = {**BUILD, "hand_over": True, "builder": "build1"}
    assert short(check(built, "modules", desired).changes) == [("pack", ARCHIVE, "missing")]
    assert not (built / KEY.lstrip("/")).exists(), "a check makes no key"
    apply(built, "modules", desired)
    origin = Origin("build1", (built / PUBLIC.lstrip("/")).read_text())
    assert pack.verify(str(built / ARCHIVE.lstrip("/")), origin)["modules"]
    renamed = check(built, "modules", {**desired, "builder": "build2"}).changes
    assert short(renamed) == [("pack", ARCHIVE, "content")]
    digest = hashlib.sha256((built / ARCHIVE.lstrip("/")).read_bytes()).hexdigest()
    again = apply(built, "modules", desired)
    assert (again.changes, again.report["archive"]) == ([], digest)
    builder.root.nvidia(build_id=b"\x07" * 20)
    assert short(check(built, "modules", desired).changes) == [("pack", ARCHIVE, "content")]
    assert check(built, "modules", BUILD).changes == []
    next(built.rglob("updates/dkms/nvidia-fs.ko")).unlink()
    changes = check(built, "modules", desired).changes
    assert short(changes) == [*builds(NVIDIA_FS, reason="stale"), ("pack", ARCHIVE, "content")]
    assert changes[-1].before == f"sha256:{digest}"


class TestSigned:
    """``signed``: every module has the signature that the settings name."""

    @pytest.fixture
    def owner(self, built: Path) -> Pair:
        keys = pair(built / "keys", "owner")
        (built / "etc/gdsdeploy").mkdir(parents=True)
        settings = {"certificate": "/keys/owner.der", "key": "/keys/owner.key"}
        (built / "etc/gdsdeploy/signing.json").write_text(json.dumps(settings))
        return keys

    def test_what_is_not_signed_is_signed(self, built: Path, owner: Pair) -> None:
        desired = {**BUILD, "signed": True}
        files = [str(built / f"lib/modules/{RELEASE}/updates/dkms/{name}.ko") for name in ("nvidia", "nvidia-fs")]
        assert short(check(built, "modules", desired).changes) == [("sign", file, "signature") for file in files]
        Path(files[0]).write_bytes(owner.sign(Path(files[0]).read_bytes()))
        assert short(check(built, "modules", desired).changes) == [("sign", files[1], "signature")]
        assert check(built, "modules", BUILD).changes == []

    def test_what_is_signed_anew_is_packed_anew(self, built: Path, owner: Pair) -> None:
        for file in (built / f"lib/modules/{RELEASE}/updates/dkms").iterdir():
            file.write_bytes(owner.sign(file.read_bytes()))
        desired = {**BUILD, "signed": True, "hand_over": True, "builder": "build1"}
        builder = Builder("build1", own_key(str(built)))
        pack.pack(Kernel(RELEASE, str(built)), (), str(built / ARCHIVE.lstrip("/")), builder)
        assert check(built, "modules", desired).changes == []
        pair(built / "keys", "other")
        (built / "etc/gdsdeploy/signing.json").write_text(json.dumps({"certificate": "/keys/other.der"}))
        assert [change.kind for change in check(built, "modules", desired).changes] == ["sign", "sign", "pack"]

    def test_settings_that_are_yet_to_be_written(self, built: Path) -> None:
        desired = {**BUILD, "signed": True}
        assert "it names the key that signs the modules" in check(built, "modules", desired).unknown[0]
        written = Change("write", "/etc/gdsdeploy/signing.json", resource="signing")
        result = predicted(built, "modules", desired, written)
        assert short(result) == [("sign", "nvidia", "settings"), ("sign", "nvidia_fs", "settings")]
        with pytest.raises(ApplyError, match="it names the key that signs the modules"):
            apply(built, "modules", desired)


class TestReceived:
    @pytest.fixture
    def archive(self, built: Path, tmp_path: Path) -> Path:
        path = tmp_path / "modules.tar"
        pack.pack(Kernel(RELEASE, str(built)), (), str(path), BUILDER)
        return path

    @pytest.fixture
    def host(self, tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The archive was brought; nothing is in place."""
        monkeypatch.undo()
        root = Root(tmp_path / "host")
        root.remove_headers()
        root.depmod()
        (root.path / "var/lib/gdsdeploy").mkdir(parents=True)
        shutil.copy(archive, root.path / ARCHIVE.lstrip("/"))
        return root.path

    @staticmethod
    def of(archive: Path, **more: Any) -> dict[str, Any]:
        return {**RECEIVE, "archive_sha256": hashlib.sha256(archive.read_bytes()).hexdigest(), **more}

    def test_modules_are_put_in_place_once(self, host: Path, archive: Path) -> None:
        before, desired = tree_of(host), self.of(archive)
        places = [
            (kind, Path(name).name, reason) for kind, name, reason in short(check(host, "modules", desired).changes)
        ]
        assert tree_of(host) == before
        assert places == [
            *(("place", "nvidia.ko", "new"), ("place", "nvidia-fs.ko", "new"), ("place", "manifest.json", "manifest")),
            ("place", f"gdsdeploy-{RELEASE}.conf", "preference"),
        ]
        apply(host, "modules", desired)
        again = apply(host, "modules", desired)
        assert again.changes == []
        assert again.report["received"]["driver"]["version"] == VERSION
        (host / f"lib/modules/{RELEASE}/updates/gdsdeploy/nvidia.ko").write_bytes(b"x")
        assert [change.reason for change in check(host, "modules", desired).changes] == ["content"]

    def test_another_archive_has_to_be_received_first(self, host: Path, archive: Path) -> None:
        apply(host, "modules", self.of(archive))
        for sha256, reason in (("ab" * 32, "content"), (modules.NOT_DELIVERED, "not-delivered")):
            desired = self.of(archive, archive_sha256=sha256)
            assert short(check(host, "modules", desired).changes) == [("receive", ARCHIVE, reason), WHOLE]
            before = tree_of(host)
            with pytest.raises(ApplyError, match="not the archive of modules that this host has to receive"):
                apply(host, "modules", desired)
            assert tree_of(host) == before

    def test_without_an_archive_what_is_there_stays(self, host: Path, archive: Path) -> None:
        apply(host, "modules", self.of(archive))
        result = apply(host, "modules", RECEIVE)
        assert (result.changes, result.report["received"]["builder"]) == ([], "build1")
        (host / ARCHIVE.lstrip("/")).unlink()
        assert "builder" not in check(host, "modules", RECEIVE).report["received"]
        assert apply(host, "modules", RECEIVE).changes == []
        assert short(check(host, "modules", self.of(archive)).changes) == [("receive", ARCHIVE, "missing"), WHOLE]

    def test_a_kernel_that_is_yet_to_come(self, host: Path, archive: Path) -> None:
        shutil.rmtree(host / "lib/modules")
        desired = self.of(archive)
        assert "has no modules in" in check(host, "modules", desired).unknown[0]
        assert short(predicted(host, "modules", desired, KERNEL_COMES)) == [WHOLE]
        assert check(host, "modules", desired).report["key"]["kernel_build"] == {"file": "", "sha256": ""}

    def test_a_refused_archive_is_not_kept(self, host: Path) -> None:
        (host / ARCHIVE.lstrip("/")).write_bytes(b"nonsense")
        desired = self.of(host / ARCHIVE.lstrip("/"))
        # An archive that can't be read is nothing that could be told to be in place.
        assert check(host, "modules", desired).unknown
        with pytest.raises(PackError, match="is not an archive of modules"):
            modules._receive(ManagedHost(root=str(host)), desired_resource("modules", desired).desired)
        assert not (host / ARCHIVE.lstrip("/")).exists()

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            ({"builder_key": public_pem(b"e" * 32)}, "isn't by the builder that the controller knows"),
            ({"builder": "gpu7"}, "signed as 'urn:gdsdeploy:builder:build1', not by gpu7"),
            ({"builder_key": ""}, "the builder's public key: not an Ed25519 key"),
            ({"driver_version": "999.1"}, f"its driver version is {VERSION}, not 999.1"),
            ({"nvidia_fs_version": "3"}, "its nvidia fs version is 2.19.7, not 3"),
        ],
    )
    def test_nothing_is_unpacked_of_what_its_builder_has_not_signed_or_the_lock_does_not_have(
        self, host: Path, archive: Path, more: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(ApplyError, match=re.escape(words)):
            apply(host, "modules", self.of(archive, **more))
        assert not list(host.rglob("updates/gdsdeploy"))
        assert not (host / ARCHIVE.lstrip("/")).exists()

    def test_an_archive_that_nobody_has_signed_is_refused(self, host: Path, built: Path) -> None:
        path = host / ARCHIVE.lstrip("/")
        pack.pack(Kernel(RELEASE, str(built)), (), str(path))
        with pytest.raises(ApplyError, match="isn't signed"):
            apply(host, "modules", self.of(path))
        assert not list(host.rglob("updates/gdsdeploy"))

    def test_the_controller_can_judge_anew_what_was_observed(self, host: Path, archive: Path) -> None:
        observed = json.loads(json.dumps(check(host, "modules", RECEIVE).report["observed"]))
        resource = registry.resource("modules")
        same, other = (
            desired_resource("modules", self.of(archive, **more)).desired
            for more in ({}, {"archive_sha256": "cd" * 32})
        )
        assert {change.kind for change in resource.changes(same, observed)} == {"place"}
        assert [change.kind for change in resource.changes(other, observed)] == ["receive", "place"]

    def test_received_modules_of_every_kernel_go(self, host: Path, archive: Path) -> None:
        apply(host, "modules", self.of(archive))
        (host / "etc/depmod.d/gdsdeploy-9.9.conf").write_text("override nvidia ^9.9$ updates/gdsdeploy\n")
        before = tree_of(host)
        answer = modules.Modules().revert(ManagedHost(check=True, root=str(host)))
        assert tree_of(host) == before
        assert modules.Modules().revert(ManagedHost(root=str(host))) == answer
        assert len(answer) == 3
        assert not (host / f"lib/modules/{RELEASE}/updates/gdsdeploy").exists()
        assert list((host / "etc/depmod.d").iterdir()) == []


def test_why_is_what_a_failed_package_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / RELEASE / "nvidia-fs.log"
    log.parent.mkdir()
    log.write_text("")
    monkeypatch.setattr(dkms, "LOGS", str(tmp_path))
    monkeypatch.setattr(dkms, "failure_in", lambda _: BuildError("nvidia-fs does not build", "the log"))
    with pytest.raises(BuildError, match="nvidia-fs does not build"):
        dkms.why()
