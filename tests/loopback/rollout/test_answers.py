"""Hosts that lie: whatever they answer is refused by name, or stays a text that decides and runs nothing."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from gdsdeploy.builds.assign import Supply
from gdsdeploy.converge import ansible
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.errors import GdsError, HostUnfit, RollbackFailed
from gdsdeploy.host.rollout import snapshot as host_snapshot
from gdsdeploy.host.rollout import status as host_status
from gdsdeploy.model.rollout import Step
from gdsdeploy.rollout import preconditions
from gdsdeploy.rollout.steps import answers, apply, prepare, rollback
from gdsdeploy.rollout.steps.answers import Question
from gdsdeploy.rollout.steps.work import Work
from gdsdeploy.ssh import transport
from gdsdeploy.ssh.endpoint import Answer
from tests.roles.readme import ROOT, spec
from tests.unit.rollout.asked import BOOT, KERNEL, OLD, ScriptedWork, compared, differs, needed, snapshot, status, work

ROLLOUT = Path(answers.__file__).parent
QUESTIONS: dict[tuple[str, ...], Question[Any]] = {
    each.words: each for each in vars(answers).values() if isinstance(each, Question)
}
TEMPLATE = "{{ lookup('pipe','touch /tmp/pwned') }}"
LOCKED = {"manager": "dpkg", "broken": [{"package": "a1", "state": "iF"}], "interrupted": False,
          "locks": [{"path": "/var/lib/dpkg/lock", "pid": 7, "program": "apt-get"}]}  # fmt: skip
SPACE = {"/boot": {"bytes": 1, "inodes": 1, "mount": "/boot"}}
DIFFERENCES = [differs("package", "nvidia-driver"), differs("file", "/etc/cufile.json")]
#: Question → an answer with everything in it.
WHOLE: Mapping[tuple[str, str], dict[str, Any]] = {
    ("rollout", "snapshot"): snapshot(),
    ("rollout", "status"): status(packages=LOCKED, space=SPACE),
    ("rollout", "compare"): compared(*DIFFERENCES),
    ("rollout", "keep"): {"archive": "/x"},
    ("rollout", "space"): {"fits": False, "filesystems": [{"fits": False, "says": "/boot is full"}]},
    ("rollout", "once"): {"once": True, "default": OLD},
    ("boot", "needed"): needed("another kernel"),
    ("boot", "show"): {"default": OLD},
    ("boot", "default"): {"changed": True},
    ("guard", "judge"): {"admitted": False, "reasons": ["nvidia.ko is cut off"]},
    ("gate", "run"): {"state": "open", "boot_id": BOOT, "reason": "all passed"},
}
#: Texts for people, which may say anything.
FREE = {
    ("rollout", "snapshot"): {"host", "boot.default_entry", "boot.next_entry", "boot.problem"},
    ("rollout", "status"): {
        *("boot.default_entry", "boot.next_entry", "boot.problem", "packages.broken.0.state", "packages.locks.0.path"),
        *("packages.locks.0.program", "space./boot.mount", "apply.run", "apply.who"),
    },
    ("rollout", "compare"): {f"differences.{number}.{key}" for number in (0, 1) for key in ("was", "is", "says")},
    ("rollout", "keep"): {"archive"},
    ("rollout", "space"): {"filesystems.0.says"},
    ("boot", "needed"): {"reasons.0"},
    ("guard", "judge"): {"reasons.0"},
    ("gate", "run"): {"state", "reason"},
}


def texts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every string, that of a key with a mark before it."""
    if isinstance(value, str):
        yield place
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(inner, (*place, key))
        if isinstance(value, dict):
            yield (*place, ("key", key))


def replaced(whole: dict[str, Any], place: tuple[Any, ...], text: Any) -> dict[str, Any]:
    """A copy with another text at one place."""
    result = copy.deepcopy(whole)
    inner: Any = result
    for part in place[:-1]:
        inner = inner[part]
    last = place[-1]
    if isinstance(last, tuple):
        inner[text] = inner.pop(last[1])
    else:
        inner[last] = text
    return result


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for part in place:
        value = value[part]
    return value


