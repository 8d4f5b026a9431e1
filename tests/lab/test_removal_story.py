"""The end of the stories of the VM host: ``gdsdeploy remove`` takes back what provision did.

Goes on with the VM host of test_secure_boot_story.py.
"""

from __future__ import annotations

import json

import pytest

from gdsdeploy.lock import lockfile
from gdslab.host import LabHost
from tests.lab.image import Image
from tests.lab.program import gdsdeploy

pytestmark = pytest.mark.lab


def test_remove_takes_back_what_provision_did(golden: Image, booted: LabHost) -> None:
    lab = golden.lab
    gdsdeploy("provision", lab.fleet_path, "--limit", "gpu1")
    locked = lockfile.read(lockfile.beside(lab.fleet_path)).targets["vm"]
    host, record = booted, "/var/lib/gdsdeploy/installed"
    recorded = set(host.ssh(["sudo", "cat", record]).stdout.split())
    kernel = f"linux-image-{locked.kernel.release}"
    # The image had it before.
    assert kernel not in recorded
    hosts = json.loads(gdsdeploy("remove", lab.fleet_path, "--limit", "gpu1", "--json").stdout)["hosts"]
    assert hosts["gpu1"]["changed"]
    traces = "find /etc/gdsdeploy /usr/lib/gdsdeploy /var/lib/gdsdeploy/* /etc/cufile.json /etc/apt/*/*gdsdeploy*"
    hooks = "/etc/kernel/*/*gdsdeploy*"
    modules = (
        f"/etc/mod*/gdsdeploy.conf /lib/modules/{locked.kernel.release}/updates/gdsdeploy /etc/depmod.d/gdsdeploy*"
    )
    assert host.ssh(["sudo", "sh", "-c", f"{traces} {modules} {hooks} 2>/dev/null"], ok=(1,)).stdout == ""
    installed = host.ssh(["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Package}\n"]).stdout
    stayed = {line.split()[1] for line in installed.splitlines() if line.startswith("installed ")}
    assert kernel in stayed
    assert not stayed & recorded
    again = json.loads(gdsdeploy("remove", lab.fleet_path, "--limit", "gpu1", "--json").stdout)["hosts"]
    assert again["gpu1"]["changed"] == []
