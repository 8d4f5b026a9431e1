"""Which folders can be the root of an image, and the command that enters one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gdsdeploy.errors import Busy, HostUnfit
from gdsdeploy.image import root
from gdsdeploy.image.root import BlockDevice, ImageRoot


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that can be the root of an image; this process counts as root, and no disk is mounted."""
    folder = tmp_path / "image"
    for name in ("etc", "usr", "proc", "sys", "dev", "run", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "etc/os-release").write_text('ID=debian\nVERSION_ID="13"\n')
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(root, "_ALL_IDS", Path("/proc/self/uid_map").read_text().split())
    monkeypatch.setattr(root, "_devices", lambda _: ())
    return folder


def refusal(folder: Path, os_name: str = "debian-13") -> HostUnfit:
    with pytest.raises(HostUnfit) as caught, root.open_root(folder, os_name):
        pytest.fail("it was accepted")
    assert caught.value.hint
    return caught.value


def test_a_system_is_accepted_under_its_real_name(image: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(image)
    with root.open_root(tmp_path / "link", "debian-13") as opened:
        assert opened == ImageRoot(image)


def test_a_minor_release_is_the_profiles(image: Path) -> None:
    (image / "etc/os-release").write_text('ID="rocky"\nVERSION_ID="9.4"\n')
    with root.open_root(image, "rocky-9"):
        pass


@pytest.mark.parametrize("name", ["/", "/proc/self/root", "/usr/.."])
def test_this_machine_is_refused(image: Path, name: str) -> None:
    assert "is the root of this machine" in refusal(Path(name)).message


def make_file(image: Path) -> Path:
    (image.parent / "disk.raw").write_text("")
    return image.parent / "disk.raw"


def without_release(image: Path) -> Path:
    (image / "etc/os-release").unlink()
    return image


def release_outside(image: Path) -> Path:
    """A link that would lead to this machine's own file, were it followed outside."""
    (image / "etc/os-release").unlink()
    (image / "etc/os-release").symlink_to("/etc/os-release-of-this-machine")
    (image.parent / "etc").mkdir()
    return image


def mount_point_is_a_link(image: Path) -> Path:
    (image / "dev").rmdir()
    (image / "dev").symlink_to("/etc")
    return image


def mount_point_is_missing(image: Path) -> Path:
    (image / "proc").rmdir()
    return image


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda image: image / "nowhere", "No such file"),
        (make_file, "not a folder"),
        (without_release, "has no etc/os-release"),
        (release_outside, "has no etc/os-release"),
        (lambda image: image.parent, "has no etc/os-release"),
        (mount_point_is_a_link, "dev: is not a folder"),
        (mount_point_is_missing, "proc: is not a folder"),
    ],
)
def test_what_is_no_system_is_refused(image: Path, change: Callable[[Path], Path], words: str) -> None:
    assert words in refusal(change(image)).message


def test_another_system_is_refused(image: Path) -> None:
    assert "is debian-13, but the profile was locked for ubuntu-24.04" in refusal(image, "ubuntu-24.04").message


@pytest.mark.parametrize(("flag", "option"), [(os.ST_RDONLY, "ro"), (os.ST_NOEXEC, "noexec")])
def test_file_systems_without_rights_are_refused(
    image: Path, monkeypatch: pytest.MonkeyPatch, flag: int, option: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flag))
    assert f"option {option}" in refusal(image).message


def test_only_root_may(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    error = refusal(image)
    assert ("root only" in error.message, "sudo" in (error.hint or "")) == (True, True)


def test_root_of_a_user_namespace_may_not(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "_ALL_IDS", ["0", "1000", "1"])
    assert "user namespace" in refusal(image).message


def test_one_gdsdeploy_at_a_time(image: Path) -> None:
    first = root.open_root(image, "debian-13")
    with first, pytest.raises(Busy, match="another gdsdeploy"), root.open_root(image, "debian-13"):
        pytest.fail("two at once")
    with root.open_root(image, "debian-13"):
        pass


def test_layers_of_overlays() -> None:
    text = "21 1 0:19 / /merged rw - overlay lab rw,lowerdir=/a/b:/c,upperdir=/d,workdir=/e\n"
    text += "22 1 0:20 / /f rw - tmpfs lowerdir=/g rw\n"
    assert root._layers(text) == {"/a/b", "/c", "/d"}


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ((), "no file system of its own"),
        ((BlockDevice("/dev/loop3", "7:3"),), "writes no entry for a file system on /dev/loop3"),
    ],
)
def test_grub_needs_its_disk(
    image: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[BlockDevice, ...], words: str
) -> None:
    (image / "boot/grub").mkdir(parents=True)
    (image / "boot/grub/grub.cfg").write_text("# GRUB\n")
    monkeypatch.setattr(root, "_devices", lambda _: devices)
    assert words in refusal(image).message
    disk = (BlockDevice("/dev/loop3p1", "259:1", "uuid"), BlockDevice("/dev/loop3", "7:3"))
    monkeypatch.setattr(root, "_devices", lambda _: disk)
    with root.open_root(image, "debian-13") as opened:
        assert opened.devices == disk


