"""What a shell or an image of CI has in its environment neither turns host keys off nor brings code into a run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy import resources, run
from gdsdeploy.converge import ansible, inventory
from gdsdeploy.errors import ChecksFailed, HostUnreachable
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.report.model import HostReport, Report, trouble_from
from gdsdeploy.ssh import sshconfig
from gdsdeploy.validate import pytest_suite
from tests.loopback.loopback_sshd import Sshd

Start = Callable[..., Sshd]

#: The four of the security review, and two more of ssh's.
UNCHECKING = {
    "ANSIBLE_HOST_KEY_CHECKING": "False",
    "ANSIBLE_SSH_HOST_KEY_CHECKING": "False",
    "ANSIBLE_SSH_ARGS": "-o StrictHostKeyChecking=no",
    "ANSIBLE_SSH_COMMON_ARGS": "-o StrictHostKeyChecking=no",
    "ANSIBLE_SSH_EXTRA_ARGS": "-o StrictHostKeyChecking=accept-new",
}
#: Ansible reads these, too, though their names begin otherwise; the others choose what OpenSSL and bash load.
LOADING = (
    *("_ANSIBLE_CONNECTION_PATH", "_ansible_coverage_remote_output", "_ANSIBLE_TEMPLAR_UNTRUSTED_TEMPLATE_BEHAVIOR"),
    *("OPENSSL_CONF", "OPENSSL_MODULES", "BASH_FUNC_exec%%", "GCONV_PATH"),
)
PLAY = "- hosts: all\n  gather_facts: false\n  become: false\n  tasks: [{raw: 'echo connected'}]\n"


@pytest.fixture
def golden_fleet(tmp_path: Path) -> Path:
    """A fleet with a lock, whose hosts can't be reached."""
    golden, folder = Path(__file__).parents[1] / "golden" / "lab", tmp_path / "fleet"
    folder.mkdir()
    (folder / "gdsdeploy.lock").write_bytes((golden / "gdsdeploy.lock").read_bytes())
    (folder / "fleet.yml").write_text((golden / "fleet.yml").read_text().replace("22011", "1"))
    (folder / "known_hosts").touch()
    return folder / "fleet.yml"


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ansible-playbook against a server with our own inventory: (server, known hosts, environment, its folder)."""
    folder = tmp_path_factory.mktemp("reach")

    def play(
        server: Sshd,
        known_hosts: Path,
        environment: dict[str, str | None],
        cwd: Path = folder,
        ssh: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        ssh = {**(ssh or {}), "user": "root", "identity_file": str(server.identity), "address": "127.0.0.1"}
        fleet = Fleet.model_validate(
            {
                "version": 1,
                "ssh": {**ssh, "port": server.port, "known_hosts": str(known_hosts)},
                "profiles": {"gds": {"os": "debian-13"}},
                "hosts": {"gpu1": {"profile": "gds"}},
            }
        )
        file, book = folder / "inventory.yml", folder / "play.yml"
        file.write_text(inventory.dump({"all": {"hosts": {"gpu1": inventory.connection(fleet, "gpu1", folder)}}}))
        book.write_text(PLAY)
        command = [*ansible.argv("provision", file, limit=[], extra=[])[:-1], str(book)]
        env = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)

    return play


@pytest.mark.parametrize("variable", sorted(UNCHECKING))
def test_a_key_that_is_not_on_record_is_refused_even_by_ansible_alone(
    sshd: Start, tmp_path: Path, reach: Callable[..., subprocess.CompletedProcess[str]], variable: str
) -> None:
    """As AWX runs what is rendered: with an environment that we don't choose."""
    known_hosts = tmp_path / "known_hosts"
    known_hosts.touch()
    own = {"ANSIBLE_CONFIG": str(resources.share() / "playbooks" / "ansible.cfg"), "ANSIBLE_HOME": str(tmp_path)}
    done = reach(sshd(), known_hosts, {**own, variable: UNCHECKING[variable]})
    assert done.returncode == 4, done.stdout
    assert "Host key verification failed" in done.stdout + done.stderr
    assert known_hosts.read_text() == ""


