"""Connection to the root folder of an image, which another program has entered."""

from __future__ import annotations

import subprocess  # nosec B404 # a list of arguments, as run.py has them, which the collection doesn't have
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = r"""
name: root
author: gdsdeploy
version_added: 0.1.0
short_description: Run tasks in the root folder of an image
description:
  - Each command is an argument of O(enter), which runs it in the image. The command C(gdsdeploy provision --root) makes
    namespaces for the image, and renders an inventory with this connection.
  - Tasks run as root, without O(ansible.builtin.become).
options:
  enter:
    description: The command, with its arguments, that runs the image's C(sh). It is followed by the arguments of C(sh).
    type: list
    elements: str
    required: true
    vars:
      - name: ansible_root_enter
extends_documentation_fragment: connection_pipelining
"""


class Connection(ConnectionBase):  # type: ignore[misc]
    """Commands and files go through the standard input and output of a shell in the image."""

    transport = "gdsdeploy.gds.root"
    has_pipelining = True

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> tuple[int, bytes, bytes]:
        """The status, the output and the errors of a command."""
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        done = self._run(cmd, input=in_data or b"", stdout=subprocess.PIPE)
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path: str, out_path: str) -> None:
        """Copy a file of the controller to the image, whole or not at all; raises AnsibleError."""
        super().put_file(in_path, out_path)
        with Path(in_path).open("rb") as file:
            self._carry('cat >"$1" || { rm -f "$1"; exit 1; }', out_path, stdin=file, stdout=subprocess.DEVNULL)

    def fetch_file(self, in_path: str, out_path: str) -> None:
        """Copy a file of the image to the controller; raises AnsibleError."""
        super().fetch_file(in_path, out_path)
        with Path(out_path).open("wb") as file:
            self._carry('cat "$1"', in_path, stdin=subprocess.DEVNULL, stdout=file)

    def close(self) -> None:
        """Nothing to close: the program that entered the image leaves it."""
        self._connected = False

    def _carry(self, script: str, path: str, **streams: Any) -> None:
        done = self._run(script, "sh", path, **streams)
        if done.returncode != 0:
            raise AnsibleError(f"{path}: {done.stderr.decode(errors='replace').strip()}")

    def _run(self, *words: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
        command = [*self.get_option("enter"), "-c", *words]
        return subprocess.run(command, check=False, stderr=subprocess.PIPE, **streams)  # noqa: S603 # nosec B603