def test_the_commands(image: Path) -> None:
    disk = (BlockDevice("/dev/sdb1", "8:17", "uuid"), BlockDevice("/dev/sdb", "8:16"))
    words = root.hold(ImageRoot(image, disk), "etc/resolv.conf", "usr/sbin/policy-rc.d")
    script = words.index("sh")
    assert words[:script] == [
        *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"),
        *("--pid", "--fork", "--kill-child", "--uts", "--ipc"),
    ]
    assert words[script + 1].endswith("gdsdeploy/image/enter.sh")
    arguments = words[script + 2 :]
    assert arguments[:3] == [str(image), "etc/resolv.conf", "usr/sbin/policy-rc.d"]
    assert arguments[3:10] == ["2", "/dev/sdb1", "8:17", "uuid", "/dev/sdb", "8:16", ""]
    assert arguments[10:12] == ["sh", "-c"]
    assert "--pid=/proc/7/ns/pid_for_children" in root.join(7)
    assert root.join(7)[-2:] == (str(Path(root.__file__).with_name("join.py")), "7")


def test_mount_points_stay_inside(image: Path, tmp_path: Path) -> None:
    outside = Path("/opt") / tmp_path.name
    (image / "etc/resolv.conf").symlink_to(f"../../../../..{outside}")
    (image / "opt").mkdir()
    with root._mount_point(ImageRoot(image), "/etc/resolv.conf") as name:
        assert name == str(outside).lstrip("/")
        assert (image / name).read_text() == ""
        assert not outside.exists()
    assert not (image / name).exists(), "what wasn't there goes"


@pytest.mark.parametrize("link", ["/run/systemd/resolve/stub-resolv.conf", "../run/NetworkManager/resolv.conf"])
def test_a_file_below_run_is_made_there(image: Path, link: str) -> None:
    (image / "etc/resolv.conf").symlink_to(link)
    with root._mount_point(ImageRoot(image), "/etc/resolv.conf") as name:
        assert name.startswith("run/")
    assert list((image / "run").iterdir()) == []


def test_what_is_there_stays(image: Path) -> None:
    (image / "etc/resolv.conf").write_text("nameserver 192.0.2.1\n")
    with root._mount_point(ImageRoot(image), "/etc/resolv.conf") as name:
        assert name == "etc/resolv.conf"
    assert (image / "etc/resolv.conf").read_text() == "nameserver 192.0.2.1\n"


@pytest.mark.parametrize("change", [lambda path: path.mkdir(), lambda path: path.symlink_to("resolv.conf")])
def test_what_cannot_be_a_mount_point_is_refused(image: Path, change: Callable[[Path], None]) -> None:
    change(image / "etc/resolv.conf")
    with pytest.raises(HostUnfit), root._mount_point(ImageRoot(image), "/etc/resolv.conf"):
        pytest.fail("it was taken")


def test_services_have_a_policy_only_where_one_is_asked(image: Path) -> None:
    opened = ImageRoot(image)
    with root._policy(opened, changes=True) as name:
        assert name == "", "the RHEL family asks for none"
    (image / "usr/sbin").mkdir()
    (image / "usr/sbin/invoke-rc.d").write_text("#!/bin/sh\n")
    with root._policy(opened, changes=False) as name:
        assert name == "", "a plan starts no script"
    # As a run that was killed leaves it.
    (image / "usr/sbin/policy-rc.d").write_text("")
    with root._policy(opened, changes=True) as name:
        assert name == "usr/sbin/policy-rc.d"
    assert not (image / "usr/sbin/policy-rc.d").exists()
    (image / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 0\n")
    with root._policy(opened, changes=True) as name:
        assert name == "usr/sbin/policy-rc.d"
    assert (image / "usr/sbin/policy-rc.d").read_text() == "#!/bin/sh\nexit 0\n"