def named(place: tuple[Any, ...]) -> str:
    return ".".join(f"<{part[1]}>" if isinstance(part, tuple) else str(part) for part in place)


def checked(question: tuple[str, ...], document: Any) -> dict[str, Any]:
    return QUESTIONS[question].read("gpu1", document).model_dump(by_alias=True)


def understood(question: tuple[str, str], document: Any) -> dict[str, Any] | str:
    """The answer, or why the host is refused."""
    try:
        return checked(question, document)
    except HostUnfit as error:
        return error.message


@pytest.mark.parametrize("text", [TEMPLATE, "a\nb", "$(touch /tmp/pwned)", "--root=/x", "/etc/shadow", "../../etc/x"])
@pytest.mark.parametrize("question", WHOLE, ids=" ".join)
def test_only_texts_for_people_may_say_anything(question: tuple[str, str], text: str) -> None:
    """Each string in turn is another one: the host is refused by name, or the text comes through as it is."""
    passed = set()
    for place in texts(WHOLE[question]):
        result = understood(question, replaced(WHOLE[question], place, text))
        if isinstance(result, str):
            assert result.startswith(f"gpu1: its answer to {' '.join(question)} is malformed: ")
            assert "\n" not in result
            continue
        if not isinstance(place[-1], tuple):
            assert at(result, place) == text
            passed.add(named(place))
        else:
            # A key that nothing asks for is dropped.
            assert text not in json.dumps(result)
    if text == TEMPLATE:
        assert passed == FREE.get(question, set())
    else:
        # A path is a path, but not of a file that gdsdeploy writes.
        assert passed >= FREE.get(question, set())
        assert not any(place.startswith(("files.", "provision.")) or place == "differences.1.name" for place in passed)


@pytest.mark.parametrize("manager", ["dpkg", "rpm", ""])
def test_names_of_packages_are_names_whatever_manager_a_host_claims(manager: str) -> None:
    whole = snapshot(manager=manager)
    for place in texts({key: whole[key] for key in ("packages", "provision")}):
        if place[-1] != "version" and place[-1] not in (("key", key) for key in ("version", "held", "installed")):
            assert isinstance(understood(("rollout", "snapshot"), replaced(whole, place, TEMPLATE)), str), place


@pytest.mark.parametrize("value", [None, 1, True, [], {}, ["x"], 1e300, -5, "\ud800", "x" * (1 << 20)])
@pytest.mark.parametrize("question", WHOLE, ids=" ".join)
def test_values_of_other_types_and_sizes_are_refused(question: tuple[str, str], value: Any) -> None:
    for place in texts(WHOLE[question]):
        if isinstance(place[-1], tuple):
            continue
        with pytest.raises(HostUnfit, match="gpu1: its answer"):
            checked(question, replaced(WHOLE[question], place, value))


@pytest.mark.parametrize("document", [None, [], "x", 1, {}, {"version": 2}])
def test_an_answer_is_no_other_document(document: Any) -> None:
    with pytest.raises(HostUnfit, match="gpu1: its answer to rollout status is malformed"):
        checked(("rollout", "status"), document)


def test_rpm_allows_other_names_than_dpkg() -> None:
    named = snapshot(provision={"installed": ["nvidia_Driver.X"], "held": []})
    with pytest.raises(HostUnfit, match=r"'nvidia_Driver\.X' isn't the name of a package"):
        checked(("rollout", "snapshot"), named)
    assert checked(("rollout", "snapshot"), {**named, "manager": "rpm"})["provision"]["held"] == []


def test_what_no_question_asks_for_is_dropped() -> None:
    result = checked(("rollout", "snapshot"), {**snapshot(), "more": TEMPLATE})
    assert result == checked(("rollout", "snapshot"), snapshot())
    assert "more" not in result


