"""Which QEMU emulates VM hosts: this machine's where it is new enough, else one that lies beside its packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy import run
from gdsdeploy.errors import ProgramFailed
from gdslab import emulator
from gdslab.archive import Archive

OLD = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022 …\n"
NEW = "QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)\nCopyright (c) 2003-2025 …\n"


class Programs:
    """Stands in for QEMU's answer and for the archive behind mmdebstrap."""

    def __init__(self) -> None:
        self.real = run.run
        self.version = OLD
        self.fetched: list[Sequence[str]] = []
        self.broken = False

    def run(self, argv: Sequence[str], **options: Any) -> run.Completed:
        if argv == [emulator.QEMU, "--version"]:
            return run.Completed((), 0, self.version, "")
        if "mmdebstrap" not in argv:
            return self.real(argv, **options)
        self.fetched.append(argv)
        if self.broken:
            raise ProgramFailed("could not fetch trixie's QEMU: no such suite")
        next(Path(word) for word in argv if word.endswith("/root")).mkdir()
        return run.Completed((), 0, "", "")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    imitation = Programs()
    monkeypatch.setattr(emulator.run, "run", imitation.run)
    return imitation


def test_an_older_one_is_replaced_once(tmp_path: Path, mirror: Archive, programs: Programs) -> None:
    root = emulator.root(tmp_path / "cache", mirror)
    assert root is not None
    assert root.is_dir()
    assert emulator.root(tmp_path / "cache", mirror) == root
    (argv,) = programs.fetched
    assert argv[0] == "unshare"
    assert {"--variant=extract", "--include=qemu-system-x86", "trixie"} <= set(argv)
    assert '--aptopt=Acquire::Check-Valid-Until "false"' in argv
    other = emulator.root(tmp_path / "cache", replace(mirror, uri="http://other.example/debian"))
    assert other not in (None, root)


def test_this_machines_own_is_used_where_it_is_new_enough(tmp_path: Path, mirror: Archive, programs: Programs) -> None:
    programs.version = NEW
    assert emulator.root(tmp_path, mirror) is None
    assert programs.fetched == []


def test_an_archive_without_it_costs_time_only(
    tmp_path: Path, mirror: Archive, programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    programs.broken = True
    assert emulator.root(tmp_path, mirror) is None
    printed = capsys.readouterr()
    assert "no such suite" in printed.out + printed.err
    assert "more slowly" in printed.out + printed.err
    assert not list(tmp_path.iterdir()), "half of one was left"


@pytest.mark.parametrize(("output", "number"), [(OLD, 7), (NEW, 10), ("QEMU emulator version 11.1.3", 11), ("", 0)])
def test_version(output: str, number: int) -> None:
    assert emulator.major_version(output) == number


def test_command() -> None:
    assert emulator.command(None) == ["qemu-system-x86_64"]
    assert emulator.command(Path("/c/root")) == [
        "/c/root/usr/lib64/ld-linux-x86-64.so.2",
        "--library-path", "/c/root/usr/lib/x86_64-linux-gnu",
        "/c/root/usr/bin/qemu-system-x86_64",
        "-L", "/c/root/usr/share/qemu", "-L", "/c/root/usr/share/seabios",
    ]  # fmt: skip
