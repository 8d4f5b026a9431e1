"""What is computed from facts, and evidence of any shape: absence is never confused with ignorance.

What the real libcufile of five releases did with real configurations; tests/cases/facts/cufile.yml has more of it.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gdsdeploy.host.facts import UndecidedError, Unknown, as_dict, facts_from, require
from gdsdeploy.host.facts.document import LOGGED, Document, Ran
from gdsdeploy.host.facts.unknown import Facts, any_of, fact, known
from gdsdeploy.host.subjects.cufile_json import CufileFacts, merged, without_comments
from gdsdeploy.host.subjects.libcufile import ACCEPTED, REJECTED
from gdsdeploy.host.subjects.odirect import audits
from gdsdeploy.host.subjects.pci import addresses
from gdsdeploy.host.subjects.proof import proofs
from tests.unit.host import cases, hosts
from tests.unit.host.patches import patched


def test_options_of_a_kernel() -> None:
    kernel = facts_from(hosts.named("bare, as recorded")).kernel
    assert [kernel.option(name) for name in ("PCI_P2PDMA", "MODVERSIONS", "NO_SUCH_OPTION")] == ["n", "y", "n"]
    assert kernel.secure_boot is False


def test_gpus_are_functions() -> None:
    """One function less may be one GPU less."""
    first, second = (facts_from(look.document).pci for look in cases.read("facts/host")["a GPU and its bars"].looks())
    assert [gpu.address for gpu in first.gpus] == ["0000:00:06.0"]
    assert isinstance(known(lambda: second.gpus), Unknown)
    assert facts_from(hosts.named("bare, as recorded")).pci.gpus == ()


def test_addresses_in_a_path() -> None:
    assert addresses("/sys/devices/pci0000:00/0000:00:1c.0/10000:e1:00.0/nvme/nvme0") == (
        "0000:00:1c.0",
        "10000:e1:00.0",
    )


def test_a_variable_that_is_not_set_and_one_that_was_not_looked_for() -> None:
    assert facts_from(hosts.named("bare")).environment.variable("CUFILE_X") is None
    environment = facts_from(hosts.named("bare, as recorded")).environment
    assert isinstance(known(lambda: environment.variable("CUFILE_X")), Unknown)


@pytest.mark.parametrize(
    ("base", "over", "result"),
    [
        ({"properties": {"a": 1, "b": 2}}, {"properties": {"b": 3}}, {"properties": {"a": 1, "b": 3}}),
        ({"properties": {"a": True}}, {"properties": {"a": None}}, {"properties": {"a": True}}),
        ({"denylist": {"drivers": ["nvme"]}}, {"denylist": {"drivers": []}}, {"denylist": {"drivers": ["nvme"]}}),
        ({"denylist": {"drivers": ["nvme"]}}, {"denylist": {"drivers": ["nfs"]}}, {"denylist": {"drivers": ["nfs"]}}),
        (
            {"fs": {"nfs": {"mount_table": {"/a": {}}}}},
            {"fs": {"nfs": {"mount_table": {"/b": {}}}}},
            {"fs": {"nfs": {"mount_table": {"/a": {}, "/b": {}}}}},
        ),
        (None, {"fs": {"x": 0}}, {"fs": {"x": 0}}),
    ],
)
def test_one_configuration_over_another(base: Any, over: Any, result: Any) -> None:
    before = copy.deepcopy(base)
    assert merged(base, over) == result
    assert base == before


def test_settings_are_those_of_both_files() -> None:
    look = next(cases.read("facts/programs")["the first file stays what it is"].looks())
    both = facts_from(look.document).cufile
    assert both.setting("properties", "force_compat_mode", False) is True
    assert both.setting("properties", "io_batchsize", 128) == 7


def test_a_setting_that_may_be_in_a_file_that_was_not_read() -> None:
    record = {"environment": {"CUFILE_ENV_PATH_JSON": "/x"}, "configs": {"/x": {"error": "EACCES"}}}
    facts = facts_from(patched(hosts.named("capable"), record))
    assert isinstance(known(lambda: facts.cufile.setting("properties", "force_compat_mode", False)), Unknown)


def test_a_program_has_a_label() -> None:
    running = facts_from(hosts.named("capable, with a program")).processes.programs
    assert running[0].label == "process 4711 (train) of /docker/0123"


HOSTS = Path(__file__).parents[3] / "evidence" / "hosts"


def test_three_answers_are_kept_apart() -> None:
    document = Document({"files": {"/a": "x", "/b": {"error": "ENOENT"}, "/c": {"error": "EACCES"}, "/e": None}})
    assert document.text("/a") == "x"
    assert document.text("/b") is None
    assert known(lambda: document.text("/c")) == Unknown("/c could not be read: EACCES")
    assert known(lambda: document.text("/d")) == Unknown("/d was not looked at")
    assert isinstance(known(lambda: document.text("/e")), Unknown)


def test_what_was_cut_is_not_known() -> None:
    document = Document({"files": {"/a": {"error": "longer than 4 bytes", "text": "abcd"}}})
    assert known(lambda: document.text("/a")) == Unknown("/a could not be read: longer than 4 bytes")


def test_a_relative_link_is_made_absolute() -> None:
    document = Document({"links": {"/sys/dev/block/8:1": "../../devices/x/sda/sda1"}})
    assert document.link("/sys/dev/block/8:1") == "/sys/devices/x/sda/sda1"


def test_a_program_that_hung_or_is_not_there_says_nothing() -> None:
    run = {"argv": [], "status": 0, "stdout": "a", "stderr": "", "seconds": 1}
    commands = {
        "good": run,
        "hung": {**run, "status": 124},
        "none": {**run, "status": 127, "stderr": "x: No such file\n"},
        "cut": {**run, "error": "longer than 9 bytes"},
        "odd": {**run, "status": "0"},
        **{f"without {part}": {key: run[key] for key in run if key != part} for part in ("status", "stdout", "stderr")},
    }
    document = Document({"commands": commands})
    assert document.ran("good").stdout == "a"
    for name in ("other", *set(commands) - {"good"}):
        with pytest.raises(UndecidedError):
            document.ran(name)
    assert document.attempted("hung").status == 124


def test_an_unknown_is_neither_true_nor_false() -> None:
    with pytest.raises(TypeError, match="this is not known: because"):
        bool(Unknown("because"))
    with pytest.raises(UndecidedError, match="because"):
        require(Unknown("because"))
    assert require(0) == 0
    assert known(lambda: require(Unknown("x"))) == Unknown("x")
    assert any_of([Unknown("x"), True])
    assert not any_of([False])
    assert known(lambda: any_of([False, Unknown("x")])) == Unknown("x")


class Counted(Facts):
    asked = 0

    @fact
    def value(self) -> int:
        self.asked += 1
        if self.asked > 0:
            raise UndecidedError("because")
        return 0

    @fact
    def double(self) -> int:
        return 2 * self.value


def test_a_fact_is_decided_once_and_another_can_take_its_place() -> None:
    facts = Counted(Document({}))
    for _ in range(2):
        with pytest.raises(UndecidedError, match="because"):
            _ = facts.double
    assert facts.asked == 1
    assert facts.but(value=3).double == 6
    assert known(lambda: facts.but(value=Unknown("other")).double) == Unknown("other")
    assert as_dict(facts) == {"asked": 1, "value": {"unknown": "because"}, "double": {"unknown": "because"}}


def test_facts_become_json() -> None:
    value = json.dumps(as_dict(facts_from({})))
    assert '"unknown"' in value
    for path in HOSTS.glob("*vm-*.json"):
        json.dumps(as_dict(facts_from(json.loads(path.read_text()))))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 10**12) | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_a_document_of_any_shape_is_read(value: Any) -> None:
    as_dict(facts_from(value))


@pytest.mark.parametrize("name", ["dmesg", *LOGGED])
@pytest.mark.parametrize("part", ["status", "stdout", "stderr", "log"])
def test_a_record_without_a_part_is_no_empty_output(name: str, part: str) -> None:
    run = {"status": 0, "stdout": "", "stderr": "", "log": ""}
    assert isinstance(Document({"commands": {name: run}}).attempted(name), Ran)
    del run[part]
    optional = name == "dmesg" and part == "log"
    cut = Document({"commands": {name: run}})
    assert isinstance(known(lambda: cut.attempted(name)), Unknown) is not optional


def test_a_status_is_a_number() -> None:
    run = {"status": True, "stdout": "", "stderr": ""}
    with pytest.raises(UndecidedError):
        Document({"commands": {"dmesg": run}}).ran("dmesg")


BARE = json.loads((HOSTS / "lab-vm-bare.json").read_text())
PLACES = [(section, key) for section, entries in BARE.items() if isinstance(entries, dict) for key in entries]


@given(st.lists(st.tuples(st.sampled_from(PLACES), VALUES | st.text()), min_size=1, max_size=6))
def test_a_real_document_with_anything_in_it_is_read(changes: list[tuple[tuple[str, str], Any]]) -> None:
    document = {section: dict(entries) if isinstance(entries, dict) else entries for section, entries in BARE.items()}
    for (section, key), value in changes:
        document[section][key] = value
    json.dumps(as_dict(facts_from(document)))


RECORDS = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.booleans(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["trials", "result", "read", "alignment", "memory", "error"]), inner)
    ),
    max_leaves=10,
)


@given(RECORDS, RECORDS)
def test_records_of_any_shape_are_read(odirect: Any, commands: Any) -> None:
    document = Document({"odirect": {"/mnt": odirect}, "commands": {"cufile-proof": commands}})
    audits(document)
    proofs(document)


@given(st.lists(st.sampled_from(["start", "gpus", "open", "begin", "pair", "end"]), max_size=6), RECORDS, st.integers())
def test_lines_of_any_shape_are_read(events: list[str], value: Any, status: int) -> None:
    where = {"mount": "/mnt", "gpu": "x", "mounts": value if status % 2 else ["/mnt"], "gpus": value or ["x"]}
    lines = "\n".join(json.dumps({"result": value, "read": value, "log": value, **where, "event": e}) for e in events)
    record = {"argv": [], "status": status, "stdout": lines, "stderr": "", "seconds": 1}
    for entries in proofs(Document({"commands": {"cufile-proof": record, "cufile-proof-compat": record}})).values():
        assert all(entry.path == "broken" or isinstance(entry.path, Unknown) for entry in entries)


FOLDER = Path(__file__).parents[3] / "evidence" / "cufile-open"
RUNS: dict[str, dict[str, Any]] = {}
for file in FOLDER.glob("*.json"):
    RUNS.update(json.loads(file.read_text()))
GOOD = ("shipped", "no-file", "shipped, no libcuda")


def facts(commands: dict[str, Any], text: str | None = None) -> CufileFacts:
    files = {"/etc/cufile.json": {"error": "ENOENT"} if text is None else text}
    return CufileFacts(Document({"commands": commands, "files": files}))


@pytest.mark.parametrize("name", sorted(RUNS))
def test_verdict_of_every_recorded_run(name: str) -> None:
    release, _, case = name.partition(" ")
    # The library before 1.13 did not hold per_buffer_cache_size_kb against max_direct_io_size_kb.
    good = case in GOOD or (case == "upgrade-trap" and release in ("1.4.0", "1.9.1"))
    assert facts(RUNS[name]).acceptance == (ACCEPTED if good else REJECTED)


def test_the_recordings_cover_what_they_should() -> None:
    releases = {name.partition(" ")[0] for name in RUNS}
    assert releases == {"1.4.0", "1.9.1", "1.13.1", "1.15.1", "1.20.0"}
    assert len(RUNS) == 5 * 9


def test_a_refusal_is_quoted_in_the_librarys_own_words() -> None:
    opened = facts(RUNS["1.9.1 wrong-type"]).opened
    assert opened.refusal[:2] == [
        "json type mismatch, config read failed for json field properties.use_poll_mode",
        "error reading config properties.use_poll_mode",
    ]
    assert opened.error == -22


def test_a_setting_and_its_default() -> None:
    result = facts({}, '// a\n{"properties": /* b */ {"allow_compat_mode": false, "x": "// no comment"}} rest')
    assert result.setting("properties", "allow_compat_mode", True) is False
    assert result.setting("properties", "x", "") == "// no comment"
    assert result.setting("denylist", "drivers", []) == []
    assert facts({}).setting("properties", "allow_compat_mode", True) is True
    with pytest.raises(UndecidedError):
        facts({}, "{").setting("properties", "allow_compat_mode", True)


def test_comments_in_texts_stay() -> None:
    assert json.loads(without_comments('{"a": "http://x/*y*/", /* b */ "c": 1} // d')) == {"a": "http://x/*y*/", "c": 1}
