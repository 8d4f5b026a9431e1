"""Base of the action plugins: one resource of the host program per task.

A task is one command on the host, also in check mode: ``python3`` reads the host program from standard input and runs
``apply`` with the task's options as the desired state.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812 - Ansible's name for it
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import fragment_loader, module_loader
from ansible.utils.display import Display
from ansible.utils.plugin_docs import get_docstring
from ansible_collections.gdsdeploy.gds.gdsdeploy.zipapp import hostapp

COLLECTION = "gdsdeploy.gds"
#: A packed host program: in a rendered folder, or named by ``gdsdeploy provision``.
PACKED = Path(__file__).parents[2] / "gdsdeploy-host.pyz"
VARIABLE = "GDSDEPLOY_HOST_PROGRAM"
#: The program's answer follows this line; without it, Python didn't start.
MARK = "\x1egdsdeploy\n"
#: Lines of a failed program's output in an error.
TAIL = 12
#: Bytes of address space for the rest of a task whose answer doesn't fit; never written, so they take no memory.
_RESERVE = 64 * 2**20
#: Refusal for the lack of what a builder's task of the same run may deliver; kind of an error, too.
NOT_DELIVERED = "not-delivered"
#: Options that aren't part of the desired state.
OWN = ("instance", "state")

display = Display()


class GdsError(Exception):
    """A failure; ``kind`` is for programs, ``message`` and ``hint`` for people."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint


