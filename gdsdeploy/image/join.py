"""Run the image's sh in the namespaces of a process.  Arguments: the process, then those of sh.

Started by its path, with this machine's Python.  Once the mounts are joined, every file is the image's: so nothing is
imported after that, and the rights that no program of the image may have are given up before one is started.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

#: The same as in enter.sh, by their numbers in capability.h: chown, dac_override, fowner, fsetid, kill, setgid, setuid,
#: setpcap, net_bind_service, sys_chroot, setfcap.
_RIGHTS = (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31)
#: prctl(2)
_READ, _DROP = 23, 24
_ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "SYSTEMD_OFFLINE": "1",
}


def main(process: str, arguments: list[str]) -> None:
    """Become the image's sh; raises OSError."""
    mounts = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if os.path.samestat(os.fstat(mounts), Path("/proc/self/ns/mnt").stat()):
        sys.exit("the image is left: its process has ended, and another one has its number")
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
        # Ansible's is for what hosts send.
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (most, most))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(mounts, 0) != 0:
        raise OSError(ctypes.get_errno(), "can't join the mounts of the image")
    for right in range(64):
        if right not in _RIGHTS and libc.prctl(_READ, right, 0, 0, 0) == 1 and libc.prctl(_DROP, right, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"can't give up the right {right}")
    os.execve("/bin/sh", ["sh", *arguments], _ENVIRONMENT)  # noqa: S606 # nosec B606 # as this program's purpose is


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
