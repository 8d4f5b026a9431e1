"""Who may do what on a host: an account whose only rule of sudo is that of ``gdsdeploy sudoers``."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.cli import sudoers
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.machine import Machine
from gdsdeploy.host.cli import serve
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.paths import EXPECTATION, PROGRAM, TRAIL
from gdsdeploy.lock import lockfile
from gdsdeploy.zipapp import hostapp
from tests.commandline import Run
from tests.loopback.loopback_fleet import LoopbackFleet
from tests.loopback.loopback_sshd import READER, Sshd

Make = Callable[..., LoopbackFleet]
RIGHT = {"profile": "right"}
KERNEL = ("--check", "kernel.running")
MARK = "ab" * 16
SUDO = f"sudo -n {PROGRAM} serve"


def expected(fleet: LoopbackFleet) -> Expectation:
    intent, lock = lockfile.fleet_and_lock(fleet.path, signed=False)
    return expectation(Machine(intent, lock, "gpu1"))


def provisioned(server: Sshd, text: str) -> None:
    """Leave what provision leaves for these verbs: the program, and an expectation."""
    server.place(PROGRAM, hostapp.build(), 0o755)
    server.place(EXPECTATION, text)
    # They have been covered with the rest of /etc.
    server.run(f"for name in passwd shadow group sudoers; do mount --bind {server.folder}/$name /etc/$name; done")


@pytest.fixture
def fleet(make_fleet: Make) -> LoopbackFleet:
    """A fleet of one host, on which this controller has no right but that of the rule."""
    made = make_fleet(gpu1=RIGHT)
    value = yaml.safe_load(made.path.read_text())
    value["ssh"] |= {"user": READER, "read_only": "installed"}
    made.path.write_text(yaml.safe_dump(value))
    return made


def trail(server: Sshd) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.run(f"cat {TRAIL}").splitlines()]


def logged_in(server: Sshd, command: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command of the account, as ssh runs it."""
    argv = ["ssh", "-F", "none", "-p", str(server.port), "-i", str(server.identity), "-o", "BatchMode=yes"]
    argv += ["-o", f"UserKnownHostsFile={server.known_hosts}", f"{READER}@127.0.0.1", command]
    return subprocess.run(argv, input=text, capture_output=True, check=False, timeout=300)


def test_verbs_that_read_need_no_other_right(fleet: LoopbackFleet, run: Run, tmp_path: Path) -> None:
    provisioned(fleet.server, expected(fleet).to_json())
    code, out, err = run("validate", fleet.path, *KERNEL, "--json")
    assert code == 0, err
    assert json.loads(out)["verdict"] == "pass"
    assert run("validate", fleet.path, "--since-boot", "--json")[0] == 30, "it has no gate, and no sudo is asked"
    code, out, err = run("explain", "gpu1", "/", "--fleet", fleet.path, "--json")
    assert code == 0, err
    assert [each["mount"] for each in json.loads(out)["mounts"]] == ["/"]
    code, out, err = run("watch", fleet.path, "--once", "--every", "0.2", "--json")
    assert code == 0, err
    assert json.loads(out)["processes"] is not None
    code, out, err = run("topology", fleet.path, "--json")
    assert code == 0, err
    assert "gpu1" in json.loads(out)
    bundle = tmp_path / "bundle.tar.gz"
    code, _, err = run("support-bundle", fleet.path, "-o", bundle)
    assert code == 0, err
    lines = trail(fleet.server)
    assert {(line["verb"], line["sudo"], line["result"]) for line in lines} == {
        ("serve evidence", READER, 0), ("serve watch", READER, 0),
    }  # fmt: skip
    assert {line["claimed"] for line in lines} == {hostapp.claim()}
    assert {line["program"] for line in lines} == {hostapp.digest(hostapp.build())}
    assert lines[0]["lock"] == expected(fleet).lock_digest
    with tarfile.open(bundle) as archive:
        member = archive.extractfile("gdsdeploy-support/hosts/gpu1/evidence.json")
        assert member is not None
        kept = json.load(member)["files"][TRAIL].splitlines()
    # Its own line comes after its evidence.
    assert [json.loads(line)["start"] for line in kept] == [line["start"] for line in lines[:-1]]
    assert READER not in "".join(kept)


def test_verbs_that_change_need_root_and_say_so(fleet: LoopbackFleet, run: Run) -> None:
    provisioned(fleet.server, expected(fleet).to_json())
    code, out, err = run("plan", fleet.path, "--limit", "gpu1")
    assert code == 22, err
    text = " ".join(out.split())
    assert f"{READER} cannot become root without a password" in text
    assert "docs/security.md#rights" in text