class ApplyAction(ActionBase):  # type: ignore[misc]
    """The action of every module: apply the resource in the module's name."""

    _supports_check_mode = True
    _supports_async = False

    @property
    def resource(self) -> str:
        """``packages`` for ``gdsdeploy.gds.gds_packages``."""
        return str(self._task.action).rpartition(".")[2].removeprefix("gds_")

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ansible's entry point."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        options = self._options()
        reserve = bytearray(_RESERVE)
        try:
            desired = self.prepare({key: value for key, value in options.items() if key not in OWN}, variables)
            answer = self._ask(self.command(options), _document(self.resource, options, desired), variables)
            self._warn(answer, str(variables.get("inventory_hostname", "")))
            result |= _result(answer, diff=bool(self._task.diff), check=bool(self._task.check_mode))
            if not result["failed"] and not self._task.check_mode:
                self.finish(options, variables)
        except GdsError as error:
            result |= _failure(error.kind, error.message, error.hint)
        except MemoryError:
            del reserve
            result |= _failure("program", "the host's answer is too large for this machine's memory", "check that host")
        return result

    def prepare(self, options: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        """The desired state for the module's options; may read files of the controller.  Raises GdsError."""
        return options

    def finish(self, options: Mapping[str, Any], variables: dict[str, Any]) -> None:
        """Called after the resource was applied without an error, not in check mode.  Raises GdsError."""

    def command(self, options: Mapping[str, Any]) -> list[str]:
        """The host program's arguments for this call."""
        if options.get("state") == "absent":
            return ["remove", self.resource]
        return ["apply", "--desired", "-", *(["--diff"] if self._task.diff else [])]

    def read(self, path: str) -> bytes:
        """The content of a controller's file, found like a role's files; raises GdsError."""
        try:
            place = self._find_needle("files", path)
            return Path(self._loader.get_real_file(place)).read_bytes()
        except (AnsibleError, OSError) as error:
            raise GdsError(NOT_DELIVERED, f"{path}: can't be read on the controller: {error}") from None

    def bring(self, source: str, place: str, variables: dict[str, Any]) -> str:
        """Copy a controller's file to the host (not in check mode); return its SHA-256.  Raises GdsError."""
        try:
            with Path(source).open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise GdsError(NOT_DELIVERED, f"{source}: can't be read on the controller: {error.strerror}") from None
        if not self._task.check_mode:
            owner = {"owner": "root", "group": "root", "mode": "0644"}
            self.play("copy", {"src": source, "dest": place, **owner}, variables)
        return digest

    def play(self, action: str, arguments: dict[str, Any], variables: dict[str, Any]) -> None:
        """Run another action on this host, such as ``copy``; raises GdsError when it fails."""
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
        done = plugin.run(task_vars=variables)
        if done.get("failed"):
            raise GdsError("io", f"{action}: {done.get('msg', 'failed')}")

    def _options(self) -> dict[str, Any]:
        """The task's options that are set, checked and converted by the module's documentation."""
        path = module_loader.find_plugin(f"{COLLECTION}.gds_{self.resource}", mod_type=".py")
        documented = get_docstring(path, fragment_loader, collection_name=COLLECTION, plugin_type="module")[0]
        _, options = self.validate_argument_spec(argument_spec=documented.get("options", {}))
        return _without_none(options)

    def _ask(self, command: list[str], document: bytes, variables: dict[str, Any]) -> dict[str, Any]:
        """The host program's answer; raises GdsError when there is none."""
        self._require_standard_input()
        words = [*command, "--json", *(["--check"] if self._task.check_mode else []), *self._run(variables)]
        # Commands get the task's environment from their action, as a proxy for apt and dnf.
        start = self._compute_environment_string() + " " + hostapp.start(shlex.quote(self._interpreter(variables)))
        sent = hostapp.sent(_program(), words, document, MARK.encode())
        done = self._low_level_execute_command(start.strip(), sudoable=True, in_data=sent)
        _, mark, output = done["stdout"].partition(MARK)
        if not mark:
            raise _no_python(done)
        try:
            answer = json.loads(output)
        except ValueError:
            raise _broken(done) from None
        if not isinstance(answer, dict):
            raise _broken(done)
        return answer

    def _warn(self, answer: Mapping[str, Any], host: str) -> None:
        """Show the program's notes, and what a check couldn't determine."""
        unknown = [text for resource in answer.get("resources", []) for text in resource.get("unknown", [])]
        for text in [*answer.get("notes", []), *(f"can't tell what would change: {text}" for text in unknown)]:
            display.warning(f"{host}: {text}")

    def _require_standard_input(self) -> None:
        become = self._connection.become
        if not self._connection.has_pipelining or (become is not None and not become.pipelining):
            how = self._connection.transport if become is None or become.pipelining else f"become with {become.name}"
            message = f"{how} can't pass the host program to a command's standard input"
            raise GdsError("connection", message, "use the connection plugin ssh, and become with sudo")

    def _interpreter(self, variables: Mapping[str, Any]) -> str:
        """The configured interpreter, or ``python3``; the host isn't searched."""
        interpreter = str(self._templar.template(variables.get("ansible_python_interpreter") or "auto"))
        return "python3" if interpreter.startswith("auto") else interpreter

    def _run(self, variables: Mapping[str, Any]) -> list[str]:
        """Options of a run of several tasks, which locks the host; see ``apply --help``."""
        values = {name: str(self._templar.template(variables.get(f"gds_{name}") or "")) for name in ("run", "who")}
        return [word for name, value in values.items() if value for word in (f"--{name}", value)]


def _document(resource: str, options: Mapping[str, Any], desired: Mapping[str, Any]) -> bytes:
    request = {"resource": resource, "instance": options.get("instance", ""), "desired": desired}
    return json.dumps({"version": 1, "resources": [request]}).encode()


def _program() -> bytes:
    """The host program, packed once for all hosts and tasks of a run."""
    configured = os.environ.get(VARIABLE)
    if configured or PACKED.is_file():
        return Path(configured or PACKED).read_bytes()
    program = Path(C.DEFAULT_LOCAL_TMP) / PACKED.name
    if not program.is_file():
        hostapp.build(program)
    return program.read_bytes()


def _without_none(value: Any) -> Any:
    """A validated value without unset options."""
    if isinstance(value, Mapping):
        return {key: _without_none(element) for key, element in value.items() if element is not None}
    return [_without_none(element) for element in value] if isinstance(value, list) else value


def _result(answer: Mapping[str, Any], *, diff: bool, check: bool) -> dict[str, Any]:
    """The task's result; what a check couldn't determine counts as a change, and so does what the run will deliver."""
    results = answer.get("resources", [])
    changes = [change for resource in results for change in resource["changes"]]
    refusals = [refusal for resource in results for refusal in resource.get("refusals", [])]
    if check and any(refusal["id"] == NOT_DELIVERED for refusal in refusals):
        coming = {"before": "", "after": "", "reason": NOT_DELIVERED, "disruption": "none"}
        changes += [{"kind": "receive", "subject": one["name"], "resource": one["name"], **coming} for one in results]
        refusals = [refusal for refusal in refusals if refusal["id"] != NOT_DELIVERED]
    unknown = any(resource.get("unknown") for resource in results)
    outcome: dict[str, Any] = {"changed": bool(changes or unknown), "failed": False, "changes": changes}
    outcome["report"] = results[0].get("report", {}) if results else {}
    if diff:
        outcome["diff"] = [_diff(entry) for resource in results for entry in resource.get("diffs", [])]
    error = answer.get("error")
    if check and changes and outcome["report"].get("allowed") is False:
        reasons = "; ".join(outcome["report"]["reasons"])
        message = f"this host needs a reboot ({reasons}) and its profile does not allow one"
        refusals.append({"message": message, "hint": "reboot it yourself, or allow it"})
    if error is None and refusals:
        # A check: apply would make none of the changes.
        outcome["changed"] = False
        error = {**refusals[0], "kind": "refused", "message": "; ".join(refusal["message"] for refusal in refusals)}
    return outcome if error is None else {**outcome, **_failure(error["kind"], error["message"], error["hint"])}


def _diff(entry: Mapping[str, str]) -> dict[str, str]:
    names = {"before_header": entry["path"], "after_header": entry["path"]}
    return {**names, "before": entry["before"], "after": entry["after"]}


def _failure(kind: str, message: str, hint: str) -> dict[str, Any]:
    error = {"kind": kind, "message": message, "hint": hint}
    return {"failed": True, "msg": f"{message} ({hint})" if hint else message, "gds_error": error}


def _no_python(done: Mapping[str, Any]) -> GdsError:
    message = f"the host program can't start: no Python 3.8 or newer: {_tail(done)}"
    return GdsError("python", message, "install python3, or set ansible_python_interpreter")


def _broken(done: Mapping[str, Any]) -> GdsError:
    return GdsError("program", f"the host program ended with status {done.get('rc')} without an answer: {_tail(done)}")


def _tail(done: Mapping[str, Any]) -> str:
    lines = (done.get("stderr") or done.get("stdout") or "it printed nothing").strip().splitlines()
    return "\n".join(lines[-TAIL:])
