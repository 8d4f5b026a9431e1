"""What a fleet's operator does in a year, on two light hosts: from a lock to a host that has nothing left.

Light hosts with real dpkg, apt, sshd and systemd, a signed repository of small packages, and real Ansible.  Nothing
loads a module and nothing reboots: virtual machines show that.  The lock is written by the test, since no small package
is a driver; ``gdsdeploy lock`` itself is tested against whole repositories (tests/repos).  Rollouts are driven without
the command, which would ask the builder first; there is none.  The tests build on each other, in order.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.paths import PROGRAM, TRAIL
from gdsdeploy.lock import lockfile
from gdsdeploy.lock.lockfile import pins
from gdsdeploy.model.lock import Lock
from gdsdeploy.model.rollout import Outcome, Wave
from tests.lab.program import gdsdeploy
from tests.lab.small_site import Site, roll, roll_back, running

pytestmark = pytest.mark.lab

CANARY, OTHER = "build1", "build2"
#: Without the builder, whose builds are in the cache already.
HOSTS = ("--limit", "build*")
READER = "reader"
#: Makes an account that the lab's key logs in to, and gives it the rule that comes on standard input.
ADMIT = f"""
cat > /root/rule
visudo -cf /root/rule
install -m 0440 /root/rule /etc/sudoers.d/gdsdeploy
useradd --create-home --shell /bin/sh {READER}
install -D -o {READER} "$(getent passwd "$SUDO_USER" | cut -d: -f6)/.ssh/authorized_keys" \\
    /home/{READER}/.ssh/authorized_keys
"""
WAVES = (Wave("canary", (CANARY,)), Wave("rest", (OTHER,)))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running(tmp_path_factory, lights=2) as site:
        lockfile.write(lockfile.beside(site.path), pinned(site, site.small.old))
        yield site


def pinned(site: Site, lock: Lock) -> Lock:
    """The lock as a resolution for the site's profile writes it."""
    profile = load_fleet(site.path).profiles["gds"]
    targets = {name: target.model_copy(update={"pins": pins(profile)}) for name, target in lock.targets.items()}
    return lockfile.build(targets)


def versions(site: Site) -> set[str]:
    return {site.version(name) for name in (CANARY, OTHER)}


def test_plan_names_what_provision_will_do_and_changes_nothing(site: Site) -> None:
    hosts = json.loads(gdsdeploy("plan", site.path, *HOSTS, "--json", status=32).stdout)["hosts"]
    for name in (CANARY, OTHER):
        installed = {action["subject"] for action in hosts[name]["actions"] if action["kind"] == "install"}
        assert {"small-driver", "small-cufile", "small-kernel"} <= installed
        site.root(name, "! test -e /etc/gdsdeploy")
    assert versions(site) == {""}


def test_provision_leaves_nothing_to_plan(site: Site) -> None:
    gdsdeploy("provision", site.path, *HOSTS)
    assert versions(site) == {"550.1 hi"}
    gdsdeploy("plan", site.path, *HOSTS)


def test_validate_passes_with_the_waivers_that_the_fleet_file_states(site: Site) -> None:
    report = json.loads(gdsdeploy("validate", site.path, *HOSTS, "--json").stdout)
    assert set(report["hosts"]) == {CANARY, OTHER}
    for host in report["hosts"].values():
        verdicts = {finding["check"]: finding["verdict"] for finding in host["findings"]}
        assert verdicts["packages.locked-versions"] == "pass", verdicts


def test_a_user_who_may_do_nothing_else_reads_with_the_rule_of_sudo(site: Site) -> None:
    rule = gdsdeploy("sudoers", READER).stdout
    user = site.path.parent / "reader.yml"
    fleet = yaml.safe_load(site.path.read_text())
    fleet["ssh"] |= {"user": READER, "read_only": "installed"}
    user.write_text(yaml.safe_dump(fleet))
    site.host(CANARY).ssh(["sudo", "sh", "-ec", ADMIT], input=rule)
    report = json.loads(gdsdeploy("validate", user, "--limit", CANARY, "--json").stdout)
    assert report["verdict"] == "waived"
    assert report["hosts"][CANARY]["gaps"] == []
    gdsdeploy("explain", CANARY, "/", "--fleet", user)
    login = ["ssh", "-F", site.host(CANARY).ssh_config, "-l", READER, CANARY]
    asked = [[], ["evidence"], ["serve", "--help"], ["apply", "--desired", "-"]]
    for words in (["cat", "/etc/shadow"], ["id"], *([PROGRAM, *arguments] for arguments in asked)):
        done = subprocess.run([*login, "sudo", "-n", *words], capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (1, ""), (words, done)
        assert "sudo:" in done.stderr, (words, done)
    trail = site.root(CANARY, f"cat {TRAIL}").splitlines()
    read = [line for line in map(json.loads, trail) if line["sudo"] == READER]
    assert [(line["login"], line["verb"], line["result"]) for line in read] == [(READER, "serve evidence", 0)] * 2


def test_validate_fails_on_a_host_that_somebody_has_changed(site: Site) -> None:
    site.root(OTHER, "dpkg --force-all --remove small-cufile")
    report = json.loads(gdsdeploy("validate", site.path, "--limit", OTHER, "--json", status=30).stdout)
    failed = {f["check"] for f in report["hosts"][OTHER]["findings"] if f["verdict"] == "fail"}
    assert "packages.locked-versions" in failed
    gdsdeploy("provision", site.path, "--limit", OTHER)
    gdsdeploy("plan", site.path, *HOSTS)


def test_rollout_whose_canary_fails_goes_back_and_touches_no_other_host(site: Site) -> None:
    site.root(CANARY, "echo fail > /small-driver.postinst")
    ran = roll(site, site.plan(pinned(site, site.small.new), *WAVES))
    assert ran.outcomes()[CANARY] is Outcome.ROLLED_BACK
    assert ran.failed(CANARY)[0] == "apply"
    assert ran.steps(OTHER) == []
    assert versions(site) == {"550.1 hi"}


def test_rollout_succeeds_when_the_fault_is_gone_and_is_rolled_back_by_command(site: Site) -> None:
    plan = site.plan(pinned(site, site.small.new), *WAVES)
    assert roll(site, plan).outcomes() == {CANARY: Outcome.DONE, OTHER: Outcome.DONE}
    assert versions(site) == {"550.2 hi"}
    gdsdeploy("plan", site.path, *HOSTS)
    machine = roll_back(site, plan, "the story goes back")
    assert {name: host.outcome for name, host in machine.hosts.items()} == {
        CANARY: Outcome.ROLLED_BACK, OTHER: Outcome.ROLLED_BACK,
    }  # fmt: skip
    assert versions(site) == {"550.1 hi"}


def test_remove_takes_everything_back(site: Site) -> None:
    lockfile.write(lockfile.beside(site.path), pinned(site, site.small.old))
    gdsdeploy("remove", site.path, *HOSTS)
    assert versions(site) == {""}
    for name in (CANARY, OTHER):
        site.root(name, "! ls -d /etc/gdsdeploy /usr/lib/gdsdeploy /etc/apt/*/*gdsdeploy* 2>/dev/null")
    again = json.loads(gdsdeploy("remove", site.path, *HOSTS, "--json").stdout)["hosts"]
    assert [again[name]["changed"] for name in (CANARY, OTHER)] == [[], []]
