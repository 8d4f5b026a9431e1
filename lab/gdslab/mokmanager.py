"""MokManager, driven as a person does: by the keyboard and the serial console of a VM host with Secure Boot."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from gdsdeploy import console
from gdslab.errors import LabUnavailable
from gdslab.host import LabHost
from gdslab.keyboard import DOWN, ENTER, Keyboard, strokes
from gdslab.qemu import VmHost
from gdslab.state import Lab

#: Action → option of mokutil that lists its requests, and MokManager's menu entry.
ACTIONS = {"enrol": ("--list-new", "Enroll MOK"), "delete": ("--list-delete", "Delete MOK")}
#: Where `gdsdeploy kmod enrol` leaves the one-time password on a host.
ONE_TIME = "/var/lib/gdsdeploy-mok-password"
#: Seconds until a text has to appear: the countdown after a reboot, a menu, the host's answer.
REBOOT, MENU, BOOT = 300.0, 30.0, 900.0
#: Seconds between keys: under emulation MokManager draws a menu in half a second.
PAUSE, LETTER = 0.7, 0.2
#: After a wrong password: Enter for each of two more attempts and three messages, and one to spare.
_ATTEMPTS = 6
#: A control sequence of a terminal.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?=]*[ -/]*[@-~]|[@-Z\\-_])")
_PENDING = re.compile(r"SHA1 Fingerprint: ([0-9a-f:]{59})", re.IGNORECASE)


class Console:
    """What a person has before them: the log of a VM host's serial console, and its keyboard.

    A socket in the log's place loses output where this machine is busy: the firmware doesn't wait for a slow reader.
    """

    def __init__(self, host: LabHost) -> None:
        self._host = host
        self._begin = 0
        self._forget()

    def wait(self, *texts: str, patience: float) -> str:
        """Return the first of ``texts`` that appears since the last key, within ``patience`` seconds.

        Spaces don't count: between words the firmware moves the cursor.  Raises LabUnavailable when the time is over.
        """
        end = time.monotonic() + patience
        while True:
            screen = self.screen
            for text in texts:
                if compact(text) in screen:
                    return text
            if not self._host.running():
                raise LabUnavailable(f"{self._host.name} ended", hint=f"See {self._host.log}")
            if time.monotonic() > end:
                raise LabUnavailable(
                    f"{self._host.name}'s console did not show {texts[0]!r} within {patience:.0f} s",
                    hint=f"See {self._host.log}",
                )
            time.sleep(0.2)

    def press(self, *keys: str) -> None:
        """Press ``keys`` one after the other, each after a pause."""
        with self._keyboard() as keyboard:
            for key in keys:
                time.sleep(PAUSE)
                self._forget()
                keyboard.press(key)
        time.sleep(PAUSE)

    def type(self, text: str) -> None:
        """Type ``text``, of which the screen shows nothing, without Enter."""
        with self._keyboard() as keyboard:
            for stroke in strokes(text):
                time.sleep(LETTER)
                keyboard.press(*stroke)

    @property
    def screen(self) -> str:
        """What appeared since the last key, without white space and control sequences."""
        with self._host.log.open("rb") as log:
            log.seek(self._begin)
            return compact(log.read().decode(errors="replace"))

    def _forget(self) -> None:
        self._begin = self._host.log.stat().st_size

    def _keyboard(self) -> Keyboard:
        return Keyboard(self._host.name, self._host.directory)


def compact(text: str) -> str:
    """``text`` without control sequences and without any white space."""
    return "".join(_SEQUENCE.sub("", text).split())


def fingerprint_on(screen: str) -> str | None:
    """The SHA-1 fingerprint (40 hexadecimal digits) on MokManager's screen of a key; None without one."""
    _, mark, rest = screen.partition("[Fingerprint]")
    digits = re.sub(r"[^0-9A-Fa-f]", "", rest)[:40].lower()
    return digits if mark and len(digits) == 40 else None


def fingerprints(listing: str) -> list[str]:
    """The SHA-1 fingerprints (40 hexadecimal digits each) in mokutil's list of keys, in its order."""
    return [match.replace(":", "").lower() for match in _PENDING.findall(listing)]


@dataclass(frozen=True)
class Request:
    """What a host's firmware is to be asked: ``action`` of ACTIONS, and the requests' fingerprints."""

    action: str
    enrol: tuple[str, ...]
    delete: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Fingerprints of the keys that the action is about, in MokManager's order."""
        return self.delete if self.action == "delete" else self.enrol

    @property
    def place(self) -> int:
        """Position of the action in the first menu, after "Continue boot"."""
        return 2 if self.action == "delete" and self.enrol else 1


def operate(lab: Lab, name: str, action: str = "enrol", password: str | None = None) -> list[str]:
    """Reboot the host ``name``, which has a request for MokManager, and do ``action`` at its console.

    action: of ACTIONS.  password: default: that in the host's own file.
    Prints what a person sees.  Returns the keys' fingerprints when the host answers again.
    Raises LabUnavailable for a host without Secure Boot, without such a request, or with another fingerprint on its
    screen than in the request; and for a wrong password.
    """
    host = _with_secure_boot(lab, name)
    request = Request(action, *(_pending(host, option) for option, _ in ACTIONS.values()))
    if not request.keys:
        how = f"sudo mokutil --{'delete' if action == 'delete' else 'import'} CERTIFICATE.der"
        raise LabUnavailable(
            f"{name} has no pending request to {action} a key",
            hint=f"Make one: gdsdeploy lab ssh --lab {lab.name} {name} -- {how}",
        )
    if password is None:
        password = _one_time(lab, host)
    strokes(password)
    before = _boot(host)
    screen = Console(host)
    console.say(f"  {name}: rebooting")
    host.ssh(["sudo", "systemctl", "reboot"], ok=range(256))
    attend(screen, name, request, password)
    host.wait_ssh(BOOT)
    if _boot(host) == before:
        raise LabUnavailable(f"{name} did not reboot", hint=f"See {host.log}")
    _check(lab, host, request)
    return list(request.keys)


