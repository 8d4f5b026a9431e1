"""Programs that only know this machine's own folders, run so that what they write is gone with them."""

from __future__ import annotations

import os
from pathlib import Path


def in_place(script: str, *words: str | Path, over: tuple[str, ...] = (), processes: bool = False) -> list[str | Path]:
    """argv of a shell ``script`` with arguments ``words`` in a private mount namespace.

    over: folders (without the first slash) that are writable there, in memory.
    processes: also in a process namespace, so that nothing survives it.
    """
    own = ["--pid", "--fork", "--mount-proc"] if processes else []
    # Without root, nothing can be mounted below the folders by other tests.
    alone = ["unshare", "--mount", "sh", "-c", _ALONE.format(" ".join(over)), "sh"] if os.geteuid() == 0 else []
    return [
        *alone,
        "unshare",
        "--map-root-user",
        "--mount",
        *own,
        "sh",
        "-c",
        _START.format(" ".join(over)) + script,
        "sh",
        *words,
    ]


# A user namespace can lay nothing over a folder in which others have mounted something: those mounts are locked there.
_ALONE = r"""
tac /proc/self/mountinfo | while read -r _ _ _ _ point _; do
    for folder in {}; do case $point in /$folder/*) umount --lazy "$(printf %b "$point")" || : ;; esac; done
done
exec "$@"
"""
_START = """
set -eu
# Of /run, because the lock of a host is there.
[ -z "{0}" ] || {{ mount -t tmpfs tmpfs /mnt && mount -t tmpfs tmpfs /run; }}
for folder in {0}; do
    mkdir -p /mnt/$folder /mnt/$folder.work
    mount -t overlay overlay -o "lowerdir=/$folder,upperdir=/mnt/$folder,workdir=/mnt/$folder.work" /$folder
done
# Of a node exporter on this machine; users of the namespace are few, so its owner isn't one of them.
[ -z "{0}" ] || [ ! -d /var/lib/prometheus ] || mount -t tmpfs tmpfs /var/lib/prometheus
"""