def test_an_honest_host_is_understood(tmp_path: Path) -> None:
    """By the very functions that answer there."""
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("0d5cc0ba-0ba4-4f6a-a3d4-2e51dab1d7a8\n")
    (tmp_path / "etc/gdsdeploy").mkdir(parents=True)
    (tmp_path / "etc/gdsdeploy/gate.json").write_text("{}")
    kernel = tmp_path / "lib/modules" / OLD
    (kernel / "kernel").mkdir(parents=True)
    (kernel / "kernel/x.ko").write_text("x")
    (kernel / "updates").mkdir()
    (kernel / "updates/nvidia.ko").write_text("x")
    document = json.loads(json.dumps(host_snapshot.take(["bash"], str(tmp_path))))
    assert checked(("rollout", "snapshot"), document) == document
    assert "updates/nvidia.ko" in document["kernels"][OLD]["files"]
    state = json.loads(json.dumps(host_status.status(str(tmp_path))))
    result = checked(("rollout", "status"), state)
    assert result.items() >= {key: state[key] for key in ("boot_id", "kernel", "boot", "space", "uptime")}.items()


def test_every_question_that_a_rollout_asks_has_its_answer() -> None:
    questions = set()
    for path in ROLLOUT.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "ask":
                name = getattr(node.args[0], "attr", "")
                questions |= {getattr(answers, name).words} if name.isupper() else set()
    assert len(questions) > 10
    assert questions == QUESTIONS.keys()


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a host is asked, it runs another kernel than there is."""
    answer = Answer("gpu1", status(kernel=TEMPLATE), None, 0.1)
    monkeypatch.setattr(transport, "fan_out", lambda *_, **__: iter([answer]))


@pytest.mark.usefixtures("liar")
def test_steps_get_no_answer_that_was_not_checked() -> None:
    with pytest.raises(HostUnfit, match="gpu1: its answer to rollout status is malformed: kernel: "):
        Work.ask(work(Step.PREFLIGHT, {}), answers.STATUS)


@pytest.mark.usefixtures("liar")
def test_nor_does_the_planning() -> None:
    host = work(Step.PREFLIGHT, {})
    states = preconditions.present_states(host.fleet, host.fleet_path, ["gpu1"], timeout=1)
    assert isinstance(states["gpu1"], HostUnfit)


# -- a whole way back on a host that lies


def lying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, question: tuple[str, str], document: Any) -> ScriptedWork:
    """A host in the middle of its rollout; to one question it answers with ``document``."""
    replies = {**WHOLE, ("rollout", "status"): status(), ("guard", "judge"): {"admitted": True, "reasons": []}}
    replies[question] = document
    data = {
        "snapshot": replies["rollout", "snapshot"],
        "modules_before": {"mode": "receive", "want": "w", "archive": ""},
    }
    host = work(Step.UNDO, {" ".join(words): answer for words, answer in replies.items()}, data)
    object.__setattr__(host, "logs", tmp_path / "logs")
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(rollback, "towards_before", lambda _: host)
    monkeypatch.setattr(rollback, "_fit", lambda _: {})
    monkeypatch.setattr(rollback, "_managed", lambda *_: {"/etc/cufile.json"})
    monkeypatch.setattr(rollback.previous_packages, "fetch_packages", lambda *_: {})
    monkeypatch.setattr(rollback.previous_packages, "offer_packages", lambda *_: nullcontext())
    shelf = SimpleNamespace(folder=tmp_path, keys=SimpleNamespace(folder=tmp_path), look=lambda *_: None)
    monkeypatch.setattr(rollback.run_archives, "open_run_archives", lambda _: nullcontext(shelf))
    monkeypatch.setattr(
        apply,
        "render_inventory",
        lambda *_: {"all": {"children": {"builders": {"hosts": {}}, "hosts": {"hosts": {"gpu1": {}}}}}},
    )
    monkeypatch.setattr(apply, "look_at", lambda *_: SimpleNamespace(plan=HostPlan("gpu1")))
    return host


@pytest.mark.parametrize(
    ("question", "place"),
    [
        (question, place)
        for question in (("rollout", "snapshot"), ("rollout", "status"), ("rollout", "compare"))
        for place in texts(WHOLE[question])
    ],
    ids=lambda value: named(value) if value and value[0] != "rollout" else value[1],
)
def test_nothing_that_a_host_says_reaches_ansible_as_it_likes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, question: tuple[str, str], place: tuple[Any, ...]
) -> None:
    """The way back of a host that answers with a template, in each string in turn: it fails, or never has it."""
    whole = status() if question[1] == "status" else WHOLE[question]
    if question[1] == "status" and place[0] in ("packages", "space"):
        whole = WHOLE[question]
    host = lying(monkeypatch, tmp_path, question, replaced(whole, place, TEMPLATE))
    played: list[str] = []

    def play(command: list[str], *_: Any, **__: Any) -> ansible.Outcome:
        played.append(Path(command[command.index("--inventory") + 1]).read_text())
        return ansible.Outcome(0, {"gpu1": ansible.HostResult()})

    monkeypatch.setattr(ansible, "play", play)
    message = "gpu1: done"
    try:
        rollback.undo(host)
    except GdsError as error:
        message = error.message
    assert message.startswith("gpu1: ")
    assert TEMPLATE not in "".join(played)
    assert "lookup" not in "".join(played)
    assert "pwned" not in "".join(" ".join(words) for words in host.questions)


def test_an_honest_way_back_says_what_was_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = [differs("file", "/etc/modprobe.d/gdsdeploy.conf", ""), differs("file", "/etc/cufile.json")]
    comparison = compared(differs("package", "nvidia-driver"), *files)
    host = lying(monkeypatch, tmp_path, ("rollout", "compare"), comparison)
    variables: list[dict[str, Any]] = []
    monkeypatch.setattr(apply, "play", lambda *args: variables.append(args[5]) or [])
    monkeypatch.setattr(rollback, "_differences", lambda *_, **__: [])
    rollback.undo(host)
    (had,) = variables
    assert had["gds_restore_unwanted"] == ["new-one"]
    assert had["gds_restore_installed"] == had["gds_restore_held"] == ["nvidia-driver"]
    assert had["gds_restore_known"] is True
    restore = {name: value for name, value in had.items() if name.startswith("gds_restore_")}
    assert not ArgumentSpecValidator(spec(ROOT / "roles" / "gds_restore")["options"]).validate(restore).error_messages
    # The lock of before answers for cufile.json.
    assert had["gds_restore_files"] == [{"path": "/etc/modprobe.d/gdsdeploy.conf", "sha256": ""}]
    monkeypatch.setattr(rollback, "_managed", lambda *_: set())
    assert rollback._files(host, set()) == [
        {"path": "/etc/cufile.json", "sha256": "2" * 64},
        {"path": "/etc/modprobe.d/gdsdeploy.conf", "sha256": ""},
    ]


def test_a_snapshot_in_the_journal_is_checked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An older gdsdeploy has written down what hosts said as it was."""
    bad = snapshot(provision={"installed": [TEMPLATE], "held": []})
    host = lying(monkeypatch, tmp_path, ("rollout", "snapshot"), bad)
    with pytest.raises(
        RollbackFailed, match=r"gpu1: its answer to rollout snapshot is malformed: provision\.installed"
    ):
        rollback._restore_variables(host, host)


def test_modules_that_were_kept_lie_where_the_program_keeps_them() -> None:
    """Whatever path a host names."""
    host = work(Step.SNAPSHOT, {"rollout keep": {"archive": "/etc/shadow"}})
    before = SimpleNamespace(supply=Supply("receive", "", ""))
    document = answers.SNAPSHOT.read("gpu1", snapshot(kernels={KERNEL: {"files": {}, "chosen": {}}}))
    archive = prepare._kept_archive(host, host, before, document)  # type: ignore[arg-type]
    assert archive == f"/var/lib/gdsdeploy/rollout/{host.rollout}/modules-{KERNEL}.tar"