def attend(screen: Console, name: str, request: Request, password: str) -> None:
    """Wait at the console of a host that is rebooting, and do there what ``request`` says, until its kernel starts.

    Raises LabUnavailable as :func:`operate`.
    """
    screen.wait("Press any key to perform MOK management", patience=REBOOT)
    console.say('  "Press any key to perform MOK management"')
    _walk(screen, name, request, password)
    screen.wait("Linux version", patience=REBOOT)


def _walk(screen: Console, name: str, request: Request, password: str) -> None:
    """From the countdown to the reboot, through the menus of the request's action."""
    entry = ACTIONS[request.action][1]
    screen.press(ENTER)
    screen.wait("Perform MOK management", patience=MENU)
    _step("Perform MOK management", entry)
    screen.press(*[DOWN] * request.place, ENTER)
    screen.wait(f"[{entry}]", patience=MENU)
    for number, expected in enumerate(request.keys):
        _step(f"[{entry}]", f"View key {number}")
        screen.press(ENTER)
        screen.wait("[Fingerprint]", patience=MENU)
        shown = fingerprint_on(screen.screen) or "unreadable"
        screen.press(ENTER)
        console.say(f"  [Fingerprint] {_pairs(shown)}")
        if shown != expected:
            screen.press(*[DOWN] * (len(request.keys) - number), ENTER)
            _leave(screen)
            raise LabUnavailable(
                f"{name}'s MokManager shows the fingerprint {_pairs(shown)}, but the request is for {_pairs(expected)};"
                f" nothing was confirmed, and {name} boots",
                hint="Make the request again, and find out who else changes the host's firmware variables",
            )
        screen.press(DOWN)
    _step(f"[{entry}]", "Continue")
    screen.press(ENTER)
    question = screen.wait("Enroll the key(s)?", "Delete the key(s)?", patience=MENU)
    _step(question, "Yes")
    screen.press(DOWN, ENTER)
    screen.wait("Password:", patience=MENU)
    _step("Password:", "(typed, nothing is shown)")
    screen.type(password)
    screen.press(ENTER)
    if screen.wait("Reboot", "Password doesn't match", patience=MENU) != "Reboot":
        _leave(screen)
        raise LabUnavailable(
            f"{name}'s MokManager says that the password doesn't match; the request is gone, and {name} boots",
            hint="Make the request again with another password, and pass that with --password-file",
        )
    _step("Perform MOK management", "Reboot")
    screen.press(ENTER)


def _leave(screen: Console) -> None:
    """Confirm nothing, and choose "Continue boot" so that the host boots; uses up the attempts at a password."""
    for _ in range(_ATTEMPTS):
        screen.press(ENTER)
        if compact("Continue boot") in screen.screen:
            screen.press(ENTER)
            break
    screen.wait("Linux version", patience=REBOOT)


def _step(heading: str, choice: str) -> None:
    console.say(f"  {heading}  →  {choice}")


def _pairs(digits: str) -> str:
    return ":".join(re.findall("..", digits)) if len(digits) == 40 else digits


def _with_secure_boot(lab: Lab, name: str) -> VmHost:
    host = lab.host(name)
    if not isinstance(host, VmHost) or host.uefi is None or not host.uefi.secure_boot:
        kind = "a light host" if host.kind == "light" else f"a VM host with {lab.firmware.title}"
        raise LabUnavailable(
            f"{name} is {kind}: it has no MokManager",
            hint="Make a lab whose VM hosts have it: gdsdeploy lab up --lab NAME --secure-boot",
        )
    if not host.running():
        raise LabUnavailable(f"{name} isn't running", hint=f"gdsdeploy lab up --lab {lab.name}")
    return host


def _pending(host: LabHost, option: str) -> tuple[str, ...]:
    """Fingerprints of the requests that mokutil lists with ``option``."""
    return tuple(fingerprints(host.ssh(["sudo", "mokutil", option], ok=range(255)).stdout))


def _one_time(lab: Lab, host: LabHost) -> str:
    done = host.ssh(["sudo", "cat", ONE_TIME], ok=(0, 1))
    password = done.stdout.strip("\n")
    if not password:
        raise LabUnavailable(
            f"{host.name} has no {ONE_TIME}, so the password of the request is unknown",
            hint=f"Name a file with it: gdsdeploy lab mokmanager --lab {lab.name} {host.name} --password-file FILE",
        )
    return password


def _boot(host: LabHost) -> str:
    return host.ssh(["cat", "/proc/sys/kernel/random/boot_id"], timeout=60).stdout


def _check(lab: Lab, host: LabHost, request: Request) -> None:
    """Raise LabUnavailable unless the firmware did what it was asked."""
    enrolled = set(fingerprints(host.ssh(["sudo", "mokutil", "--list-enrolled"], ok=range(255)).stdout))
    wrong = set(request.delete) & enrolled if request.action == "delete" else set(request.enrol) - enrolled
    if wrong:
        listing = f"gdsdeploy lab ssh --lab {lab.name} {host.name} -- sudo mokutil --list-enrolled"
        raise LabUnavailable(
            f"{host.name} answers, but the action {request.action} had another result for the key {_pairs(min(wrong))}",
            hint=f"Look at its keys: {listing}",
        )
