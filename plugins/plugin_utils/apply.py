"""Runs the host program on a task's host, and moves files between the host and the controller."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shlex
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - Ansible's name for it
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gdsdeploy.gds.gdsdeploy.zipapp import hostapp

from .files import NOT_DELIVERED, GdsError

#: A packed host program: in a rendered folder, or named by ``gdsdeploy provision``.
PACKED = Path(__file__).parents[2] / "gdsdeploy-host.pyz"
VARIABLE = "GDSDEPLOY_HOST_PROGRAM"
#: The program's answer follows this line; without it, Python didn't start.
MARK = "\x1egdsdeploy\n"
#: What a build on a host keeps while it lasts (host/build/kbuild.PROGRESS), and the seconds between two looks at it.
BUILD, LOOK = "/run/gdsdeploy/build", 3.0
#: Variable with what events of ``gdsdeploy provision`` begin with; see callbacks/gds_events.py.
EVENTS = "GDSDEPLOY_EVENTS"
#: Lines of a failed program's output in an error.
TAIL = 12

display = Display()


class ProgramAction(ActionBase):  # type: ignore[misc]
    """An action that runs the host program, and moves files for it."""

    _supports_check_mode = True
    _supports_async = False
    #: the task's
    variables: dict[str, Any]

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        return str(self.variables.get("inventory_hostname", ""))

    @property
    def checks(self) -> bool:
        """Whether nothing may change."""
        return bool(self._task.check_mode)

    def read(self, path: str) -> bytes:
        """The content of a controller's file, found like a role's files; raises GdsError."""
        try:
            place = self._find_needle("files", path)
            return Path(self._loader.get_real_file(place)).read_bytes()
        except (AnsibleError, OSError) as error:
            raise GdsError(NOT_DELIVERED, f"{path}: can't be read on the controller: {error}") from None

    def bring(self, source: str, place: str) -> str:
        """Copy a controller's file to the host (not in check mode); return its SHA-256.  Raises GdsError."""
        try:
            with Path(source).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise GdsError(NOT_DELIVERED, f"{source}: can't be read on the controller: {error.strerror}") from None
        if not self.checks:
            self._play("copy", {"src": source, "dest": place, "owner": "root", "group": "root", "mode": "0644"})
        return digest

    def fetch(self, place: str, destination: str) -> None:
        """Copy a file of the host to the controller; raises GdsError."""
        self._play("fetch", {"src": place, "dest": destination, "flat": True})

    def _play(self, action: str, arguments: dict[str, Any]) -> None:
        """Run another action on this host; raises GdsError when it fails."""
        task = self._task.copy()
        task.args = arguments
        plugin = self._shared_loader_obj.action_loader.get(
            f"ansible.legacy.{action}",
            task=task,
            connection=self._connection,
            play_context=self._play_context,
            loader=self._loader,
            templar=self._templar,
            shared_loader_obj=self._shared_loader_obj,
        )
        done = plugin.run(task_vars=self.variables)
        if done.get("failed"):
            raise GdsError("io", f"{action}: {done.get('msg', 'failed')}")

    def warn(self, text: str) -> None:
        """Say this about the host."""
        display.warning(f"{self.host}: {text}")

    def ask(self, command: list[str], document: Mapping[str, Any]) -> dict[str, Any]:
        """The host program's answer; raises GdsError when there is none."""
        self._require_standard_input()
        words = [*command, "--json", *(["--check"] if self.checks else []), *self._run()]
        # Commands get the task's environment from their action, as a proxy for apt and dnf.
        start = self._compute_environment_string() + " " + hostapp.start(shlex.quote(self._interpreter()))
        sent = hostapp.sent(_program(), words, json.dumps(document).encode(), MARK.encode())
        with self._watching():
            done = self._low_level_execute_command(start.strip(), sudoable=True, in_data=sent)
        _, mark, output = done["stdout"].partition(MARK)
        if not mark:
            message = f"the host program can't start: no Python 3.9 or newer: {_tail(done)}"
            raise GdsError("python", message, "install python3, or set ansible_python_interpreter")
        try:
            answer = json.loads(output)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            message = f"the host program ended with status {done.get('rc')} without an answer: {_tail(done)}"
            raise GdsError("program", message)
        unknown = [text for resource in answer.get("resources", []) for text in resource.get("unknown", [])]
        for text in [*answer.get("notes", []), *(f"can't tell what would change: {text}" for text in unknown)]:
            self.warn(text)
        return answer

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Tell ``gdsdeploy provision`` what a build on the host is at, while the block waits for the host."""
        ended = threading.Event()
        builds = self._templar.template(self.variables.get("gds_modules_source") or "") == "build"
        if builds and not self.checks and os.environ.get(EVENTS):
            threading.Thread(target=self._watch, args=(ended, copy.copy(self._connection)), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _watch(self, ended: threading.Event, connection: Any) -> None:
        # What a build left that was killed doesn't change.
        earlier: bytes | None = None
        while not ended.wait(LOOK):
            try:
                status, output, _ = connection.exec_command(f"cat {BUILD}", sudoable=False)
            except (AnsibleError, OSError):
                return
            line = output[:64] if status == 0 else b""
            if line != earlier is not None and not ended.is_set():
                event = {"event": "build", "host": self.host, "said": line.decode("ascii", "replace")}
                display.display(f"\x1e{os.environ[EVENTS]}{json.dumps(event)}")
            earlier = line

    def _require_standard_input(self) -> None:
        become = self._connection.become
        if not self._connection.has_pipelining or (become is not None and not become.pipelining):
            how = self._connection.transport if become is None or become.pipelining else f"become with {become.name}"
            message = f"{how} can't pass the host program to a command's standard input"
            raise GdsError("connection", message, "use the connection plugin ssh, and become with sudo")

    def _interpreter(self) -> str:
        """The configured interpreter, or ``python3``; the host isn't searched."""
        interpreter = str(self._templar.template(self.variables.get("ansible_python_interpreter") or "auto"))
        return "python3" if interpreter.startswith("auto") else interpreter

    def _run(self) -> list[str]:
        """Options of a run of several tasks, which locks the host; see ``apply --help``."""
        values = {name: str(self._templar.template(self.variables.get(f"gds_{name}") or "")) for name in ("run", "who")}
        return [word for name, value in values.items() if value for word in (f"--{name}", value)]


