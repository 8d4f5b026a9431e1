"""A host of zypper's, for the real zypper: its system in a folder of its own, and what wants to move it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.pins.test_dnf_pins import BASE
from tests.pins.test_dnf_pins import NEWER as RHEL_NEWER
from tests.pins.test_dnf_pins import STACK as RHEL_STACK
from tests.repos.rpmarchive import Rpm


def kernel(version: str) -> list[Rpm]:
    """SUSE's kernel: packages that zypper keeps several versions of."""
    several = ("multiversion(kernel)",)
    names = ("kernel-default", "kernel-default-devel", "kernel-devel")
    return [Rpm(name, version, vendor="SUSE LLC", provides=several) for name in names]


def g06(version: str) -> list[Rpm]:
    """The driver as SUSE's notes on NVIDIA's CUDA repository name it: signed modules, and userland of their version."""
    modules = f"{version}_k6.4.0_150600.23.60-1"
    return [
        Rpm("nvidia-open-driver-G06-signed-cuda-kmp-default", modules, conflicts=("nvidia-open-driver-G06",)),
        Rpm("nvidia-compute-utils-G06", f"{version}-1", requires=(f"nvidia-compute-G06 = {version}",)),
        Rpm("nvidia-compute-G06", f"{version}-1"),
    ]


def _others(rpms: Sequence[Rpm]) -> list[Rpm]:
    return [rpm for rpm in rpms if not rpm.name.startswith("kernel")]


STACK = [*_others(RHEL_STACK), *kernel("6.4.0-150600.23.60.5"), *g06("580.65.06")]
NEWER = [
    *_others(RHEL_NEWER), *kernel("6.4.0-150600.23.65.1"), *g06("580.95.05"),
    Rpm("nvidia-open-driver-G06", "590.44.01-1", conflicts=("nvidia-open-driver-G06-signed-cuda-kmp-default",)),
    # Nothing that is locked stands in the way of these.
    Rpm("nvidia-video-G06", "580.95.05-1"), Rpm("libcufile-13-0", "1.15.1.6-1"),
    Rpm("cuda-13", "13.0.1-1", requires=("nvidia-compute-utils-G06 >= 580.95",)),
]  # fmt: skip
AROUND = _others(BASE)


@dataclass(frozen=True)
class ZyppMachine:
    """``root`` holds the installed system and its configuration."""

    root: Path
    #: rpm of Debian keeps its database in the home directory
    home: str = "/root"

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = ["zypper", f"--root={self.root}", "--non-interactive", *words]
        env = {"PATH": "/usr/sbin:/usr/bin", "LC_ALL": "C", "HOME": self.home, "no_proxy": "127.0.0.1"}
        env["ZYPP_LOGFILE"] = os.devnull
        return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=60, check=False)

    def would(self, command: str) -> set[str]:
        """What the transaction changes that ``zypper COMMAND`` proposes; it answers a question as Enter does."""
        verb, *words = command.split()
        done = self.run("--no-refresh", verb, "--dry-run", *words)
        said = done.stdout + done.stderr
        # 4: a choice was to be made, and none was; 104: no such package
        assert done.returncode in (0, 4, 102, 103, 104), said
        assert re.search(r"^(Reading installed packages|Resolving)", said, re.MULTILINE), said
        if done.returncode in (4, 104):
            assert "Problem: " in said or "No provider" in said or "not found" in said, said
            return set()
        # Also shown is what stays as it is.
        lists = re.findall(r"^The following (?!.*\b(?:NOT|not)\b).*:\n((?: {2}.*\n)+)", said, re.MULTILINE)
        assert lists or "Nothing to do." in said, said
        return {name for text in lists for name in text.split()}

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def install(self, files: Sequence[str]) -> None:
        """Into rpm's database alone."""
        options = ["--justdb", "--nodeps", "--noscripts", "--nosignature", "--install"]
        env = {"PATH": "/usr/sbin:/usr/bin", "HOME": self.home}
        subprocess.run(["rpm", f"--root={self.root}", *options, *files], check=True, capture_output=True, env=env)
