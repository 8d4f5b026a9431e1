"""Ansible callback: one JSON line per event, beside Ansible's own output.

It runs inside ansible-playbook, so it imports nothing of gdsdeploy.  An event line begins with the ASCII record
separator and the run's secret word; every other line is Ansible's own output.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from ansible.plugins.callback import CallbackBase  # type: ignore[import-untyped]  # ansible ships no types

DOCUMENTATION = """
name: gds_events
type: aggregate
short_description: JSON lines for gdsdeploy
description: Writes an event a line, marked with the ASCII record separator, to standard output.
requirements: []
"""

#: Begins the line of an event; what follows the separator is known to the run alone.
MARK = "\x1e" + os.environ.get("GDSDEPLOY_EVENTS", "")
#: Seconds after which a running task is worth a line; shorter ones are told by their result.
LONG = 5.0
#: Characters of what a host says in one event.  In the line of the event they may be twice as many.
MOST = 2 * 1024 * 1024


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Turns Ansible's callbacks into events: play, long (a task that takes its time), result, recap (of what ended).

    The event build is of plugin_utils/apply.py.
    """

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gds_events"

    def __init__(self) -> None:
        super().__init__()
        self._begun: dict[tuple[str, str], tuple[float, threading.Timer]] = {}
        self._writing = threading.Lock()

    def _emit(self, **event: Any) -> None:
        with self._writing:
            sys.stdout.write(f"{MARK}{json.dumps(event, default=str)}\n")
            sys.stdout.flush()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._emit(event="play", name=play.get_name())

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._emit(event="recap", hosts=sorted(stats.processed))

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        event = {"event": "long", "host": host.get_name(), **self._task(task)}
        timer = threading.Timer(LONG, self._emit, kwargs=event)
        timer.daemon = True
        timer.start()
        self._begun[host.get_name(), task._uuid] = (time.monotonic(), timer)

    def _task(self, task: Any) -> dict[str, str]:
        role = task._role.get_name(include_role_fqcn=False) if task._role else ""
        # The name of a task begins with that of its role, and this with that of its collection.
        head, separator, name = task.get_name().partition(" : ")
        return {"role": role, "task": name if separator and role and head.endswith(role) else task.get_name()}

    def _result(self, status: str, result: Any) -> None:
        host, task, values = result.host.get_name(), result.task, result.result
        start, timer = self._begun.pop((host, task._uuid), (time.monotonic(), None))
        if timer is not None:
            timer.cancel()
        event: dict[str, Any] = {"event": "result", "host": host, "status": status, **self._task(task)}
        event["seconds"] = round(time.monotonic() - start, 2)
        event["changed"] = bool(values.get("changed"))
        host_part: dict[str, Any] = {}
        if isinstance(values.get("changes"), list):
            host_part["changes"] = values["changes"]
        if status in {"failed", "unreachable"}:
            hidden = bool(values.get("_ansible_no_log"))
            host_part["detail"] = {} if hidden else self._detail(values)
        self._emit(**event, said=self._host_part(host_part))

    @staticmethod
    def _host_part(values: dict[str, Any]) -> str:
        """The host's part of an event as separate JSON, so that the rest of the event can always be read."""
        try:
            text = json.dumps(values, default=str)
        except (ValueError, RecursionError) as error:
            return json.dumps({"detail": {"msg": f"what the host says can't be written as JSON: {error}"}})
        if len(text) > MOST:
            return json.dumps({"detail": {"msg": f"what the host says has more than {MOST} characters"}})
        return text

    @staticmethod
    def _detail(values: dict[str, Any]) -> dict[str, Any]:
        """What explains a failure; a loop's explanation is in its failed items."""
        failed = [entry for entry in values.get("results", []) if isinstance(entry, dict) and entry.get("failed")]
        source = failed[0] if failed else values
        keys = ("gds_error", "msg", "stderr", "stdout", "rc", "cmd")
        return {key: source[key] for key in keys if source.get(key) not in (None, "")}

    def v2_runner_on_ok(self, result: Any) -> None:
        self._result("ok", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._result("skipped", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._result("ok" if ignore_errors else "failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._result("unreachable", result)
