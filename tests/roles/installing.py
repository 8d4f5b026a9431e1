"""The collection as a user gets it: its tarball, installed beside Ansible and without gdsdeploy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from docs.gen import collection

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def environment(collections: Path, home: Path) -> dict[str, str]:
    """Of an Ansible beside which there is neither gdsdeploy nor any library of it."""
    missing = home / "missing"
    for name in ("gdsdeploy", "pydantic", "click", "httpx", "paramiko", "platformdirs"):
        missing.mkdir(exist_ok=True)
        (missing / f"{name}.py").write_text(f"raise ModuleNotFoundError('{name} is not installed', name='{name}')\n")
    return {
        "HOME": str(home),
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(missing),
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
    }


def install(folder: Path) -> None:
    """Build the released tarball in ``folder``, and install it in ``folder/collections`` without a network."""
    collection.build(folder / "source")
    env = environment(folder / "none", folder)
    galaxy = [BIN / "ansible-galaxy", "collection"]
    subprocess.run(
        [*galaxy, "build", "--output-path", folder, folder / "source"], env=env, check=True, capture_output=True
    )
    (tarball,) = folder.glob("gdsdeploy-gds-*.tar.gz")
    argv = [*galaxy, "install", "--offline", "--collections-path", folder / "collections", tarball]
    subprocess.run(argv, env=env, check=True, capture_output=True)
