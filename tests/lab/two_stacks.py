"""Two stacks of Debian's archive for hosts of one release, with different drivers, kernels, nvidia-fs and libcufile.

The older one is Debian 12's, on hosts of Debian 13; a kernel of its own comes with it.  The newer one has a
kernel of Debian 12's backports, for the release's driver doesn't compile on the release's kernels: docs/kernels.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from gdsdeploy.model.lock import Lock
from gdsdeploy.platform.debian import COMPONENTS
from gdslab import guest
from gdslab.archive import Archive, controller_archive
from gdslab.state import Lab
from tests.lab import mirrored
from tests.lab.rollouts import upgraded_lock
from tests.repos.archive import Key

_OLD = {"driver": {"version": "535", "flavour": "open"}, "kernel": "6.1", "nvidia_fs": "2.13", "libcufile": "1.4"}
_NEW = {"driver": {"version": "550", "flavour": "open"}, "kernel": "6.12"}


def repositories(archive: Archive, stack: str) -> dict[str, Any]:
    """Debian's own with the suite that has the stack, as an administrator would add it."""
    suites = ["trixie", "trixie-updates", "bookworm" if stack == "old" else "bookworm-backports"]
    return {"debian": {"uri": archive.uri, "suites": suites, "components": list(COMPONENTS)}}


def fleet(stack: str, lab: Lab, rollout: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fleet of ``lab`` for ``stack`` ("old" or "new").

    VM hosts and nodes have different profiles, because nodes run the kernel of this machine.  One builder serves both.
    """
    pins = _OLD if stack == "old" else _NEW
    common = {"os": "debian-13", "repositories": ["debian"], **pins}
    value: dict[str, Any] = {
        "version": 1,
        "repositories": repositories(controller_archive(), stack),
        "profiles": {
            # An emulated machine beside others needs longer than the half minute in which a real one is judged.
            "vm": {**common, "storage": [{"mount": guest.NVME_MOUNT, "path": "compat"}], "gate": {"seconds": 300}},
            "node": {**common, "own_kernel": False},
        },
        "ssh": {"user": guest.USER, "identity_file": "id_ed25519", "known_hosts": "known_hosts"},
        "hosts": {},
        **mirrored.settings(lab, stack),
    }
    for group in ("vm", "node"):
        for number, host in enumerate(lab.group(group)):
            value["hosts"][host.name] = {
                "profile": group,
                "address": "127.0.0.1",
                "port": host.port,
                "labels": {"rack": f"r{number // 2 + 1}"},
            }
    used = sorted({host["profile"] for host in value["hosts"].values()})
    value["profiles"] = {name: value["profiles"][name] for name in used}
    builder = lab.group("light")[0]
    value["builders"] = {builder.name: {"profile": used[0], "address": "127.0.0.1", "port": builder.port}}
    value["profiles"][used[0]]["builder"] = builder.name
    if rollout is not None:
        value["rollout"] = dict(rollout)
    return value


def lock(lab: Lab, stack: str, key: Key, rollout: Mapping[str, Any] | None = None) -> Lock:
    """Write the lab's fleet file for ``stack``, lock it, and mirror what is locked.  key: of the mirrors."""
    _write(lab, stack, rollout)
    locked = upgraded_lock(lab.fleet_path)
    mirrored.add(lab, stack, key)
    _write(lab, stack, rollout)
    return locked


def _write(lab: Lab, stack: str, rollout: Mapping[str, Any] | None) -> None:
    lab.fleet_path.write_text(yaml.safe_dump(fleet(stack, lab, rollout), sort_keys=False))