@pytest.mark.parametrize(
    "command",
    [
        "sudo -n id",
        "sudo -n python3 -I -S -c pass",
        f"sudo -n /usr/bin/python3 -I -S {PROGRAM} serve",
        f"sudo -n {PROGRAM}",
        f"sudo -n {PROGRAM} serve --help",
        f"sudo -n {PROGRAM} serve serve",
        f"sudo -n {PROGRAM} evidence --mount /etc/shadow",
        f"sudo -n {PROGRAM} 'serve '",
        "sudo -n /usr/lib/gdsdeploy/../gdsdeploy/gdsdeploy-host.pyz evidence serve",
        f"sudo -n PYTHONPATH=/tmp {SUDO.removeprefix('sudo -n ')}",
        f"sudo -n -E {PROGRAM} serve",
        f"sudo -n -D /tmp {PROGRAM} serve",
        f"sudo -n -u '#1' {PROGRAM} serve",
        f"sudo -n sudoedit {PROGRAM}",
    ],
)
def test_the_account_may_do_nothing_else(fleet: LoopbackFleet, command: str) -> None:
    fleet.server.place(PROGRAM, hostapp.build(), 0o755)
    done = logged_in(fleet.server, command, b"{}")
    assert done.returncode == 1, done
    assert b"sudo: " in done.stderr or b"sorry" in done.stderr.lower()
    assert not fleet.server.run(f"ls {Path(TRAIL).parent}"), "the program hasn't begun"


def ask(server: Sshd, argv: list[Any], **other: Any) -> subprocess.CompletedProcess[bytes]:
    request = {
        "version": 1, "program": hostapp.digest(hostapp.build()), "mark": MARK, "seconds": 60, "argv": argv, **other,
    }  # fmt: skip
    return logged_in(server, SUDO, json.dumps(request).encode())


def test_nothing_of_the_callers_surroundings_counts(fleet: LoopbackFleet) -> None:
    """Its folder, variables, umask, limits and a program of its own name."""
    provisioned(fleet.server, expected(fleet).to_json())
    mine = fleet.server.folder / "home" / "mine"
    mine.mkdir()
    for name in ("json.py", "os.py", "dpkg-query", "python3"):
        (mine / name).write_text("#!/bin/sh\nraise SystemExit(7)\n")
        (mine / name).chmod(0o755)
    request = {
        "version": 1, "program": hostapp.digest(hostapp.build()), "mark": MARK, "seconds": 60,
        "argv": ["evidence", "--json"], "claimed": "ann@desk",
    }  # fmt: skip
    setting = (
        f"cd {mine}; umask 0; ulimit -S -f 0; export PATH={mine}:$PATH PYTHONPATH={mine} PYTHONINSPECT=1 TMPDIR={mine}"
    )
    setting += " CUFILE_ENV_PATH_JSON=/etc/shadow GDSDEPLOY_CONTROLLER=root@evil SUDO_USER=root SSH_CONNECTION=evil"
    done = logged_in(fleet.server, f"{setting}; {SUDO}", json.dumps(request).encode())
    assert done.returncode == 0, done
    document = json.loads(done.stdout.partition(MARK.encode())[2])
    assert document["environment"] == {}
    assert "/etc/shadow" not in document["configs"]
    (line,) = trail(fleet.server)
    assert (line["sudo"], line["claimed"], line["from"]) == (READER, "ann@desk", "")
    assert fleet.server.run(f"stat -c %a {TRAIL}").strip() == "600"
    # A sudo that resets nothing.
    text = fleet.server.run(f"CUFILE_ENV_PATH_JSON=/etc/shadow {PROGRAM} serve", json.dumps(request))
    assert json.loads(text.partition(MARK)[2])["environment"] == {}


#: Questions that the installed program refuses, and a word of the reason.
REFUSED = (
    ([], "isn't a question"),
    (["apply", "--desired", "-"], "isn't a question"),
    (["serve"], "isn't a question"),
    (["facts", "--evidence", "/etc/shadow"], "isn't a question"),
    (["explain", "--log", "/etc/shadow"], "isn't a question"),
    (["evidence", "--evidence", "/etc/shadow"], "isn't a question"),
    (["evidence", "--load"], "isn't a question"),
    (["evidence", "--expectation=/etc/shadow"], "isn't a question"),
    (["evidence", "--exp", "-"], "isn't a question"),
    (["evidence", "--json", "--json"], "isn't a question"),
    (["evidence", "--mount", "/etc/shadow"], "nothing is mounted"),
    (["evidence", "--mount", "--load"], "nothing is mounted"),
    (["evidence", "--mount"], "nothing is mounted"),
    (["evidence", "--expectation", "-"], "can't be used"),
    (["watch", "--metrics", "--folder", "/etc"], "isn't a question"),
    (["watch", "--collect"], "isn't a question"),
    (["watch", "--every", "1e999"], "isn't a number"),
    (["watch", "--job", "1; id"], "isn't a Slurm job"),
)


@pytest.mark.parametrize(("argv", "reason"), REFUSED)
def test_other_questions_are_refused(argv: list[str], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "EXPECTATION", str(Path(__file__).parents[2] / "evidence/hosts/lab-vm.expectation.json"))
    with pytest.raises(serve.RefusedError, match=reason):
        serve.question(serve.Request(1, "d", MARK, 60, argv), "d")


