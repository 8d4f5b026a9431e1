"""Direct I/O on real filesystems: what the kernel does with it here, and what the checks say of it.

One pass over a host with all of them mounted, as ``validate`` makes it; each fault is really made.
"""

from __future__ import annotations

from dataclasses import replace
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.facts import HostFacts, facts_from
from gdsdeploy.host.facts.unknown import Unknown
from gdsdeploy.host.model.expectation import Expectation, from_json
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, Finding
from gdsdeploy.host.subjects.filesystem import Feature, features
from gdsdeploy.host.subjects.odirect import ALIGNED, BUFFERED, BYPASSED, FELL_BACK, REFUSED, TINY, Audit
from tests.loopback.host.odirect.filesystems import ENCRYPT, KINDS, inside

EXPECTATION = from_json((Path(__file__).parents[3] / "evidence" / "hosts" / "lab-vm.expectation.json").read_text())
#: Folders of those filesystems that are mount points as well, and overlay and tmpfs, which lie on none.
MORE = ("secret", "nocow", "overlay", "tmpfs")
BODY = (
    ENCRYPT
    + r"""
encrypt("ext4-encrypt/secret")
os.mkdir("btrfs/nocow"), run("chattr", "+C", "btrfs/nocow")
for name, source in (("secret", "ext4-encrypt"), ("nocow", "btrfs")):
    os.mkdir(name), run("mount", "--bind", source + "/" + name, name)
for name in ("lower", "overlay", "xfs/upper", "xfs/work", "tmpfs"):
    os.mkdir(name)
run("mount", "-t", "overlay", "overlay", "-o", "lowerdir=lower,upperdir=xfs/upper,workdir=xfs/work", "overlay")
run("mount", "-t", "tmpfs", "tests", "tmpfs")
# No udev runs here, as in a container that lacks /run/udev.
if os.path.isdir("/run/udev"):
    run("mount", "-t", "tmpfs", "tests", "/run/udev")
from gdsdeploy.host import evidence
paths = tuple(os.path.join(folder, name) for name in sys.argv[5].split())
before = {path: sorted(os.listdir(path)) for path in paths}
answer["evidence"] = evidence.collect(evidence.EvidenceRequest(mounts=paths, scratch=paths))
answer["left"] = [path for path in paths if sorted(os.listdir(path)) != before[path]]
from gdsdeploy.host.odirect.trials import FILES, cached_pages, desk_in, ordinary, pattern
with desk_in("ext4", pattern(0, FILES[0][0], 0)) as desk:
    ordinary(desk, pattern(0, FILES[0][0], 0))
    answer["largest"] = os.fstat(desk.plain).st_size
answer["pages"] = {}
for name in ("ext4", "xfs"):
    with desk_in(name, pattern(0, 65536, 0)) as desk:
        # A busy disk may still be writing the page back.
        assert any(desk.cache.empty(65536) for _ in range(100))
        cold = cached_pages(desk.plain, 0, 65536)
        os.pread(desk.plain, 4096, 0)
        answer["pages"][name] = [cold, cached_pages(desk.plain, 0, 4096)]
"""
)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("mounts")
    return {**inside(folder, list(KINDS), BODY, " ".join((*KINDS, *MORE))), "folder": str(folder)}


@pytest.fixture(scope="module")
def facts(host: Any) -> HostFacts:
    return facts_from(host["evidence"])


def audit(host: Any, facts: HostFacts, name: str) -> Audit:
    result = facts.storage.audits[f"{host['folder']}/{name}"]
    assert isinstance(result, Audit), result
    return result


def results(outcome: Audit, names: tuple[str, ...]) -> set[str]:
    return {trial.result for trial in outcome.of(names)}


def states(host: Any, facts: HostFacts, name: str) -> dict[str, Feature]:
    path = f"{host['folder']}/{name}"
    return {state.name: state for state in features(facts.storage, facts.storage.mounts[path], path)}


def on(host: Any, facts: HostFacts, name: str, state: str = "on") -> set[str]:
    return {condition.name for condition in states(host, facts, name).values() if condition.state == state}


def findings_of(host: Any, facts: HostFacts, name: str, path: str = "direct") -> dict[str, Finding]:
    expectation: Expectation = replace(EXPECTATION, storage=[{"mount": f"{host['folder']}/{name}", "path": path}])
    answers = checks.run(facts, expectation)
    return {row.check.partition(":")[0]: row for row in answers if row.check.startswith(("storage", "odirect"))}


def test_nothing_stays_behind_and_a_mount_takes_less_than_a_second(host: Any) -> None:
    assert host["left"] == []
    assert host["evidence"]["gaps"] == []
    assert {path: entry["seconds"] for path, entry in host["evidence"]["odirect"].items() if entry["seconds"] > 1} == {}


def test_the_scratch_file_is_small(host: Any) -> None:
    assert 128 * 1024 < host["largest"] * 4096 / PAGESIZE <= 144 * 1024


def test_the_page_cache_has_what_was_read_and_nothing_that_was_dropped(host: Any) -> None:
    assert host["pages"] == {"ext4": [0, 1], "xfs": [0, 1]}