def test_another_connection_plugin_is_not_chosen(
    sshd: Start, tmp_path: Path, reach: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """paramiko's accepts every key when it is told to, and reads none of ssh's arguments."""
    known_hosts = tmp_path / "known_hosts"
    known_hosts.touch()
    own = {"ANSIBLE_CONFIG": str(resources.share() / "playbooks" / "ansible.cfg"), "HOME": str(tmp_path)}
    own |= {"ANSIBLE_TRANSPORT": "paramiko", "ANSIBLE_PARAMIKO_HOST_KEY_AUTO_ADD": "True"}
    done = reach(sshd(), known_hosts, own)
    assert done.returncode == 4, done.stdout
    assert "Host key verification failed" in done.stdout + done.stderr


@pytest.mark.parametrize("line", ["StrictHostKeyChecking no", "NoHostAuthenticationForLocalhost yes"])
def test_no_configuration_of_ssh_turns_the_check_off(
    sshd: Start, tmp_path: Path, reach: Callable[..., subprocess.CompletedProcess[str]], line: str
) -> None:
    known_hosts, config = tmp_path / "known_hosts", tmp_path / "config"
    known_hosts.touch()
    config.write_text(f"Host *\n  {line}\n")
    own = {"ANSIBLE_CONFIG": str(resources.share() / "playbooks" / "ansible.cfg")}
    done = reach(sshd(), known_hosts, own, ssh={"config": str(config)})
    assert done.returncode == 4, done.stdout
    assert "Host key verification failed" in done.stdout + done.stderr


def test_keys_come_from_known_hosts_and_not_from_dns(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host *\n  VerifyHostKeyDNS yes\n")
    argv = ["ssh", "-G", "-F", str(config), *shlex.split(str(inventory.CHECKED["ansible_ssh_args"])), "gpu1"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert "verifyhostkeydns false" in shown


def planted(folder: Path) -> dict[str, str]:
    """Code in every place that the environment can name; each leaves a file in ``folder``/ran."""
    (folder / "ran").mkdir()
    cwd, modules, home = folder / "cwd", folder / "modules", folder / "home"
    mark = f"import pathlib; pathlib.Path({str(folder / 'ran')!r}, __name__).touch()\n"
    files = [cwd / "yaml.py", cwd / "jinja2.py", modules / "sitecustomize.py", modules / "usercustomize.py"]
    files += [home / "plugins" / kind / "ours.py" for kind in ("callback", "vars", "filter", "test")]
    files += [home / "plugins" / kind / "raw.py" for kind in ("action", "modules")]
    files += [home / "plugins/connection/ssh.py", home / "plugins/strategy/linear.py", folder / "startup.py"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(mark)
    program = folder / "ssh"
    program.write_text(f"#!/bin/sh\ntouch {folder / 'ran' / 'ssh'}\nexec /usr/bin/ssh -o StrictHostKeyChecking=no $@\n")
    program.chmod(0o755)
    return {
        "ANSIBLE_HOME": str(home),
        "ANSIBLE_LIBRARY": str(home / "plugins/modules"),
        "ANSIBLE_ACTION_PLUGINS": str(home / "plugins/action"),
        "ANSIBLE_STRATEGY_PLUGINS": str(home / "plugins/strategy"),
        "ANSIBLE_CONNECTION_PLUGINS": str(home / "plugins/connection"),
        "ANSIBLE_SSH_EXECUTABLE": str(program),
        "PYTHONPATH": str(modules),
        "PYTHONSTARTUP": str(folder / "startup.py"),
        "PYTHONUSERBASE": str(home),
        "PYTHONWARNINGS": "error",
        "BASH_ENV": str(program),
        **UNCHECKING,
    }


def test_what_lies_about_is_not_loaded(
    sshd: Start, tmp_path: Path, reach: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    tmp_path.chmod(0o755)
    hostile = planted(tmp_path)
    server, control = sshd(), tmp_path / "cm"
    control.mkdir()
    environment = ansible.environment(
        control_dir=control, program=tmp_path / "host.pyz", inherited={**os.environ, **hostile}
    )
    done = reach(server, server.known_hosts, {**hostile, **environment}, tmp_path / "cwd")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok=1" in done.stdout or '"status": "ok"' in done.stdout
    assert [path.name for path in (tmp_path / "ran").iterdir()] == []


@pytest.mark.parametrize(
    "variable", ["LD_PRELOAD", "SSH_ASKPASS", "SSH_SK_PROVIDER", "PYTHONHOME", *UNCHECKING, *LOADING]
)
def test_no_such_variable_reaches_ansible(tmp_path: Path, variable: str) -> None:
    passed = ansible.environment(control_dir=tmp_path, program=tmp_path, inherited={variable: "theirs", "PATH": "/"})
    assert passed.get(variable, "theirs") != "theirs"
    assert "PATH" not in passed


def test_what_is_kept_is_on_the_page_with_its_reason_and_is_not_set_by_us(tmp_path: Path) -> None:
    inherited = dict.fromkeys(run.ALLOWED_VARIABLES, "theirs")
    assert run.cleared(inherited) == {}
    page = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
    assert dict(re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", page, re.MULTILINE)) == run.ALLOWED_VARIABLES
    assert (
        not run.ALLOWED_VARIABLES.keys()
        & ansible.environment(control_dir=tmp_path, program=tmp_path, inherited={}).keys()
    )


def test_flags_are_read_without_the_settings_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ansible.cfg").write_text(f"[defaults]\nforks = many\nlog_path = {tmp_path / 'theirs'}\n")
    monkeypatch.chdir(tmp_path)
    assert ansible.flags(["-v"]).converges
    assert not (tmp_path / "theirs").exists()


def test_the_suite_for_hosts_loads_nothing_that_lies_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden_fleet: Path
) -> None:
    """pytest runs in the current folder and has variables that load plugins."""
    for name in ("yaml", "jinja2", "theirs"):
        (tmp_path / f"{name}.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_PLUGINS", "theirs")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p theirs")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines: list[str] = []
    trouble = trouble_from(HostUnreachable("gpu1 is off"))
    report = Report("fleet.yml", "", "", (HostReport("gpu1", "gds", trouble=trouble),))
    with pytest.raises(ChecksFailed):
        pytest_suite.run_suite(report, load_fleet(golden_fleet), golden_fleet, ["-q"], line=lines.append)
    assert any("this host could not be asked" in line for line in lines), lines
    assert not (tmp_path / "ran").exists()


def test_ssh_and_proxies_get_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("SSH_SK_PROVIDER", "LD_AUDIT", "BASH_ENV", "PYTHONPATH"):
        monkeypatch.setenv(variable, str(tmp_path / "theirs"))
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    shown = tmp_path / "shown"
    config = tmp_path / "config"
    config.write_text(f'Match exec "env >{shown}"\n  HostName 192.0.2.1\n')
    monkeypatch.setenv("SHELL", "/bin/sh")
    sshconfig.ask("gpu1", port=None, user=None, config=config)
    proxied = run.dial([sys.executable, "-c", "import os; print(sorted(os.environ), flush=True)"], doing="test")
    try:
        names = proxied.socket.makefile().readline()
    finally:
        proxied.close()
    for text in (shown.read_text(), names):
        assert "SSH_AUTH_SOCK" in text
        assert not [name for name in ("SSH_SK_PROVIDER", "LD_AUDIT", "BASH_ENV", "PYTHONPATH") if name in text]