def test_an_expectation_reads_what_root_has_put_there_alone(fleet: LoopbackFleet) -> None:
    """The file that an expectation names is in the evidence: here the host's own has to name it."""
    ours = expected(fleet)
    provisioned(fleet.server, replace(ours, lock_digest="", host="").to_json())
    theirs = replace(ours, cufile_path="/etc/shadow")
    argv = ["evidence", "--json", "--expectation", "-"]
    done = ask(fleet.server, argv, text=theirs.to_json())
    assert b"another cufile_path than" in done.stdout
    assert b"root:" not in done.stdout + done.stderr
    assert b'"files"' in ask(fleet.server, argv, text=ours.to_json()).stdout
    theirs = replace(ours, storage=[{"mount": "/tmp", "path": "direct"}])
    assert b"another storage than" in ask(fleet.server, argv, text=theirs.to_json()).stdout


@pytest.mark.parametrize(
    "request_text",
    [
        b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}",
        b'{"version":1,"program":"","mark":"x\\n::error","seconds":60,"argv":[]}',
        b'{"version":1,"program":"","mark":"' + MARK.encode() + b'","seconds":999999,"argv":[]}',
        b'{"version":1,"program":"","mark":"' + MARK.encode() + b'","seconds":60,"argv":["a\\u001b[2J"]}',
        b'{"version":1,"program":"","mark":"' + MARK.encode() + b'","seconds":60,"argv":[1]}',
        b'{"x": "' + b"y" * (5 << 20) + b'"}',
    ],
)  # fmt: skip
def test_a_request_that_is_none_is_one_error(request_text: bytes, fleet: LoopbackFleet) -> None:
    fleet.server.place(PROGRAM, hostapp.build(), 0o755)
    done = logged_in(fleet.server, SUDO, request_text)
    assert (done.returncode, done.stdout) == (2, b"")
    assert re.fullmatch(rb"gdsdeploy-host: [^\n\x1b]{1,300}\n", done.stderr), done.stderr
    (line,) = trail(fleet.server)
    assert (line["verb"], line["result"]) == ("serve", 2)


def test_each_reason_why_it_does_not_answer_has_a_next_command(
    fleet: LoopbackFleet, run: Run, make_fleet: Make
) -> None:
    argv = ("topology", fleet.path)

    def refusal() -> str:
        code, out, err = run(*argv)
        assert (code, out.strip()) in ((22, ""), (22, "{}")), (out, err)
        return " ".join(err.split())

    text = refusal()
    assert "gdsdeploy's program isn't installed there" in text
    assert "gdsdeploy provision" in text
    fleet.server.place(PROGRAM, hostapp.build() + b"another", 0o755)
    assert "isn't that of this controller" in refusal()
    fleet.server.run(f"cat > {PROGRAM}", b"#!/bin/sh\necho 'invalid choice: serve' >&2; exit 2\n")
    text = refusal()
    assert "doesn't answer this controller" in text
    assert "invalid choice" in text
    fleet.server.run("sed -i /serve/d /etc/sudoers || sed /serve/d /etc/sudoers > /tmp/s; cat /tmp/s > /etc/sudoers")
    text = refusal()
    assert f"sudo doesn't let {READER} run the installed program" in text
    assert f"gdsdeploy sudoers {READER}" in text


def test_the_rule_is_one_for_visudo_and_for_login_names_alone(tmp_path: Path, run: Run) -> None:
    code, out, _ = run("sudoers", "ann", "bob.b", "ann")
    assert code == 0
    (tmp_path / "rule").write_text(out)
    subprocess.run(["/usr/sbin/visudo", "-c", "-f", tmp_path / "rule"], check=True, capture_output=True)
    assert [line for line in out.splitlines() if not line.startswith(("#", "Defaults!/usr/lib/gdsdeploy/"))] == [
        f"{name} ALL=(root) NOPASSWD: NOSETENV: {PROGRAM} serve" for name in ("ann", "bob.b")
    ]
    for name in ("ALL", "%wheel", "#0", "+net", "ann ALL=(ALL) ALL\nx", "a,b", "!ann", "Ann", "-x" * 9, ""):
        code, out, err = run("sudoers", "--", name)
        assert (code, out) == (2, ""), name
        assert "isn't a login name" in err


def test_whoever_is_root_needs_no_rule(make_fleet: Make, run: Run) -> None:
    made = make_fleet(gpu1={**RIGHT, "read_only": "installed"})
    made.server.place(PROGRAM, hostapp.build(), 0o755)
    code, _, err = run("topology", made.path, "--json")
    assert code == 0, err
    (line,) = trail(made.server)
    assert (line["verb"], line["sudo"], line["from"]) == ("serve evidence", "", "127.0.0.1")
    assert shlex.split(SUDO)[2:] == [PROGRAM, "serve"]
    assert sudoers.rules(["ann"]).endswith(f" {PROGRAM} serve")
