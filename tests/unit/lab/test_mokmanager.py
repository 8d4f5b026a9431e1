"""MokManager at a console: what is pressed for what it shows, and what ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gdslab import mokmanager
from gdslab.errors import LabUnavailable
from gdslab.firmware import Firmware
from gdslab.host import HostRecord, LabHost
from gdslab.keyboard import DOWN, ENTER
from gdslab.mokmanager import Console, Request
from gdslab.qemu import VmHost
from gdslab.state import Lab

DIGITS = "716d2435c17909cb954c10eeb912129b03ef7c33"
COLONS = ":".join(DIGITS[place : place + 2] for place in range(0, 40, 2))
LISTING = f"[key 1]\nOwner: 605dab50\nSHA1 Fingerprint: {COLONS}\nCertificate:\n    Data:\n"
#: As MokManager prints it: the cursor moves between words, and a frame surrounds the lines.
SHOWN = (
    "\x1b[10;05H│\x1b[10;07H[Fingerprint]\x1b[11;05H│  71 6D 24 35 C1 79 09 CB 95 4C │"
    "\x1b[12;05H│  10 EE B9 12 12 9B 03 EF 7C 33 │\x1b[0m"
)
#: What MokManager shows first, and after each key.
SCREENS = [
    ("Perform\x1b[3;30HMOK\x1b[3;34Hmanagement", ENTER),
    ("", DOWN),
    ("[Enroll MOK]", ENTER),
    (SHOWN, ENTER),
    ("[Enroll MOK]", ENTER),
    ("", DOWN),
    ("Enroll the key(s)?", ENTER),
    ("", DOWN),
    ("Password:", ENTER),
]


class Machine(LabHost):
    """A VM host at its firmware: shows the next screen for each of the expected keys."""

    def __init__(self, folder: Path, screens: list[tuple[str, str]]) -> None:
        super().__init__(HostRecord("gpu1", "vm", 22011, "/c"), folder, folder / "ssh_config")
        self.log.write_text("what it showed before")
        self._screens = list(screens)
        self.keys: list[str] = []
        self.is_running = True

    def press(self, *keys: str) -> None:
        """Take a key."""
        text, key = self._screens.pop(0)
        assert keys == (key,)
        self.keys.append(key)
        with self.log.open("a") as log:
            log.write(text)

    def running(self) -> bool:
        return self.is_running

    runtime = "tcg"

    def create(self, seed: bytes) -> None: ...

    def start(self) -> None: ...


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """Makes a machine with the screens that follow the keys."""

    @contextlib.contextmanager
    def keyboard(screen: Console) -> Iterator[Any]:
        yield screen._host

    monkeypatch.setattr(Console, "_keyboard", keyboard)
    monkeypatch.setattr(mokmanager.time, "sleep", lambda seconds: None)
    for name in ("MENU", "REBOOT"):
        monkeypatch.setattr(mokmanager, name, 0.0)
    return lambda *screens: Machine(tmp_path, list(screens))


@pytest.fixture
def lab(home: Path) -> Lab:
    lab = Lab("one")
    hosts = [asdict(HostRecord(name, kind, 22011, "/c")) for name, kind in (("gpu1", "vm"), ("build1", "light"))]
    lab.write({"os": "debian-13", "hosts": hosts, "firmware": Firmware(uefi=True, secure_boot=True).record()})
    lab.update(lambda value: value.update(uefi={"root": "/c/uefi", "moks": [], "db": []}))
    return lab


def letters(password: str) -> list[tuple[str, str]]:
    return [("", letter) for letter in password]


def test_a_key_is_enrolled(machine: Callable[..., Machine]) -> None:
    host = machine(*SCREENS, *letters("secret"), ("Reboot", ENTER), ("", ENTER))
    mokmanager._walk(Console(host), "gpu1", Request("enrol", (DIGITS,), ()), "secret")
    menus = [ENTER, DOWN, ENTER, ENTER, ENTER, DOWN, ENTER, DOWN, ENTER]
    assert host.keys == [*menus, *"secret", ENTER, ENTER]


def test_each_of_several_keys_is_compared(machine: Callable[..., Machine]) -> None:
    other = "00" * 20
    second = [(SHOWN.replace("71 6D", "00 00"), ENTER), ("[Enroll MOK]", ENTER)]
    host = machine(
        *SCREENS[:6],
        *second,
        ("", DOWN),
        ("Enroll the key(s)?", ENTER),
        ("Continue boot", ENTER),
        ("Linux version", ENTER),
    )
    with pytest.raises(LabUnavailable, match="shows the fingerprint 00:00:24"):
        mokmanager._walk(Console(host), "gpu1", Request("enrol", (DIGITS, other), ()), "secret")
    assert host._screens == []


def test_another_fingerprint_is_not_confirmed(machine: Callable[..., Machine]) -> None:
    menu = [("", DOWN), ("Enroll the key(s)?", ENTER), ("Continue boot", ENTER), ("Linux version", ENTER)]
    host = machine(*SCREENS[:5], *menu)
    problem = f"shows the fingerprint {COLONS}, but the request is for 00:00:.*nothing was confirmed, and gpu1 boots"
    with pytest.raises(LabUnavailable, match=problem):
        mokmanager._walk(Console(host), "gpu1", Request("enrol", ("0" * 40,), ()), "secret")
    assert host._screens == []


def test_a_wrong_password_ends_with_a_booting_host(machine: Callable[..., Machine]) -> None:
    refusal = [("Password\x1b[7;9Hdoesn't match", ENTER), ("Password:", ENTER), ("Password doesn't match", ENTER)]
    menu = [("Continue\x1b[9;9Hboot", ENTER), ("Linux version 6.12", ENTER)]
    host = machine(*SCREENS, *letters("wrong"), *refusal, *menu)
    problem = "the password doesn't match; the request is gone, and gpu1 boots"
    with pytest.raises(LabUnavailable, match=problem) as caught:
        mokmanager._walk(Console(host), "gpu1", Request("enrol", (DIGITS,), ()), "wrong")
    assert "--password-file" in (caught.value.hint or "")
    assert host._screens == []


def test_a_silent_console_is_one_error(machine: Callable[..., Machine]) -> None:
    host = machine()
    with pytest.raises(LabUnavailable, match="gpu1's console did not show 'before' within 0 s") as caught:
        Console(host).wait("before", patience=0)
    assert caught.value.hint == f"See {host.log}"
    host.is_running = False
    with pytest.raises(LabUnavailable, match="gpu1 ended"):
        Console(host).wait("Password:", patience=5)


def test_fingerprints() -> None:
    assert mokmanager.fingerprints(LISTING + LISTING) == [DIGITS, DIGITS]
    assert mokmanager.fingerprints("MokNew is empty\n") == []
    assert mokmanager.fingerprint_on(mokmanager.compact(SHOWN)) == DIGITS
    assert mokmanager.fingerprint_on(mokmanager.compact(SHOWN[:60])) is None
    assert mokmanager.fingerprint_on("") is None


@pytest.mark.parametrize(
    ("action", "enrol", "delete", "place", "keys"),
    [
        ("enrol", ("a",), (), 1, ("a",)),
        ("enrol", ("a",), ("b",), 1, ("a",)),
        ("delete", (), ("b",), 1, ("b",)),
        ("delete", ("a",), ("b",), 2, ("b",)),
    ],
)
def test_the_actions_place_in_the_menu(
    action: str, enrol: tuple[str, ...], delete: tuple[str, ...], place: int, keys: tuple[str, ...]
) -> None:
    request = Request(action, enrol, delete)
    assert (request.place, request.keys) == (place, keys)


def test_hosts_without_a_mokmanager_are_refused(lab: Lab) -> None:
    with pytest.raises(LabUnavailable, match="build1 is a light host: it has no MokManager"):
        mokmanager.operate(lab, "build1")
    with pytest.raises(LabUnavailable, match="gpu1 isn't running"):
        mokmanager.operate(lab, "gpu1")
    lab.update(lambda value: value.update(firmware=Firmware(uefi=True).record()))
    with pytest.raises(LabUnavailable, match="gpu1 is a VM host with UEFI: it has no MokManager") as caught:
        mokmanager.operate(lab, "gpu1")
    assert "--secure-boot" in (caught.value.hint or "")


def test_without_a_request_or_its_password_nothing_is_rebooted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pending = ""

    def ssh(self: VmHost, argv: list[str], **_: Any) -> Any:
        assert "reboot" not in argv
        output = pending if "--list-new" in argv else ""
        return type("Completed", (), {"stdout": output, "status": 0})()

    monkeypatch.setattr(VmHost, "running", lambda self: True)
    monkeypatch.setattr(VmHost, "ssh", ssh)
    for action in ("enrol", "delete", "nothing"):
        with pytest.raises(LabUnavailable, match="gpu1 has no pending request") as caught:
            mokmanager.operate(lab, "gpu1", action)
        assert "mokutil --" in (caught.value.hint or "")
    pending = LISTING
    with pytest.raises(LabUnavailable, match=f"gpu1 has no {mokmanager.ONE_TIME}") as caught:
        mokmanager.operate(lab, "gpu1")
    assert "--password-file" in (caught.value.hint or "")
