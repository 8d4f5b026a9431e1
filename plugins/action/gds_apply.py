"""Apply one resource of the host program.

A task is one command on the host, also in check mode: ``python3`` reads the host program from standard input and runs
``apply`` with the task's options as the desired state.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.apply import ProgramAction, failure, outcome
from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.files import FILES, Files, GdsError
from ansible_collections.gdsdeploy.gds.plugins.plugin_utils.options import checked, of_role, specification

#: Bytes of address space for the rest of a task whose answer doesn't fit; never written, so they take no memory.
_RESERVE = 64 * 2**20
_OPTIONS = {
    "resource": {"type": "str", "required": True},
    "desired": {"type": "dict", "default": {}},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


class ActionModule(ProgramAction):  # type: ignore[misc]
    """The action of gds_apply."""

    def run(self, tmp: None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ansible's entry point."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.variables = task_vars or {}
        _, task = self.validate_argument_spec(argument_spec=_OPTIONS)
        reserve = bytearray(_RESERVE)
        try:
            result |= self._apply(task["resource"], task["desired"], absent=task["state"] == "absent")
        except GdsError as error:
            result |= failure(error.kind, error.message, error.hint)
        except MemoryError:
            del reserve
            result |= failure("program", "the host's answer is too large for this machine's memory", "check that host")
        return result

    def _apply(self, name: str, desired: dict[str, Any], *, absent: bool) -> dict[str, Any]:
        resource, _, instance = name.partition(".")
        given = {**self._of_role(resource), **desired}
        request: dict[str, Any] = {"resource": resource, "instance": instance, "desired": {}}
        document = {"version": 1, "resources": [request]}
        if absent and resource != "all":
            # The host's record says what it has changed.
            return self._result(self.ask(["remove", resource], document))
        if absent:
            options = {"fleet_id": "", "lock_serial": 0, **checked(resource, given)}
            order = ["--fleet-id", options["fleet_id"], "--lock-serial", str(options["lock_serial"])]
            return self._result(self.ask(["remove", *(order if options["fleet_id"] else [])], document))
        files, options = FILES.get(resource, Files()), checked(resource, given)
        request["desired"] = files.prepare(self, options)
        words = ["apply", "--desired", "-", *(["--diff"] if self._task.diff else [])]
        result = self._result(self.ask(words, document))
        if not result["failed"] and not self.checks:
            files.finish(self, options)
        return result

    def _of_role(self, resource: str) -> dict[str, Any]:
        """The resource's options that the variables of the task's role have."""
        if self._task._role is None:
            return {}
        role = self._task._role.get_name().rpartition(".")[2]
        names, notes = of_role(role, specification(resource), self.variables)
        for note in notes:
            self.warn(note)
        return dict(self._templar.template({option: self.variables[name] for option, name in names.items()}))

    def _result(self, answer: dict[str, Any]) -> dict[str, Any]:
        return outcome(answer, diff=bool(self._task.diff), check=self.checks)
