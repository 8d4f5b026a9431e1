"""The real dnf, on a system of its own below a folder."""

from __future__ import annotations

import subprocess
from pathlib import Path

#: Debian's rpm keeps its database in the home folder, below the root.
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C", "HOME": "/root"}


def dnf(root: Path, *words: str, answer: str = "yes") -> subprocess.CompletedProcess[str]:
    """Run dnf as root of a namespace, with the sources in ``root / repos``; the system is in ``root / root``.

    answer: what it is told when it asks, ``yes`` or ``no``.
    """
    argv = [
        "unshare", "--map-root-user", "--pid", "--fork", "dnf", f"--assume{answer}", f"--installroot={root / 'root'}",
        "--releasever=9", "--forcearch=x86_64", "--noplugins", f"--setopt=reposdir={root / 'repos'}",
        f"--setopt=cachedir={root / 'cache'}", f"--setopt=logdir={root}",
        "--setopt=module_platform_id=platform:el9", "--setopt=install_weak_deps=0", *words,
    ]  # fmt: skip
    return subprocess.run(argv, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
