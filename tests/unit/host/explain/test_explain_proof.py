"""What tries of cuFile prove: from counters as nvidia-fs shows them, and from what real GPUs answered.

The host with nvidia-fs and a GPU is imitated: its counters are those of a real nvidia-fs, moved as its source counts.
On machines with a GPU, the path that is predicted is the one that libcufile logged for a real write and read.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cufile.render import PATH
from gdsdeploy.host import checks
from gdsdeploy.host.explain import as_document, explain, render
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.libcufile.errors import lookup
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.host.paths import CONTAINER_FILES
from gdsdeploy.host.subjects.condition import BROKEN, COMPAT, NVIDIA_FS, P2PDMA
from gdsdeploy.host.subjects.path import Path as Taken, path_of
from gdsdeploy.host.subjects.proof import Proof, proof_counters, proofs
from tests.unit.host.explain.capable_host import MOUNT, capable, with_gpu

EVIDENCE = Path(__file__).parents[3] / "evidence"
GPUS = EVIDENCE / "gpu"
STATS = json.loads((EVIDENCE / "hosts" / "lab-vm-provisioned.json").read_text())["files"][
    "/proc/driver/nvidia-fs/stats"
]
EXPECTATION = from_json((EVIDENCE / "hosts" / "lab-vm.expectation.json").read_text())
#: The line of the real 1.15.1, with what it says of a direct read.
DONE = "TRACE  cufio_core:3005 read : Updating stats devPtr: 0x7f p2p mode: {} compat: {} size: 1048576"


GPU = "0000:1a:00.0"


def mapped(count: int) -> str:
    before = "Bar1-map			: n=0 ok=0"
    assert before in STATS
    return str(STATS).replace(before, f"Bar1-map			: n={count} ok={count}")


def counted(reads: int, maps: int = 0) -> str:
    """With rw_stats_enabled=1."""
    return mapped(maps).replace(
        "Reads				: err=0", f"Reads				: n={reads} ok={reads} err=0 readMiB={reads}"
    )


def run(pair: dict[str, Any] | None, opened: int = 0, status: int = 0) -> dict[str, Any]:
    events: list[dict[str, Any]] = [
        {"event": "start", "mounts": ["/mnt"]},
        {"event": "gpus", "gpus": ["0000:1a:00.0"]},
        {"event": "open", "result": [opened, 0]},
    ]
    where = {"mount": "/mnt", "gpu": "0000:1a:00.0"}
    if pair is not None:
        events += [{"event": "begin", **where}, {"event": "pair", **where, **pair}]
    lines = [json.dumps(event) for event in events] + (['{"event": "end"}'] if status == 0 else [])
    return {"argv": [], "status": status, "stdout": "\n".join(lines), "stderr": "", "seconds": 1.0}


def done(idle: str = "", before: str = "", after: str = "", log: tuple[str, ...] = ()) -> dict[str, Any]:
    calls = {"register": [0, 0], "buffer": [0, 0], "read": 1 << 20, "same": True}
    return {**calls, "idle": idle, "before": before, "after": after, "log": list(log)}


def proof(strict: dict[str, Any], allowed: dict[str, Any] | None = None) -> Proof:
    commands = {"cufile-proof": strict, **({"cufile-proof-compat": allowed} if allowed else {})}
    ((entry,),) = proofs(Document({"commands": commands})).values()
    return entry


def test_the_counters_of_a_real_nvidia_fs_are_read() -> None:
    assert proof_counters(STATS) == {"Bar1-map": 0}
    assert proof_counters(counted(3, 4)) == {"Reads": 3, "Bar1-map": 4}


OFF, OTHERS = "its I/O counters are off: rw_stats_enabled=0", "other programs move the counters"
DIRECT_READ = (DONE.format(0, 0),)


@pytest.mark.parametrize(
    ("pair", "path", "words"),
    [
        (done(mapped(7), mapped(7), mapped(8)), NVIDIA_FS, "Bar1-map ok: 7 → 8"),
        # Reads are counted where the host has that on.
        (done(counted(1, 1), counted(1, 1), counted(2, 2)), NVIDIA_FS, ""),
        (done(counted(1, 1), counted(1, 1), counted(1, 2)), None, "did not move"),
        # Of one operation of 1 MiB there may be 16 pieces of 64 KiB.
        (done(counted(1, 1), counted(1, 1), counted(17, 18)), NVIDIA_FS, "Reads ok: 1 → 17"),
        (done(counted(1, 1), counted(1, 1), counted(18, 18)), None, OTHERS),
        (done(mapped(7), mapped(7), mapped(7)), None, OFF),
        # What others move proves nothing by itself.
        (done(mapped(5), mapped(7), mapped(8)), None, OTHERS),
        (done(mapped(7), mapped(7), mapped(40)), None, OTHERS),
        (done(mapped(5), mapped(7), mapped(8), DIRECT_READ), NVIDIA_FS, "other programs move them, too"),
        (done(mapped(7), mapped(7), mapped(40), DIRECT_READ), NVIDIA_FS, "other programs move them, too"),
        # P2PDMA moves no counter, and is logged.
        (done(log=(DONE.format(1, 0),)), P2PDMA, ""),
        (done(mapped(7), mapped(7), mapped(8), (DONE.format("true", 0),)), P2PDMA, ""),
    ],
)
def test_what_counters_and_the_log_prove(pair: dict[str, Any], path: str | None, words: str) -> None:
    result = proof(run(pair))
    if isinstance(result.path, Unknown):
        assert (path, words in result.path.reason) == (None, True)
    else:
        assert (result.path, words in "\n".join([result.how, *result.evidence])) == (path, True)


def written(moved: int = 1 << 20, after: str = "", compat: int = 0) -> dict[str, Any]:
    """A write after a good read, as the child prints it."""
    log = [DONE.replace("read :", "write :").format(0, compat)] if compat else []
    calls = {"operation": "write", "register": [0, 0], "buffer": [0, 0], "write": moved, "same": moved > 0}
    return {**calls, "idle": mapped(8), "before": mapped(8), "after": after or mapped(9), "log": log}


def both(read: dict[str, Any], write: dict[str, Any] | None) -> dict[str, Any]:
    record = run(read)
    where = {"event": "pair", "mount": "/mnt", "gpu": "0000:1a:00.0"}
    lines = [json.loads(line) for line in record["stdout"].splitlines()]
    lines[0]["operations"] = ["read", "write"]
    lines[-1:-1] = [{**where, **write}] if write else []
    return {**record, "stdout": "\n".join(json.dumps(line) for line in lines)}


def proven(strict: dict[str, Any], allowed: dict[str, Any] | None = None) -> list[tuple[tuple[str, ...], Any]]:
    commands = {"cufile-proof": strict, **({"cufile-proof-compat": allowed} if allowed else {})}
    (entries,) = proofs(Document({"commands": commands})).values()
    return [(entry.operations, entry.path) for entry in entries]


READ = done(mapped(7), mapped(7), mapped(8))


def test_a_read_and_a_write_that_take_one_path_are_one_proof() -> None:
    assert proven(both(READ, written())) == [(("read", "write"), NVIDIA_FS)]


def test_a_write_that_needs_compat_mode_is_shown_beside_the_read() -> None:
    bounced = both(done(log=(DONE.format(0, 0),)), written(compat=1))
    assert proven(both(READ, written(-5008)), bounced) == [(("read",), NVIDIA_FS), (("write",), COMPAT)]


@pytest.mark.parametrize("write", [written(after=mapped(8)), None], ids=["it moves no counter", "it was not begun"])
def test_a_write_that_is_not_proven(write: dict[str, Any] | None) -> None:
    first, second = proven(both(READ, write))
    assert first == (("read",), NVIDIA_FS)
    assert isinstance(second[1], Unknown)


def test_compat_or_broken_is_told_by_the_second_try() -> None:
    refused = run(None, opened=5001)
    compat = proof(refused, run(done(log=(DONE.format(0, 1),))))
    assert compat.path == COMPAT
    assert "5001 (CU_FILE_DRIVER_NOT_INITIALIZED)" in compat.how
    broken = proof(refused, run({"register": [5027, 0], "log": []}))
    assert broken.path == BROKEN
    assert "cuFileHandleRegister returned 5027" in broken.how
    assert isinstance(proof(refused).path, Unknown), "without a second try it may be either"
    odd = proof(refused, run(done(log=(DONE.format(1, 0),))))
    assert isinstance(odd.path, Unknown), "a direct path that is there only while compat mode is allowed"


@pytest.mark.parametrize(
    ("stdout", "status"),
    [("", 0), ("[]\n1\nnull", 1), ('{"event": "start", "mounts": ["/mnt"]}', 124), ('{"event": "gpus"}', -11)],
)
def test_anything_else_is_no_proof(stdout: str, status: int) -> None:
    record = {"argv": [], "status": status, "stdout": stdout, "stderr": "", "seconds": 1.0}
    commands = {"cufile-proof": record, "cufile-proof-compat": record}
    for entries in proofs(Document({"commands": commands})).values():
        assert {entry.path for entry in entries} <= {BROKEN}


@pytest.mark.parametrize(
    ("given", "refused", "listed", "unproven"),
    [
        ([GPU], ["0000:1b:00.0"], [], {"0000:1b:00.0": "CUDA has no context for it: CUDA error 46 (CUDA_ERROR_"}),
        ([GPU], [], [GPU, "0000:1b:00.0"], {"0000:1b:00.0": "GPU 0000:1b:00.0: CUDA doesn't list it"}),
        ([], [GPU], [], {GPU: "CUDA has no context for it"}),
        ([], [], [GPU], {GPU: "CUDA doesn't list it"}),
        ([], [], [], {"": "CUDA lists no GPU"}),
    ],
)
def test_a_gpu_that_cuda_gives_to_nobody_is_not_proven(
    given: list[str], refused: list[str], listed: list[str], unproven: dict[str, str]
) -> None:
    record = run(done(mapped(7), mapped(7), mapped(8)) if given else None)
    lines = [json.loads(line) for line in record["stdout"].splitlines()]
    status = "46 (CUDA_ERROR_DEVICES_UNAVAILABLE)"
    lines[1:2] = [{"event": "no context", "gpu": gpu, "status": status} for gpu in refused]
    lines.insert(1, {"event": "gpus", "gpus": given})
    record["stdout"] = "\n".join(map(json.dumps, lines))
    commands = {"cufile-proof": record, "cufile-proof-compat": record}
    (results,) = proofs(Document({"commands": commands, "listings": {"/proc/driver/nvidia/gpus": listed}})).values()
    assert {one.gpu: one.path for one in results if one.gpu not in unproven} == dict.fromkeys(given, NVIDIA_FS)
    for one in results:
        if one.gpu in unproven:
            assert isinstance(one.path, Unknown)
            assert unproven[one.gpu] in one.path.reason


def gpu_host(name: str) -> Any:
    return json.loads((GPUS / name / "proof.json").read_text())


def finding(document: Any, path: str) -> Finding:
    expectation = replace(EXPECTATION, storage=[{"mount": "/", "path": path}])
    (match,) = [entry for entry in checks.run(facts_from(document), expectation) if entry.check == "storage.path:/"]
    return match


@pytest.mark.parametrize("release", ["1.15.1", "1.20.0"])
def test_on_a_real_gpu_the_read_went_through_cpu_memory_as_was_expected(release: str) -> None:
    document = gpu_host(f"h200-{release}-udev")
    facts = facts_from(document)
    (result,) = facts.storage.proofs["/"]
    assert (result.gpu, result.path) == ("0000:00:06.0", COMPAT)
    assert "5001 (CU_FILE_DRIVER_NOT_INITIALIZED)" in result.how
    assert any("compat: 1" in line for line in result.evidence)
    path = path_of(facts, facts.storage.mounts["/"])
    assert (path.path, path.proven, path.surprise) == (COMPAT, COMPAT, "")
    direct, compat = finding(document, "direct"), finding(document, "compat")
    assert (direct.verdict, compat.verdict) == (FAIL, PASS)
    assert direct.found.endswith("(proven by a read through cuFile)")
    assert "proven with GPU 0000:00:06.0: COMPAT" in render(explain(facts, ()))


@pytest.mark.parametrize("release", ["1.15.1", "1.20.0"])
def test_without_udev_s_database_it_was_broken_as_was_expected(release: str) -> None:
    document = gpu_host(f"h200-{release}-no-udev")
    facts = facts_from(document)
    (result,) = facts.storage.proofs["/"]
    assert result.path == BROKEN
    assert "cuFileHandleRegister returned 5027" in result.how
    assert path_of(facts, facts.storage.mounts["/"]).surprise == ""
    assert finding(document, "compat").verdict == FAIL


def test_what_io_shows_outweighs_what_was_expected_and_the_difference_is_said() -> None:
    document = gpu_host("h200-1.20.0-udev")
    child = [json.loads(line) for line in document["commands"]["cufile-proof-compat"]["stdout"].splitlines()]
    for event in child:
        if event["event"] == "pair":
            event["register"] = [5008, 0]
            event.pop("same"), event.pop("read")
    document["commands"]["cufile-proof-compat"]["stdout"] = "\n".join(json.dumps(event) for event in child)
    result = finding(document, "compat")
    assert result.verdict == FAIL
    assert "all other evidence on this host says compat, but I/O shows broken" in result.found
    facts = facts_from(document)
    assert as_document(explain(facts, (), "/"))["mounts"][0]["surprise"].endswith("I/O shows broken")


def test_compat_mode_that_the_configuration_forbids_is_broken_for_programs() -> None:
    document = gpu_host("h200-1.20.0-udev")
    document["files"]["/etc/cufile.json"] = '{"properties": {"allow_compat_mode": false}}'
    result = finding(document, "compat")
    assert result.verdict == FAIL
    assert any("this host's configuration disallows it" in line for line in result.evidence)


PROVEN = "nvidia-fs (proven by a read through cuFile)"


def test_an_expected_direct_path_that_was_tried_and_not_proven_is_no_pass() -> None:
    document = with_gpu(capable())
    expectation = replace(EXPECTATION, storage=[{"mount": MOUNT, "path": "direct"}])

    def judge() -> Finding:
        return next(
            entry for entry in checks.run(facts_from(document), expectation) if entry.check.startswith("storage.path")
        )

    assert judge().verdict == PASS
    for after, verdict, words in ((7, UNKNOWN, "nvidia-fs is expected, and not proven: "), (8, PASS, PROVEN)):
        tried = json.dumps(run(done(mapped(7), mapped(7), mapped(after)))).replace("/mnt", MOUNT)
        tried = tried.replace(GPU, "0000:00:06.0")
        document["commands"]["cufile-proof"] = json.loads(tried)
        assert (judge().verdict, judge().found.startswith(words)) == (verdict, True)


HOSTS = sorted(folder.name for folder in GPUS.iterdir() if folder.is_dir())
MOVED = {"cuFileWrite": 1 << 20, "cuFileRead": 1 << 20, "same": True}


def predicted(host: str, *, configuration: str | None = None) -> Taken:
    document = json.loads((GPUS / host / "evidence.json").read_text())
    if configuration is not None:
        document["files"][PATH] = configuration
    facts = facts_from(document)
    return path_of(facts, facts.storage.mounts["/"])


def answers(host: str, kind: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((GPUS / host / f"io-{kind}.json").read_text())
    return record


def log(host: str, kind: str) -> str:
    return (GPUS / host / f"io-{kind}.log").read_text()


def test_both_releases_are_there_with_and_without_udev() -> None:
    assert HOSTS == ["h200-1.15.1-no-udev", "h200-1.15.1-udev", "h200-1.20.0-no-udev", "h200-1.20.0-udev"]


@pytest.mark.parametrize("host", [host for host in HOSTS if host.endswith("-no-udev")])
def test_without_udev_s_database_the_predicted_error_is_the_one_that_came(host: str) -> None:
    path = predicted(host)
    assert (path.path, path.causes[0].id) == (BROKEN, "udev.no-database")
    code, _ = answers(host, "rendered")["cuFileHandleRegister"]
    assert str(code) in path.causes[0].what
    assert lookup(str(code))[0].code == code
    assert "udev property not found: ID_FS_USAGE" in log(host, "rendered")


@pytest.mark.parametrize("host", [host for host in HOSTS if not host.endswith("-no-udev")])
def test_with_it_the_bytes_went_through_compat_mode_as_predicted(host: str) -> None:
    path = predicted(host)
    assert path.path == COMPAT
    assert {"storage.no-nvme", "ext4.not-ordered"} < {cause.id for cause in path.causes}
    assert MOVED.items() <= answers(host, "rendered").items()
    assert re.search(r"Compatibility Mode: (1|true) Compat Read Mode: \1 Compat Write Mode: \1", log(host, "rendered"))


@pytest.mark.parametrize("host", HOSTS)
def test_with_the_fallback_forbidden_nothing_opens_as_predicted(host: str) -> None:
    strict = json.loads(re.sub(r"(?m)^\s*//.*", "", (GPUS / host / "cufile.json").read_text()))
    strict["properties"]["allow_compat_mode"] = False
    path = predicted(host, configuration=json.dumps(strict))
    assert path.path == BROKEN
    assert answers(host, "strict") == {"cuFileDriverOpen": [5001, 0]}
    assert "nvidia-fs.ko driver not loaded" in log(host, "strict")


def test_the_machine_is_no_container_although_its_image_was_one() -> None:
    for host in HOSTS:
        document = json.loads((GPUS / host / "evidence.json").read_text())
        # Marks that were not looked for when it was recorded.
        for path in CONTAINER_FILES:
            document["files"].setdefault(path, {"error": "ENOENT"})
        assert facts_from(document).environment.container is None
