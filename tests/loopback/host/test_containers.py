"""The host program in real containers: Podman's and systemd-nspawn's, without the host's modules and devices.

Each has this machine's /usr, read-only, in an empty root.  GPUs can't be shown: this machine has none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.explain import as_document, explain
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.model.finding import FAIL
from gdsdeploy.zipapp import hostapp
from tests.unit.host.explain.test_explain_proof import EXPECTATION

PAGE = Path(__file__).parents[3] / "docs" / "containers.md"
PROGRAM = ["/usr/bin/python3", "-I", "-S", "/host.pyz"]
#: Links at the root of a system whose files are below /usr.
LINKS = ("bin", "sbin", "lib", "lib64")
#: nspawn makes /payload and /supervisor in its own control group, which other containers may have there too.
GROUP = """
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
    if [ -e "$hierarchy/cgroup.procs" ]; then
        mkdir -p "$hierarchy/$0"
        echo $$ >"$hierarchy/$0/cgroup.procs"
    fi
done
exec "$@"
"""
LIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    # systemd-nspawn covers /tmp of the container, and so a root below it.
    folder = Path("/var/tmp") / f"gdsdeploy-container-{os.getpid()}"
    folder.mkdir()
    for name in ("usr", "etc", "proc", "sys", "dev", "run", "tmp", "var"):
        (folder / name).mkdir()
    for name in LINKS:
        if Path("/", name).is_symlink():
            (folder / name).symlink_to(f"usr/{name}")
    hostapp.build(folder / "host.pyz")
    yield folder
    shutil.rmtree(folder)
    for group in Path("/sys/fs/cgroup").glob(f"**/{folder.name}"):
        for inner in sorted(group.glob("**/"), reverse=True):
            inner.rmdir()


def podman(root: Path, *options: str) -> list[str]:
    argv = ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "run", "--rm", "--network", "none", *LIMITS]
    return [*argv, "--volume", "/usr:/usr:ro", *options, "--rootfs", str(root)]


def nspawn(root: Path, *options: str) -> list[str]:
    argv = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--as-pid2", "--bind-ro=/usr", *options]
    return ["sh", "-c", GROUP, root.name, *argv, f"--directory={root}"]


def evidence(argv: list[str]) -> Any:
    done = subprocess.run([*argv, *PROGRAM, "evidence", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bare(root: Path) -> dict[str, Any]:
    return {"Podman": evidence(podman(root)), "systemd-nspawn": evidence(nspawn(root))}


NAMES = ("Podman", "systemd-nspawn")


@pytest.mark.parametrize("name", NAMES)
def test_the_manager_is_known_and_the_modules_are_the_host_s(bare: dict[str, Any], name: str) -> None:
    facts = facts_from(bare[name])
    assert facts.environment.container == name
    causes = [cause["id"] for kind in as_document(explain(facts, ()))["kinds"] for cause in kind["causes"]]
    assert "nvidia.not-on-container-host" in causes


@pytest.mark.parametrize("name", NAMES)
def test_what_the_container_lacks_is_named(bare: dict[str, Any], name: str) -> None:
    expectation = replace(EXPECTATION, rdma="dmabuf")
    findings = {finding.check: finding for finding in checks.run(facts_from(bare[name]), expectation)}
    view = findings["container.view"]
    assert view.verdict == FAIL
    assert view.found == (
        f"{name}: no /dev/nvidia0 or /dev/nvidiactl, no /dev/nvidia-uvm, no /dev/nvidia-fs*, no /run/udev/data, "
        "no /dev/infiniband/rdma_cm, no /dev/infiniband/uverbs*"
    )


def test_options_of_the_page_show_the_host_s_parts(root: Path, tmp_path: Path) -> None:
    """The options that don't need a GPU, taken from the page itself, with stand-ins for the host's parts."""
    udev, config, data = tmp_path / "udev", tmp_path / "cufile.json", tmp_path / "data"
    (udev / "data").mkdir(parents=True)
    config.write_text('{"properties": {"allow_compat_mode": false}}')
    data.mkdir()
    line = PAGE.read_text().replace(" \\\n", "").partition("    podman run ")[2].partition("\n")[0].split()
    volumes = [line[place + 1] for place, word in enumerate(line) if word == "--volume"]
    assert volumes == ["/run/udev:/run/udev:ro", "/etc/cufile.json:/etc/cufile.json:ro", "/mnt/nvme:/mnt/nvme"]
    stand_ins = {"/run/udev": udev, "/etc/cufile.json": config, "/mnt/nvme": data}
    options = [f"{stand_ins[volume.split(':')[0]]}:{volume.partition(':')[2]}" for volume in volumes]
    options = [word for option in options for word in ("--volume", option)]
    facts = facts_from(evidence(podman(root, *options)))
    assert facts.environment.udev == ("data",)
    assert facts.cufile.setting("properties", "allow_compat_mode", True) is False
    mounts = facts.storage.mounts
    assert isinstance(mounts, dict)
    assert "/mnt/nvme" in mounts
