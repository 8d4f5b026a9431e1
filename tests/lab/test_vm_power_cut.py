"""A real machine loses its power in the middle of a run: the next run ends well, and a removal leaves nothing.

A VM host with Debian's dpkg, apt, systemd and initramfs-tools.  Its disk has what the machine has written out, and what
was only in its memory is lost.  What a disk's own cache loses can't be shown so.  The stack is a few small packages.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

import gdslab as labs
from gdsdeploy.zipapp import hostapp
from gdslab.host import LabHost
from gdslab.state import Lab
from tests.lab.program import PATIENCE
from tests.lab.test_apply_drift_light import DRIFT_SCRIPTS, FOLDER, build, document, publish, send
from tests.naming import unique
from tests.repos.archive import Key

pytestmark = pytest.mark.lab

PLACE = "/srv/drift"
#: The distribution has the dependency alone.  dpkg writes out what it installs, as it does on hosts.
PREPARE = f"""set -eu
rm /etc/apt/sources.list.d/*
echo 'deb [trusted=yes] file:{PLACE}/repository base main' >/etc/apt/sources.list
rm -f /etc/dpkg/dpkg.cfg.d/*
apt-get --quiet --quiet update
sync
"""


@pytest.fixture(scope="module")
def vm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHost]:
    """A VM host that has the packages, the desired state and the program."""
    folder = tmp_path_factory.mktemp("cut")
    key = Key.generate(tmp_path_factory.mktemp("key") / "home", "drift")
    lab = Lab(unique("cut"))
    try:
        labs.up(lab.name, vms=1, lights=0)
        host = lab.host("gpu1")
        sums = publish(folder / "repository", build(folder / "debs"), key)
        release = host.ssh(["uname", "-r"]).stdout.strip()
        desired = document(f"file://{PLACE}/repository", key, sums, release)
        files = {
            str(file.relative_to(folder)): file.read_bytes()
            for file in (folder / "repository").rglob("*")
            if file.is_file()
        }
        files |= {script: (FOLDER / script).read_bytes() for script in DRIFT_SCRIPTS}
        files |= {"desired.json": json.dumps(desired).encode(), "gdsdeploy-host.pyz": hostapp.build()}
        send(host, files)
        host.ssh(["sudo", "sh", "-c", PREPARE], timeout=PATIENCE)
        yield host
    finally:
        labs.down(lab)
        key.forget()


def kills(host: LabHost, *words: str) -> Any:
    argv = ["sudo", "python3", f"{PLACE}/kills.py", "apt", PLACE, *words]
    return json.loads(host.ssh(argv, timeout=PATIENCE).stdout)


def test_a_run_that_a_power_cut_ended_is_made_up_for(vm: LabHost) -> None:
    report = kills(vm, "begin")
    assert not report["problems"], "\n".join(report["problems"])
    chance = random.Random(os.environ.get("CUTS", "1"))
    for _ in range(int(os.environ.get("CUTS_ROUNDS", "2"))):
        for step in ("apply", "remove"):
            moment = chance.uniform(0, report["seconds"][step])
            script = f"{PLACE}/kills.py apt {PLACE} interrupted {step}"
            vm.ssh(["sudo", "systemd-run", "--quiet", "python3", *script.split()])
            time.sleep(moment)
            vm.power_cycle()
            vm.wait_ssh(PATIENCE)
            again = kills(vm, "again", step)
            assert not again["problems"], "\n".join(
                [f"{step}, cut after {moment:.1f} s", *again["problems"], *again["said"]]
            )