def _program() -> bytes:
    """The host program, packed once for all hosts and tasks of a run."""
    configured = os.environ.get(VARIABLE)
    if configured or PACKED.is_file():
        return Path(configured or PACKED).read_bytes()
    program = Path(C.DEFAULT_LOCAL_TMP) / PACKED.name
    if not program.is_file():
        hostapp.build(program)
    return program.read_bytes()


def outcome(answer: Mapping[str, Any], *, diff: bool, check: bool) -> dict[str, Any]:
    """The task's result; what a check couldn't determine counts as a change, and so does what the run will deliver."""
    results = answer.get("resources", [])
    changes = [change for resource in results for change in resource["changes"]]
    refusals = [refusal for resource in results for refusal in resource.get("refusals", [])]
    if check and any(refusal["id"] == NOT_DELIVERED for refusal in refusals):
        coming = {"before": "", "after": "", "reason": NOT_DELIVERED, "disruption": "none"}
        changes += [{"kind": "receive", "subject": one["name"], "resource": one["name"], **coming} for one in results]
        refusals = [refusal for refusal in refusals if refusal["id"] != NOT_DELIVERED]
    unknown = any(resource.get("unknown") for resource in results)
    result: dict[str, Any] = {"changed": bool(changes or unknown), "failed": False, "changes": changes}
    result["report"] = results[0].get("report", {}) if results else {}
    if diff:
        result["diff"] = [_diff(entry) for resource in results for entry in resource.get("diffs", [])]
    error = answer.get("error")
    if check and changes and result["report"].get("allowed") is False:
        reasons = "; ".join(result["report"]["reasons"])
        message = f"this host needs a reboot ({reasons}) and its profile does not allow one"
        refusals.append({"message": message, "hint": "reboot it yourself, or allow it"})
    if error is None and refusals:
        # A check: apply would make none of the changes.
        result["changed"] = False
        error = {**refusals[0], "kind": "refused", "message": "; ".join(refusal["message"] for refusal in refusals)}
    return result if error is None else {**result, **failure(error["kind"], error["message"], error["hint"])}


def _diff(entry: Mapping[str, str]) -> dict[str, str]:
    names = {"before_header": entry["path"], "after_header": entry["path"]}
    return {**names, "before": entry["before"], "after": entry["after"]}


def failure(kind: str, message: str, hint: str) -> dict[str, Any]:
    """The result of a task that failed."""
    error = {"kind": kind, "message": message, "hint": hint}
    return {"failed": True, "msg": f"{message} ({hint})" if hint else message, "gds_error": error}


def _tail(done: Mapping[str, Any]) -> str:
    lines = (done.get("stderr") or done.get("stdout") or "it printed nothing").strip().splitlines()
    return "\n".join(lines[-TAIL:])