@pytest.mark.parametrize("name", ["ext4", "xfs", "overlay"])
def test_it_bypasses_the_cache_where_it_is_aligned_and_is_refused_elsewhere(
    host: Any, facts: HostFacts, name: str
) -> None:
    outcome = audit(host, facts, name)
    assert len(outcome.of(ALIGNED)) == 5
    assert results(outcome, (*ALIGNED, *TINY)) == {BYPASSED}
    assert {(trial.result, trial.error) for trial in outcome.unaligned} == {(REFUSED, "EINVAL")}
    assert outcome.alignment == (512, 512)
    answers = findings_of(host, facts, name)
    assert answers["odirect.bypass"].verdict == PASS
    if name != "overlay":
        assert answers["odirect.conditions"].verdict == PASS


def test_the_page_cache_shows_through_overlay_and_its_conditions_do_not(host: Any, facts: HostFacts) -> None:
    assert audit(host, facts, "overlay").instrument == audit(host, facts, "ext4").instrument == "mincore"
    assert "ask there" in str(states(host, facts, "overlay")["data journalling"].state)
    assert findings_of(host, facts, "overlay")["storage.path"].verdict != PASS


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("ext4-journal", "data journalling"),
        ("secret", "encryption"),
        ("btrfs", "checksums"),
        ("btrfs-compressed", "compression"),
    ],
)
def test_a_filesystem_that_looks_at_the_data_serves_direct_io_from_the_cache(
    host: Any, facts: HostFacts, name: str, condition: str
) -> None:
    outcome = audit(host, facts, name)
    assert results(outcome, ALIGNED) <= {BUFFERED, FELL_BACK}
    assert all(trial.pages > 0 for trial in outcome.of(ALIGNED))
    assert condition in on(host, facts, name)
    answers = findings_of(host, facts, name)
    assert {answers[check].verdict for check in ("odirect.bypass", "odirect.conditions")} == {FAIL}
    assert answers["storage.path"].verdict != PASS
    assert "through the page cache" in answers["odirect.bypass"].found
    assert condition in answers["odirect.conditions"].found
    assert all(finding.hint for finding in answers.values() if finding.verdict != NOT_APPLICABLE)


def test_a_mount_for_compat_mode_is_not_failed_for_it(host: Any, facts: HostFacts) -> None:
    answers = findings_of(host, facts, "btrfs", path="compat")
    verdicts = [answers[check].verdict for check in ("odirect.bypass", "odirect.conditions")]
    assert verdicts == [PASS, NOT_APPLICABLE]
    assert "0 of 5 aligned kinds of I/O bypass the page cache" in answers["odirect.bypass"].found
    assert "on: checksums, copy-on-write" in answers["odirect.conditions"].found


def test_a_tiny_file_inside_its_inode_is_buffered(host: Any, facts: HostFacts) -> None:
    outcome = audit(host, facts, "ext4-inline")
    assert results(outcome, ALIGNED) == {BYPASSED}
    assert [trial.result for trial in outcome.of(TINY)] == [BUFFERED, FELL_BACK]
    assert states(host, facts, "ext4-inline")["inline data"].state == "possible"
    answers = findings_of(host, facts, "ext4-inline")
    assert answers["odirect.bypass"].verdict == PASS
    assert "read of a tiny file: through the page cache (1 page)" in answers["odirect.bypass"].found


def test_copying_is_off_where_the_folder_says_so(host: Any, facts: HostFacts) -> None:
    assert {"checksums", "copy-on-write"} <= on(host, facts, "btrfs")
    assert not {"checksums", "copy-on-write"} & on(host, facts, "nocow")
    assert audit(host, facts, "nocow").of(("overwrite",))[0].result == BYPASSED
    assert "crc32c" in " ".join(states(host, facts, "btrfs")["checksums"].evidence)


def test_tmpfs_holds_its_data_in_the_cache(host: Any, facts: HostFacts) -> None:
    assert results(audit(host, facts, "tmpfs"), (*ALIGNED, *TINY)) == {BUFFERED}
    assert findings_of(host, facts, "tmpfs")["odirect.bypass"].verdict == FAIL


def test_shared_extents_of_xfs_are_said_to_be_possible(host: Any, facts: HostFacts) -> None:
    assert on(host, facts, "xfs", "possible") == {"deduplication", "copy-on-write"}
    assert states(host, facts, "xfs")["copy-on-write"].evidence == ("XFS geometry: reflink=1",)


def test_a_mount_that_cannot_be_written_to_is_not_proven(host: Any, facts: HostFacts) -> None:
    outcome = facts.storage.audits[f"{host['folder']}/ext4-readonly"]
    assert isinstance(outcome, Unknown)
    assert "it is mounted read-only (EROFS)" in outcome.reason
    answer = findings_of(host, facts, "ext4-readonly")["odirect.bypass"]
    assert (answer.verdict, answer.found) == ("unknown", outcome.reason)


def test_without_a_record_of_udev_the_path_is_broken(host: Any, facts: HostFacts) -> None:
    answer = findings_of(host, facts, "ext4")["storage.path"]
    assert "udev has no ID_FS_USAGE" in answer.found
