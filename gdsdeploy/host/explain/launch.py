"""How a container is started so that programs in it see the parts of the host that cuFile needs.

Sources: NVIDIA Container Toolkit, whose runtime adds the devices, the udev database and /etc/cufile.json for
NVIDIA_GDS=enabled and the devices of RDMA for NVIDIA_MOFED=enabled; the manuals of ``docker run``, ``podman run``,
``apptainer exec`` and ``enroot start``; the device plugin of Kubernetes.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Callable, Dict, List, Sequence, Tuple

from ..facts import HostFacts
from ..facts.unknown import if_known
from ..paths import CUFILE

UDEV, RDMA_DEVICES = "/run/udev", "/dev/infiniband"
IMAGE = "IMAGE"


@dataclass(frozen=True)
class View:
    """What a container needs of this host; paths are absolute."""

    #: nodes of nvidia-fs, e.g. ``/dev/nvidia-fs0``; empty without nvidia-fs
    nvidia_fs: Tuple[str, ...]
    rdma: bool
    #: folders with data, readable and writable
    mounts: Tuple[str, ...]
    #: the host's folders and files that are shown read-only
    shared: Tuple[str, ...] = (UDEV, CUFILE)


def view(facts: HostFacts, mounts: Sequence[str]) -> View:
    """What a container on this host needs for I/O on ``mounts``."""
    devices = tuple(f"/dev/nvidia-fs{number}" for number in if_known(facts.nvidia_fs.devices, ()))
    # Docker makes a folder of a path that doesn't exist, and Apptainer refuses it.
    absent = {UDEV: facts.environment.udev == (), CUFILE: facts.cufile.digests[CUFILE] is None}
    shared = tuple(path for path, is_absent in absent.items() if not is_absent)
    return View(devices, bool(if_known(facts.peermem.rdma_devices, ())), tuple(mounts), shared)


def launch(manager: str, needs: View) -> str:
    """The command or manifest for one of MANAGERS, ready to copy; ``IMAGE`` stands for the image."""
    return MANAGERS[manager](needs)


def _docker(needs: View) -> str:
    return _command(["docker", "run", "--rm", "--gpus", "all", *_engine(needs), IMAGE])


def _podman(needs: View) -> str:
    # SELinux would keep the container from the devices and from the host's folders.
    options = ["--device", "nvidia.com/gpu=all", "--security-opt", "label=disable"]
    return _command(["podman", "run", "--rm", *options, *_engine(needs), IMAGE])


def _engine(needs: View) -> List[str]:
    """Options that Docker and Podman share."""
    words = [word for path in needs.nvidia_fs for word in ("--device", path)]
    if needs.rdma:
        # Registered memory is locked, and counts.
        words += ["--device", RDMA_DEVICES, "--ulimit", "memlock=-1:-1"]
    for path, mode in _binds(needs):
        words += ["--volume", f"{path}:{path}" + (":ro" if mode == "ro" else "")]
    return words


def _apptainer(needs: View) -> str:
    # It shows the host's /dev unless it is started with --contain.
    binds = ",".join(f"{path}:{path}" + (":ro" if mode == "ro" else "") for path, mode in _binds(needs))
    return _command(["apptainer", "exec", "--nv", *(["--bind", binds] if binds else []), "IMAGE.sif", "COMMAND"])


def _enroot(needs: View) -> str:
    # Its hooks 98-nvidia.sh and 99-mellanox.sh add the devices of GPUs and adapters.
    words = ["--env", "NVIDIA_VISIBLE_DEVICES=all"]
    if needs.rdma:
        words += ["--env", "MELLANOX_VISIBLE_DEVICES=all"]
    binds = [(path, "rw") for path in needs.nvidia_fs] + _binds(needs)
    words += [word for path, mode in binds for word in ("--mount", f"{path}:{path}:none:x-create=auto,bind,{mode}")]
    return _command(["enroot", "start", *words, "NAME", "COMMAND"])


def _kubernetes(needs: View) -> str:
    """A pod for the device plugin; the runtime of NVIDIA's toolkit adds the devices."""
    environment = {"NVIDIA_GDS": "enabled", **({"NVIDIA_MOFED": "enabled"} if needs.rdma else {})}
    binds = _binds(needs)
    container: Dict[str, object] = {
        "name": "gds",
        "image": IMAGE,
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "volumeMounts": [
            {"name": f"host-{number}", "mountPath": path, **({"readOnly": True} if mode == "ro" else {})}
            for number, (path, mode) in enumerate(binds)
        ],
    }
    if needs.rdma:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    volumes = [{"name": f"host-{number}", "hostPath": {"path": path}} for number, (path, _) in enumerate(binds)]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gds"},
        "spec": {"runtimeClassName": "nvidia", "containers": [container], "volumes": volumes},
    }
    return json.dumps(pod, indent=2)


def _binds(needs: View) -> List[Tuple[str, str]]:
    """(path, mode) of the host's folders and files that the container shows."""
    return [*((path, "ro") for path in needs.shared), *((path, "rw") for path in needs.mounts)]


def _command(words: Sequence[str]) -> str:
    """One command, with an option and its value on each line."""
    lines: List[str] = []
    for word in words:
        quoted = shlex.quote(word)
        if word.startswith("--") or not lines or word in (IMAGE, "IMAGE.sif", "NAME"):
            lines.append(quoted)
        else:
            lines[-1] += " " + quoted
    return " \\\n  ".join(lines)


#: Container manager → its launch.
MANAGERS: Dict[str, Callable[[View], str]] = {
    "docker": _docker,
    "podman": _podman,
    "apptainer": _apptainer,
    "enroot": _enroot,
    "kubernetes": _kubernetes,
}
