"""Runs ansible-playbook: arguments and environment from pure functions, events out of its output."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdsdeploy import resources, run
from gdsdeploy.errors import ConvergeFailed, GdsError, HostUnfit, HostUnreachable, ModuleBuildFailed

MARK = "\x1e"
#: Lines of a failed command's output that the error quotes.
TAIL_LINES = 12
#: The host program's one line about modules: what is wrong and, in parentheses at its end, what to do.
_SAID = re.compile(r"^error: (?P<message>.*?)(?: \((?P<hint>[^()]*(?:\([^()]*\)[^()]*)*)\))?$", re.MULTILINE)
_DKMS = re.compile(r"^Error! Bad return status for module build on kernel: (?P<kernel>\S+)", re.MULTILINE)
_FINDING = re.compile(r"^  error \[.*$", re.MULTILINE)
#: All that Ansible itself says of a command that failed.
_ENDED = "non-zero return code"


@dataclass
class HostResult:
    """What a run did on one host: ``changed`` holds "role: task" of every change, in order."""

    changed: list[str] = field(default_factory=list)
    failure: GdsError | None = None


@dataclass
class Outcome:
    """A finished run of a playbook."""

    status: int
    hosts: dict[str, HostResult] = field(default_factory=dict)

    def changes(self) -> int:
        """Number of changed tasks on all hosts."""
        return sum(len(result.changed) for result in self.hosts.values())


def argv(playbook: str, inventory: Path, *, limit: Sequence[str], extra: Sequence[str]) -> list[str]:
    """The command line: our inventory and limit, then the user's own flags as they are.

    ansible-playbook is the one that the Python that runs us has, whatever PATH says.
    """
    command = [sys.executable, "-m", "ansible", "playbook", "--inventory", str(inventory)]
    if limit:
        command += ["--limit", ",".join(limit)]
    return [*command, *extra, str(resources.playbook(playbook))]


def environment(*, control_dir: Path) -> dict[str, str]:
    """Our ansible.cfg and what depends on this run; one that happens to lie about must not change it.

    control_dir: where OpenSSH keeps its multiplexing sockets (their paths are limited to about 100 bytes).
    """
    return {
        "ANSIBLE_CONFIG": str(resources.share() / "playbooks" / "ansible.cfg"),
        "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).parent / "callbacks"),
        "ANSIBLE_CALLBACKS_ENABLED": "gds_events",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(control_dir),
        "PYTHONUNBUFFERED": "1",
        "LC_ALL": "C.UTF-8",
    }


def play(
    command: Sequence[str],
    env: dict[str, str],
    *,
    log: Path,
    progress: Callable[[str], None],
) -> Outcome:
    """Run the playbook and return what it did; failures are in the outcome, not raised.

    log: receives everything Ansible itself prints.
    progress: one line of talk at a time.
    """
    outcome = Outcome(status=0)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as sink:

        def line(text: str) -> None:
            if not text.startswith(MARK):
                sink.write(text + "\n")
                sink.flush()
                return
            _take(json.loads(text[1:]), outcome, progress, log)

        outcome.status = run.stream(command, doing="run ansible-playbook", line=line, env=env)
    failed = any(result.failure for result in outcome.hosts.values())
    if outcome.status != 0 and not failed:
        tail = "\n".join(f"  | {text}" for text in log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        raise ConvergeFailed(
            f"ansible-playbook ended with status {outcome.status}\n{tail}", hint=f"Whole output: {log}"
        )
    return outcome


def _take(event: dict[str, Any], outcome: Outcome, progress: Callable[[str], None], log: Path) -> None:
    if event["event"] == "play":
        progress(f"▸ {event['name']}")
        return
    host, role, task = event["host"], event["role"], event["task"]
    if event["event"] == "long":
        progress(f"  {host}: {role}: {task.split(' | ')[-1]} …")
        return
    result = outcome.hosts.setdefault(host, HostResult())
    if event["changed"] and event["status"] == "ok":
        result.changed.append(f"{role}: {task}")
        progress(f"  {host}: {role}: {task.split(' | ')[-1]}: changed ({event['seconds']:.0f} s)")
    if event["status"] in {"failed", "unreachable"}:
        found = failure(host, role, task, event["status"], event.get("detail", {}), log)
        # Roles ask a host for the reason after a package manager said that a build failed.
        if result.failure is None or isinstance(found, ModuleBuildFailed):
            result.failure = found
        progress(f"  {host}: {role}: {task.split(' | ')[-1]}: failed")


def failure(host: str, role: str, task: str, status: str, detail: dict[str, Any], log: Path) -> GdsError:
    """The error for a failed task: preflight's refusals are the host's unfitness, the rest is ours to explain."""
    message = str(detail.get("msg", "")).strip()
    hint = f"Whole output: {log}"
    if status == "unreachable":
        return HostUnreachable(f"{host}: lost during {role}: {message}", hint=hint)
    step = task.split(" | ")[0]
    if step == "Preflight" and role == "gds_preflight":
        return HostUnfit(f"{host}: {message}", hint=hint)
    built = module_failure(host, detail, log)
    if built is not None:
        return built
    if message == _ENDED and isinstance(detail.get("cmd"), list):
        message = f"{detail['cmd'][0]} ended with status {detail.get('rc')}"
    lines = [f"{host}: {role}: {task.split(' | ')[-1]}: {message}"]
    for stream in ("stderr", "stdout"):
        text = str(detail.get(stream, "")).strip()
        if text and text not in message:
            lines += [f"  | {part}" for part in text.splitlines()[-TAIL_LINES:]]
            break
    return ConvergeFailed("\n".join(lines), hint=hint)


def module_failure(host: str, detail: dict[str, Any], log: Path) -> ModuleBuildFailed | None:
    """The error when modules could not be built or did not pass their audit; None for any other failure."""
    command = [str(word) for word in detail.get("cmd", ())] if isinstance(detail.get("cmd"), list) else []
    stderr, stdout = str(detail.get("stderr", "")), str(detail.get("stdout", ""))
    whole = f"Whole output: {log}"
    if "kmod" in command:
        said = _SAID.search(stderr)
        if said is not None:
            hint = f"{said['hint']}. {whole}" if said["hint"] else whole
            return ModuleBuildFailed(f"{host}: {said['message']}", hint=hint)
        findings = _FINDING.findall(stdout)
        if findings:
            text = "\n".join(f"  | {line.strip()}" for line in findings[:TAIL_LINES])
            return ModuleBuildFailed(f"{host}: the audit refuses the modules\n{text}", hint=whole)
    failed = _DKMS.search(f"{stdout}\n{stderr}")
    if failed is not None:
        kernel = failed["kernel"]
        message = f"{host}: DKMS could not build its modules for kernel {kernel}"
        return ModuleBuildFailed(message, hint=f"On the host: /var/log/gdsdeploy/kmod/{kernel}. {whole}")
    return None
