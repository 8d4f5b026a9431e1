"""A machine as the real apt sees it: installed packages, configured repositories and preferences, below one folder.

Nothing on the machine that runs the tests is asked or changed; what apt would do is what ``apt-get --simulate`` says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDERS = (
    "etc/apt/apt.conf.d",
    "etc/apt/preferences.d",
    "etc/apt/sources.list.d",
    "etc/apt/trusted.gpg.d",
    "var/lib/apt/lists/partial",
    "var/cache/apt/archives/partial",
    "var/lib/dpkg/info",
    "var/lib/dpkg/updates",
    "var/log",
    "run",
    "var/log/unattended-upgrades",
)


@dataclass(frozen=True)
class AptMachine:
    """``root`` holds etc and var."""

    root: Path
    #: as dpkg names it
    architecture: str = "amd64"

    @classmethod
    def make(cls, root: Path, installed: Iterable[Mapping[str, str]], architecture: str = "amd64") -> AptMachine:
        """A machine with these packages (stanzas of a package list) completely installed."""
        for folder in _FOLDERS:
            (root / folder).mkdir(parents=True)
        left_out = ("Filename", "Size", "SHA256")
        (root / "var/lib/dpkg/status").write_text(
            "\n".join(
                "".join(f"{key}: {value}\n" for key, value in stanza.items() if key not in left_out)
                + "Status: install ok installed\nMaintainer: nobody <nobody@archive.example>\nDescription: imitated\n"
                for stanza in installed
            )
        )
        (root / "var/lib/dpkg/available").touch()
        machine = cls(root, architecture)
        machine._configure()
        return machine

    def copy(self, root: Path) -> AptMachine:
        """The same machine once more."""
        shutil.copytree(self.root, root)
        machine = AptMachine(root, self.architecture)
        machine._configure()
        return machine

    def _configure(self) -> None:
        root = self.root
        (root / "apt.conf").write_text(
            f'Dir "{root}";\nDir::State::status "{root}/var/lib/dpkg/status";\nDir::Log "{root}/var/log";\n'
            f'APT::Architecture "{self.architecture}";\nAPT::Architectures {{ "{self.architecture}"; }};\n'
            'APT::Sandbox::User "root";\n'
            f'DPkg::Options {{ "--admindir={root}/var/lib/dpkg"; "--log={root}/var/log/dpkg.log"; }};\n'
            'Acquire::Languages "none";\nAcquire::http::Proxy "DIRECT";\nAPT::Install-Recommends "false";\n'
            # What a machine has beside its own configuration is compiled into apt; hooks are the machine's own.
            'Dir::Bin::methods "/usr/lib/apt/methods";\n#clear DPkg::Post-Invoke;\n#clear APT::Update::Post-Invoke;\n'
        )

    def source(self, name: str, line: str) -> None:
        """Configure a repository."""
        (self.root / "etc/apt/sources.list.d" / f"{name}.list").write_text(line + "\n")

    def preferences(self, name: str, text: str) -> None:
        """Write a file of preferences."""
        (self.root / "etc/apt/preferences.d" / name).write_text(text)

    def run(self, *argv: str | Path, ok: Iterable[int] = (0,)) -> str:
        """Run a program of apt here and return what it said."""
        env = {
            **os.environ,
            "APT_CONFIG": str(self.root / "apt.conf"),
            "LC_ALL": "C",
            "DEBIAN_FRONTEND": "noninteractive",
        }
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        assert done.returncode in ok, f"{argv} ended with {done.returncode}\n{output}"
        return output

    def simulate(self, *words: str) -> dict[str, str]:
        """Package → version that ``apt-get WORDS`` would install, or ``removed``; a refusal moves nothing."""
        output = self.run("apt-get", "--simulate", "--assume-yes", *words, ok=(0, 100))
        moved = dict(re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", output, re.MULTILINE))
        return moved | dict.fromkeys(re.findall(r"^(?:Remv|Purg) (\S+)", output, re.MULTILINE), "removed")

    def candidate(self, package: str) -> str:
        """The version that apt would take; empty for none."""
        match = re.search(r"Candidate: (\S+)", self.run("apt-cache", "policy", package))
        return "" if match is None or match[1] == "(none)" else match[1]
