"""The audit trail of a host: each run of the real program as root, in a mount namespace with a /var/log of its own."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import trail
from gdsdeploy.host.paths import TRAIL
from gdsdeploy.zipapp import hostapp

FOLDER = str(Path(TRAIL).parent)
#: Other tests, too, are runs on this machine's /run, which has the lock of a host.
APART = "set -eu; mount -t tmpfs none /var/log; mount -t tmpfs none /run; umask 022; "


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder) / "gdsdeploy-host.pyz"


@pytest.fixture(autouse=True)
def _packed(program: Path) -> None:
    hostapp.build(program)


def host(script: str, program: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of root with ``P``, the program, and print the trail behind it."""
    argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{APART}{script}"]
    env = {"PATH": os.environ["PATH"], "P": str(program), "T": TRAIL, "D": FOLDER, **environment}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, timeout=300)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What the script printed of the trail, after a line of dashes."""
    assert "---\n" in done.stdout, done
    return [json.loads(line) for line in done.stdout.partition("---\n")[2].splitlines()]


DESIRED = json.dumps({"version": 1, "resources": [{"resource": "expectation", "desired": {}}]})


def test_a_run_has_one_line_and_a_run_that_changes_two(program: Path) -> None:
    script = "$P hello >/dev/null; printf '%s' \"$DESIRED\" | $P apply --desired - --check --json >/dev/null;"
    script += " mkdir -p /run/gdsdeploy; printf '%s' \"$DESIRED\" | $P apply --desired - --json >/dev/null;"
    script += ' echo ---; cat $T; stat -c \'{"mode": "%a", "owner": %u}\' $T'
    hello, check, began, ended, access = lines(host(script, program, DESIRED=DESIRED))
    assert (hello["verb"], hello["result"]) == ("hello", 0)
    assert (check["verb"], check["result"]) == ("apply", 0)
    assert (began["result"], ended["result"]) == ("began", 0)
    assert (began["pid"], began["start"]) == (ended["pid"], ended["start"])
    assert ended["start"] <= ended["end"]
    assert ended["resources"] == ["expectation"]
    assert ended["desired"] == hashlib.sha256(DESIRED.encode()).hexdigest()
    assert ended["program"] == hostapp.digest(hostapp.build())
    assert access == {"mode": "600", "owner": 0}


def test_what_a_controller_sends_says_who_it_claims_to_be(program: Path, tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    sent.write_bytes(hostapp.sent(hostapp.build(), ["gate", "show"], b"", b"x\n"))
    done = host(f"{hostapp.start()} <{sent} >/dev/null || true; echo ---; cat $T", program)
    (line,) = lines(done)
    assert (line["verb"], line["claimed"]) == ("gate show", hostapp.claim())
    assert line["result"] == 31


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("ann", "ann"),
        ("SITE\\ann.b", "SITE\\ann.b"),
        ("a\nb", "?"),
        ('x", "verb": "hello', "?"),
        ("\x1b[2J", "?"),
        ("\u202eann", "?"),
        ("a" * 5000, "?"),
        ("", ""),
    ],
)
def test_a_name_is_one_or_a_question_mark(name: str, kept: str, program: Path) -> None:
    environment = {"SUDO_USER": name, "SSH_CONNECTION": f"{name} 1 2 3", "GDSDEPLOY_CONTROLLER": name}
    done = host("$P hello >/dev/null; echo ---; cat $T", program, **environment)
    (line,) = lines(done)
    assert (line["sudo"], line["claimed"]) == (kept, kept)
    assert line["from"] in ("", "?")
    assert len(done.stdout) < 2000


@pytest.mark.parametrize(
    ("prepared", "reason"),
    [
        ("mkdir $D; ln -s /tmp/gds-victim $T", "Too many levels of symbolic links"),
        ("mkdir $D; mkfifo $T", "No such device or address"),
        ("mkdir -p $T", "Is a directory"),
        ("mkdir $D; echo >$D/x; ln $D/x $T", "not a file of root's alone"),
        ("mkdir $D; echo >$T; chown 65534 $T", "not a file of root's alone"),
        ("mkdir $D; chown 65534 $D", "can be changed by others"),
        ("mount -o remount,ro /var/log", "Read-only file system"),
        ("mkdir $D; mount -t tmpfs -o size=4k,mode=755 none $D; cat /dev/zero >$D/x 2>/dev/null || true; : >$T || true",
         "No space left on device"),
    ],
)  # fmt: skip
def test_a_trail_that_cannot_be_written_fails_nothing_and_is_said_once(
    prepared: str, reason: str, program: Path
) -> None:
    victim = Path("/tmp/gds-victim")
    assert not victim.exists()
    script = f"{prepared}; printf '%s' \"$DESIRED\" | $P apply --desired - --check --json; echo; $P evidence --json"
    done = host(script, program, DESIRED=DESIRED)
    assert done.returncode == 0, done
    applied, evidence = (json.loads(line) for line in done.stdout.splitlines() if line)
    assert not victim.exists()
    assert [note for note in applied["notes"] if TRAIL in note], applied
    (gap,) = [gap for gap in evidence["gaps"] if gap["collector"] == "audit trail"]
    assert reason in gap["reason"] or reason in done.stderr
    assert done.stderr.count("can't be written") == 2, "once in each run"
    assert "Traceback" not in done.stderr


def test_what_can_only_be_appended_to_is_appended_to(program: Path) -> None:
    """``chattr +a``, where the filesystem has it."""
    script = (
        "mkdir $W/log; mount --bind $W/log /var/log; $P hello >/dev/null; chattr +a $T; $P hello >/dev/null; echo ---;"
    )
    script += " cat $T; chattr -a $T"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        assert [line["verb"] for line in lines(host(script, program, W=folder))] == ["hello", "hello"]


def test_a_trail_that_was_moved_away_begins_again(program: Path) -> None:
    """As logrotate does it."""
    script = "$P hello >/dev/null; mv $T $T.1; $P hello >/dev/null; stat -c %a $T >$D/mode; echo ---; cat $T $T.1;"
    done = host(f'{script} test "$(cat $D/mode)" = 600', program)
    assert done.returncode == 0, done
    assert [line["verb"] for line in lines(done)] == ["hello", "hello"]


def test_its_end_is_evidence_where_it_is_asked_for(program: Path) -> None:
    script = "mkdir $D; head -c 50000000 /dev/zero | tr '\\0' x >$T; echo >>$T; $P hello >/dev/null;"
    script += " $P evidence --trail; $P evidence"
    done = host(script, program)
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    text = first["files"][TRAIL]
    assert len(text) <= trail.TAIL
    assert json.loads(text.splitlines()[-1])["verb"] == "hello"
    assert TRAIL not in second["files"]
    for kind in ("ln -s /etc/shadow $T", "mkfifo $T", "mkdir $T"):
        done = host(f"mkdir $D; {kind}; $P evidence --trail", program)
        record = json.loads(done.stdout)["files"][TRAIL]
        assert set(record) <= {"error", "text"}, record
        assert "root:" not in done.stdout.replace("root:x", "")


def test_a_run_that_is_killed_has_begun(program: Path) -> None:
    script = "mkfifo /var/log/p; sleep 60 >/var/log/p & S=$!; $P apply --desired - </var/log/p & "
    script += "until [ -s $T ]; do sleep 0.1; done; kill -KILL $!; wait $! || true; kill $S; echo ---; cat $T"
    (line,) = lines(host(script, program))
    assert (line["verb"], line["result"]) == ("apply", "began")


def test_others_and_images_have_none(program: Path) -> None:
    program.parent.chmod(0o755)
    script = (
        "setpriv --reuid 65534 --regid 65534 --clear-groups $P hello >/dev/null; mkdir -p $I; mount -t tmpfs none /run;"
    )
    script += " touch /run/gdsdeploy-image; $P hello >/dev/null; $P gate npd >/dev/null || true; echo ---; ls /var/log"
    done = host(script.replace("mkdir -p $I; ", ""), program)
    assert lines(done) == []


def test_the_journal_has_the_line_too(program: Path, tmp_path: Path) -> None:
    """By the socket that syslog(3) writes to."""
    place = tmp_path / "log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(place))
        journal.settimeout(20)
        script = "mount --rbind /dev /mnt; mount -t tmpfs none /dev; cp -a /mnt/null /mnt/zero /mnt/urandom /dev/;"
        script += " ln -s $S /dev/log; mount -o remount,ro /var/log; $P hello >/dev/null"
        done = host(script, program, S=str(place))
        assert done.returncode == 0, done
        text = journal.recv(8192).decode()
    assert "gdsdeploy-audit: {" in text
    assert json.loads(text[text.index("{") :].rstrip("\0\n"))["verb"] == "hello"
