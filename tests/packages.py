"""Programs that the tests start, and Debian's packages that have them.

``python -m tests.packages`` installs what is missing, and says so before it does, as the lab does for its own.
"""

from __future__ import annotations

import sys

from gdsdeploy import console
from gdsdeploy.errors import GdsError
from gdsdeploy.lab import requirements
from gdsdeploy.lab.requirements import Requirement

WANTED = (
    Requirement("gpg", "gnupg", "signs the repositories that tests serve"),
    Requirement("gpgv", "gpgv", "verifies repository indices"),
    Requirement("openssl", "openssl", "makes the certificates that tests show"),
    Requirement("git", "git", "publishes what hosts of tests pull"),
    Requirement("/usr/sbin/sshd", "openssh-server", "answers the tests of the transport"),
    Requirement("sudo", "sudo", "is what those tests become root with"),
    Requirement("depmod", "kmod", "is what the order of modules is compared with"),
    Requirement(
        "/usr/lib/python3/dist-packages/apt/__init__.py", "python3-apt", "runs unattended-upgrades on imitations"
    ),
    Requirement("/usr/lib/python3/dist-packages/distro_info.py", "python3-distro-info", "is what it needs beside"),
    Requirement("grub-editenv", "grub-common", "keeps the boot default that the kernel guard sets"),
    Requirement("kernel-install", "systemd", "runs the kernel guard's plugin"),
    Requirement("slurmctld", "slurmctld", "drains and resumes the node of the boot gate's tests"),
    Requirement("slurmd", "slurmd", "is that node"),
    Requirement("scontrol", "slurm-client", "is how the gate speaks to it"),
    Requirement("munged", "munge", "tells them that it is root who speaks"),
    Requirement("kubectl", "kubernetes-client", "cordons and drains the nodes of an imitated cluster"),
    Requirement("cc", "gcc", "compiles the stand-in libcuda"),
    Requirement("/usr/include/stdio.h", "libc6-dev", "is what small programs of tests are linked with"),
    Requirement("ps", "procps", "lists processes"),
    Requirement("mkfs.ext4", "e2fsprogs", "makes filesystems on which direct I/O is tried"),
    Requirement("mkfs.xfs", "xfsprogs", "makes filesystems on which direct I/O is tried"),
    Requirement("mkfs.btrfs", "btrfs-progs", "makes filesystems on which direct I/O is tried"),
    Requirement("xz", "xz-utils", "compresses modules"),
    Requirement("zstd", "zstd", "compresses modules"),
    Requirement("rpmbuild", "rpm", "builds the packages of the rpm repositories that tests serve"),
    Requirement("createrepo_c", "createrepo-c", "writes their metadata"),
    Requirement("dnf", "dnf", "is what the choice of rpm packages is compared with"),
)


def main() -> int:
    """Install what tests and lab lack; return the exit status."""
    try:
        requirements.ensure(vms=True, lights=True, also=WANTED, confirm=lambda _: True)
    except GdsError as error:
        console.error(error.message, error.hint)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
