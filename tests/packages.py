"""Programs that the tests start, and their Debian packages.  ``python -m tests.packages`` installs missing ones."""

from __future__ import annotations

import sys
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.errors import GdsError
from gdslab import efi, requirements
from gdslab.requirements import Requirement

#: The browser that shows pages.
CHROMIUM = "/usr/bin/chromium-headless-shell"
REQUIREMENTS = (
    Requirement("gpg", "gnupg", "signs the repositories that tests serve"),
    Requirement("gpgv", "gpgv", "verifies repository indices"),
    Requirement("openssl", "openssl", "makes the certificates that tests show"),
    Requirement("git", "git", "publishes what hosts of tests pull"),
    Requirement("ip", "iproute2", "makes the network in which commands of the documentation run"),
    Requirement("jq", "jq", "is what these commands pipe JSON into"),
    Requirement("unzip", "unzip", "reads the host program as they do"),
    Requirement("/usr/sbin/sshd", "openssh-server", "answers the tests of the transport"),
    Requirement("sudo", "sudo", "makes those tests root"),
    Requirement("depmod", "kmod", "is compared with the order of modules"),
    Requirement(
        "/usr/lib/python3/dist-packages/apt/__init__.py", "python3-apt", "runs unattended-upgrades on imitations"
    ),
    Requirement(
        "/usr/lib/python3/dist-packages/distro_info.py", "python3-distro-info", "is what unattended-upgrades needs"
    ),
    Requirement("grub-editenv", "grub-common", "keeps the boot default that the kernel guard sets"),
    Requirement("kernel-install", "systemd", "runs the kernel guard's plugin"),
    Requirement("slurmctld", "slurmctld", "drains and resumes the node of the boot gate's tests"),
    Requirement("slurmd", "slurmd", "is that node"),
    Requirement("scontrol", "slurm-client", "connects the gate to them"),
    Requirement("munged", "munge", "authenticates root to them"),
    Requirement("kubectl", "kubernetes-client", "cordons and drains the nodes of an imitated cluster"),
    Requirement("cc", "gcc", "compiles the stand-in libcuda"),
    Requirement("/usr/include/stdio.h", "libc6-dev", "links the small programs of tests"),
    Requirement("ps", "procps", "lists processes"),
    Requirement(
        f"/usr/lib/{Path('/usr/bin/python3').resolve().name}/ensurepip/__init__.py",
        "python3-venv",
        "makes the environment of the tutorial's user",
    ),
    Requirement("prometheus", "prometheus", "scrapes the series of hosts and answers queries"),
    Requirement("promtool", "prometheus", "tests the alert rules"),
    Requirement("prometheus-node-exporter", "prometheus-node-exporter", "exports the series of hosts"),
    Requirement(CHROMIUM, "chromium-headless-shell", "shows the pages of reports"),
    Requirement("podman", "podman", "starts containers"),
    Requirement("runc", "runc", "runs them where control groups are mixed"),
    Requirement("mkfs.ext4", "e2fsprogs", "makes filesystems on which direct I/O is tried"),
    Requirement("mkfs.xfs", "xfsprogs", "makes filesystems on which direct I/O is tried"),
    Requirement("mkfs.btrfs", "btrfs-progs", "makes filesystems on which direct I/O is tried"),
    Requirement("xz", "xz-utils", "compresses modules"),
    Requirement("zstd", "zstd", "compresses modules"),
    Requirement("lz4", "lz4", "compresses the image of a kernel"),
    Requirement("rpmbuild", "rpm", "builds rpm packages"),
    Requirement("createrepo_c", "createrepo-c", "writes their metadata"),
    Requirement("dnf", "dnf", "is compared with the choice of rpm packages"),
    *efi.requirements(tpm=True),
)


def main() -> int:
    """Install missing packages of the tests and of the lab; return the exit status."""
    try:
        requirements.ensure(vms=True, lights=True, also=REQUIREMENTS, confirm=lambda _: True)
    except GdsError as error:
        console.error(error.message, error.hint)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
