"""A rollback on a host with apt: what comes from a snapshot is data, and checked before it is used."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
from typing import Any

import pytest

from gdsdeploy.host.apply.packages import left
from gdsdeploy.host.apply.restore import ARCHIVE, KEYRING, PLACE
from gdsdeploy.host.errors import ApplyError, DesiredError
from tests.unit.host.apply.apt_host import SHA, AptHost, apt, short

__all__ = ["apt"]
SOURCE = "/etc/apt/sources.list.d/gdsdeploy-restore.sources"


def restore(step: str, **desired: Any) -> dict[str, Any]:
    return {"resource": "restore", "desired": {"manager": "apt", "step": step, **desired}}


def archive(apt: AptHost, *names: str, kind: bytes = tarfile.REGTYPE) -> str:
    """A repository with these files, where it is sent to; its checksum."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            member.size = 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"data"))
    place = apt.root / ARCHIVE[1:]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(stream.getvalue())
    return hashlib.sha256(stream.getvalue()).hexdigest()


def test_what_was_there_is_offered_and_taken_away_again(apt: AptHost) -> None:
    sent = archive(apt, "./dists/restore/Release", "pool/one.deb")
    key = base64.b64encode(b"key").decode()
    apt.apply(restore("offer", archive_sha256=sent, keyring=key))
    assert apt.text(f"{PLACE}/pool/one.deb") == "data"
    assert (apt.text(KEYRING), "Signed-By: " + KEYRING in apt.text(SOURCE)) == ("key", True)
    (update,) = apt.changed
    assert update.endswith("update")
    assert f"Dir::Etc::sourcelist={SOURCE}" in update, "others may be out of reach"
    apt.apply(restore("remove"))
    assert not (apt.root / PLACE[1:]).exists()
    assert (apt.text(KEYRING), apt.text(SOURCE)) == ("", "")
    assert short(apt.check(restore("remove"))) == []


def test_an_archive_that_is_not_the_one_that_was_sent_is_refused(apt: AptHost) -> None:
    archive(apt, "x")
    with pytest.raises(ApplyError, match="not the one that was sent"):
        apt.apply(restore("offer", archive_sha256="0" * 64))
    assert not (apt.root / PLACE[1:]).exists()


@pytest.mark.parametrize(
    ("name", "kind"), [("../out", tarfile.REGTYPE), ("/etc/out", tarfile.REGTYPE), ("link", tarfile.SYMTYPE)]
)
def test_an_archive_cannot_lead_out_of_its_folder(apt: AptHost, name: str, kind: bytes) -> None:
    sent = archive(apt, name, kind=kind)
    with pytest.raises(ApplyError) as caught:
        apt.apply(restore("offer", archive_sha256=sent))
    assert caught.value.kind == "refused"
    assert apt.text("/var/lib/out") == apt.text("/etc/out") == ""


def test_interrupted_packages_are_finished_dropped_or_installed_again(apt: AptHost) -> None:
    apt.packages = {"good": ("1", "iU"), "new": ("2", "iF"), "half": ("1", "iHR"), "fine": ("1", "ii")}
    run = apt._change
    apt._change = lambda words: None if "--configure" in words else run(words)  # type: ignore[method-assign]
    apt.apply(restore("offer", new_packages=["new"]))
    assert [line.split()[0:3] for line in apt.changed][1] == ["dpkg", "--purge", "new"]
    assert apt.changed[2].endswith("install half=1")
    assert "--reinstall" in apt.changed[2]


def test_what_was_not_there_goes_in_one_transaction(apt: AptHost) -> None:
    apt.packages = {"new": ("2", "hi"), "newer": ("2", "ii"), "kept": ("1", "ii")}
    apt.write("/etc/modprobe.d/gdsdeploy.conf", "ours")
    apt.write("/var/lib/gdsdeploy/installed", "new\nnewer\n")
    document = restore(
        "remove",
        new_packages=["new", "newer", "absent"],
        files=[{"path": "/etc/modprobe.d/gdsdeploy.conf"}],
        has_record=True,
        installed=["kept"],
        holds=[],
    )
    apt.apply(document)
    (purge,) = apt.changed
    assert purge.endswith("--allow-change-held-packages purge new newer")
    assert list(apt.packages) == ["kept"]
    assert (apt.text("/var/lib/gdsdeploy/installed"), apt.text("/etc/modprobe.d/gdsdeploy.conf")) == ("kept\n", "")
    assert short(apt.check(document)) == []


def test_what_left_since_the_snapshot_comes_back_and_what_had_left_before_does_not(apt: AptHost) -> None:
    apt.packages = {"driver": ("1", "hi"), "library2": ("2", "ii")}
    apt.write(left.RECORD, "before=1 manual\ndecode=1 automatic held\ndriver=1 manual moved\nlibrary1=1 manual\n")
    apt.write("/var/lib/gdsdeploy/installed", "library2\n")
    apt.offered = {"before=1": SHA, "decode=1": SHA, "library1=1": SHA}
    document = restore("remove", new_packages=["library2"], has_record=True, installed=[], holds=[], removed=["before"])
    expected = ["remove library2 not-there-before", "write /var/lib/gdsdeploy/installed restore"]
    expected += ["install decode 1 left", "install library1 1 left"]
    assert [line.replace(" >", " ").replace("  ", " ") for line in short(apt.check(document))] == expected
    apt.apply(document)
    assert apt.packages == {"driver": ("1", "hi"), "decode": ("1", "hi"), "library1": ("1", "ii")}
    assert apt.automatic == {"decode"}
    assert apt.text(left.RECORD) == "before=1 manual\n"
    assert short(apt.check(document)) == []
    unknown = restore("remove")
    apt.packages.pop("decode")
    apt.write(left.RECORD, "decode=1 manual\n")
    assert short(apt.check(unknown)) == [], "without a snapshot nothing is known"


def test_files_of_others_are_not_removed(apt: AptHost) -> None:
    apt.write("/etc/passwd", "root")
    with pytest.raises(DesiredError, match="is not a file that gdsdeploy writes"):
        apt.apply(restore("remove", files=[{"path": "/etc/passwd"}]))
    assert apt.text("/etc/passwd") == "root"


@pytest.mark.parametrize(
    "wrong",
    [
        {"new_packages": ["-y"]},
        {"holds": ["a\nb"]},
        {"files": [{"path": "/etc/apt/../passwd"}]},
        {"new_kernels": ["../../etc"]},
        {"modules": "/etc/shadow", "kernel_release": "6.1"},
    ],
)
def test_names_and_paths_that_cannot_be_are_refused(apt: AptHost, wrong: dict[str, Any]) -> None:
    with pytest.raises(DesiredError):
        apt.apply(restore("remove", **wrong))
    assert apt.changed == []


def test_kept_modules_are_put_where_received_ones_lie(apt: AptHost) -> None:
    tar_path = "/var/lib/gdsdeploy/rollout/id/modules-6.1.tar"
    apt.write(tar_path, "modules")
    document = restore("offer", modules=tar_path, kernel_release="6.1")
    apt.apply(document)
    assert apt.text("/var/lib/gdsdeploy/modules-6.1.tar") == "modules"
    assert short(apt.check(document)) == []
