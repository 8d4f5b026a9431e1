"""Pasted logs: parts, setting, causes in order, and the path that a text itself shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from gdsdeploy import cufile
from gdsdeploy.host.errors import UsageError
from gdsdeploy.host.logs import judge
from gdsdeploy.host.logs.judge import Answer, answer_to, as_document, render
from gdsdeploy.host.logs.parts import reports, split
from tests.unit.host import cases, expect

EVIDENCE = Path(__file__).parents[2] / "evidence"
DIRECT = (EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.20.0.ngpu1.nvfs-2.28.open-driver.txt").read_text()
NO_HOOKS = (EVIDENCE / "gdscheck-h200" / "gdscheck-p.libcufile-1.13.1.3.h200.txt").read_text()
TRACE = (EVIDENCE / "h200" / "libcufile-1.15.1-trace.log").read_text()
UDEV = " 20-11-2026 14:07:57:140 [pid=506 tid=506] ERROR  cufio-udev:67 udev property not found: ID_FS_USAGE vda\n"
XID = "[ 4242.100001] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
GPL = "[   12.345678] nvidia_fs: Unknown symbol nvidia_p2p_dma_map_pages (err -2)\n"
MAKE = (
    "DKMS make.log for nvidia-fs-2.18.3 for kernel 6.5.0-44-generic (x86_64)\n"
    "/var/lib/dkms/nvidia-fs/2.18.3/build/nvfs-mmap.c:1:1: error: assignment of read-only member 'vm_flags'\n"
)


def ask(*texts: str) -> Answer:
    return answer_to([(f"file{place}", one.encode()) for place, one in enumerate(texts, 1)])


def ids(answer: Answer) -> list[str]:
    return [cause.id for cause in answer.causes]


# ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────


CASES = cases.load("logs/answers")


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    assert set(case) <= {"texts", "recordings", "answer"}
    texts = [(EVIDENCE / path).read_text() for path in case.get("recordings", [])] + case.get("texts", [])
    for difference in expect.differences(case["answer"], as_document(ask(*texts)), ""):
        pytest.fail(f"tests/cases/logs/answers.yml: {difference}", pytrace=False)


def test_a_mixture_is_split_and_keeps_its_line_numbers() -> None:
    paste = f"Hello, GDS is slow:\n```\n{DIRECT}```\nand dmesg says\n```\n{XID}```\n{MAKE}\n{UDEV}"
    pieces = split(paste.encode(), "paste")
    assert [part.kind for part in pieces] == ["other", "gdscheck", "other", "kernel", "build", "cufile"]
    lines = paste.split("\n")
    for line in (line for part in pieces for line in part.lines):
        assert line.text in lines[line.number - 1]


def test_marks_of_markdown_colours_and_encodings_change_no_answer() -> None:
    whole = ids(ask(TRACE + XID))
    assert len(whole) > 2
    quoted = "".join(f"> {line}\n" for line in (TRACE + XID).split("\n"))
    for data in (quoted.encode(), (TRACE + XID).replace("\n", "\r\n").encode(), (TRACE + XID).encode("utf-16")):
        assert ids(answer_to([("paste", data)])) == whole
    coloured = (TRACE + XID).replace("ERROR", "\x1b[31mERROR\x1b[0m")
    assert ids(ask(coloured)) == whole


# ── setting and rules ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_shorter_form_of_a_version_is_the_same_version() -> None:
    answer = ask(MAKE, "kernel: 6.5.0\n")
    assert answer.setting.value("kernel") == "6.5.0-44-generic"
    assert ask(MAKE, "kernel: 6.5.0-4\n").setting.value("kernel") is None


# ── the path ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "other",
    [
        UDEV,
        XID,
        GPL,
        TRACE,
        NO_HOOKS,
        MAKE,
        " 20-11-2026 14:07:57:140 [pid=506 tid=506] ERROR  cufio:1 a message that no release of today has\n",
        "modprobe: ERROR: could not insert 'nvidia_fs': Unknown symbol in module, or unknown parameter (see dmesg)\n",
        "cuFileHandleRegister failed: err=5030\n",
    ],
)
def test_a_direct_report_with_any_contradiction_is_not_direct(other: str) -> None:
    for files_of in ((DIRECT, other), (other, DIRECT), (other + DIRECT,), (DIRECT + other,)):
        assert ask(*files_of).path != judge.DIRECT


def test_reports_of_one_file_share_its_lines() -> None:
    shown = reports(split((TRACE * 3).encode(), "paste"))
    assert len(shown) == 3
    assert len({id(one.lines) for one in shown}) == 1


def test_a_cut_report_is_not_direct() -> None:
    lines = DIRECT.splitlines(keepends=True)
    end = next(place for place, line in enumerate(lines) if "verification succeeded" in line)
    for place in range(end):
        assert ask("".join(lines[:place])).path != judge.DIRECT


# ── causes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_root_causes_come_first_and_possible_ones_last() -> None:
    answer = ask(TRACE, XID)
    sure = [cause for cause in answer.causes if cause.certainty != judge.POSSIBLE]
    assert answer.causes[: len(sure)] == tuple(sure)
    assert [cause.rank for cause in sure] == sorted(cause.rank for cause in sure)
    assert all(cause.quotes and cause.fix and cause.reference for cause in answer.causes)


def test_a_line_that_shows_a_cause_counts_after_any_number_that_only_may() -> None:
    possible = (
        " 20-11-2026 14:07:57:140 [pid=1 tid=1] ERROR  cufio:340 cuFileHandleRegister error, failed to allocate\n"
    )
    before = ask(UDEV).causes
    after = ask(possible * 50 + UDEV).causes
    assert [(cause.id, cause.certainty) for cause in before] == [(after[0].id, after[0].certainty)]


#: Modules of the driver, and those that use its symbols; a newer driver may have others.
MODULES = (
    "nvidia",
    "nvidia_uvm",
    "nvidia_drm",
    "nvidia_modeset",
    "nvidia_peermem",
    "nvidia_fs",
    "nv_peer_mem",
    "gdrdrv",
)
#: What the kernel says of a module, and the causes that it can have, the first of which comes first for gdrdrv.
OF_MODULES = {
    "[ 1.5] {0}: disagrees about version of symbol nvidia_p2p_get_pages": (
        "module.other-driver", "nvidia-fs.symbol-mismatch", "build.symbol-versions",
    ),
    "[ 1.5] {0}: Unknown symbol nvidia_p2p_put_pages (err -22)": (
        "module.other-driver", "nvidia-fs.symbol-mismatch", "build.symbol-versions",
    ),
    "[ 1.5] {0}: Unknown symbol nvidia_p2p_put_pages (err -2)": (
        "nvidia.not-loaded", "nvidia-fs.proprietary-driver", "build.symbol-versions",
    ),
    "[ 1.5] {0}: disagrees about version of symbol module_layout": ("module.other-kernel",),
    "[ 1.5] {0}: Unknown symbol dma_resv_fini (err -22)": ("module.other-kernel",),
    "[ 1.5] {0}: Unknown symbol drm_open (err -2)": ("module.no-symbol",),
    "[ 1.5] {0}: version magic '6.8.0-44-generic SMP ' should be '6.8.0-45-generic SMP '": ("module.other-kernel",),
    "[ 1.5] module {0}: .gnu.linkonce.this_module section size must match the kernel's": ("module.other-kernel",),
    "modprobe: ERROR: could not insert '{0}': Exec format error": ("module.other-kernel",),
    "insmod: ERROR: could not insert module ./{0}.ko: Invalid module format": ("module.other-kernel",),
    "FATAL: Error inserting {0} (/lib/modules/6.8.0/extra/{0}.ko): Invalid module format": ("module.other-kernel",),
    "modprobe: ERROR: could not insert '{0}': Key was rejected by service": ("module.refused-signature",),
    "Nov 26 12:00:00 gpu7 systemd-modules-load[311]: Failed to insert module '{0}': Required key not available": (
        "module.refused-signature",
    ),
    "modprobe: ERROR: could not insert '{0}': Invalid argument": (
        "module.other-driver", "module.other-kernel", "nvidia-fs.symbol-mismatch", "build.symbol-versions",
        "nvidia-peermem.stub",
    ),
    "modprobe: ERROR: could not insert '{0}': Unknown symbol in module, or unknown parameter (see dmesg)": (
        "module.no-symbol", "nvidia-fs.proprietary-driver", "nvidia-peermem.other-rdma-core",
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", OF_MODULES)
def test_what_the_kernel_says_of_a_module_it_says_of_each(line: str) -> None:
    first = {module: ask(line.format(module) + "\n").causes[0] for module in MODULES}
    assert {cause.id for cause in first.values()} <= set(OF_MODULES[line])
    assert first["gdrdrv"].id == OF_MODULES[line][0]
    assert "gdrdrv" in first["gdrdrv"].quotes[0].means
    assert {first[name].id for name in ("nvidia_uvm", "nvidia_drm", "nvidia_modeset")} == {OF_MODULES[line][0]}


def test_no_other_cause_is_possible_where_a_line_shows_the_one() -> None:
    insmod = "insmod: ERROR: could not insert module gdrdrv/gdrdrv.ko: Invalid parameters\n"
    kernel = "[55580.715174] gdrdrv: disagrees about version of symbol nvidia_p2p_get_pages\n"
    assert ids(ask(insmod)) == ["module.other-driver", "module.other-kernel"]
    assert ids(ask(insmod, kernel)) == ["module.other-driver"]


def test_unknown_errors_are_listed_once_with_their_number() -> None:
    line = " 20-11-2026 14:07:57:140 [pid=506 tid=506] ERROR  cufio:1 zzz qqq number {}\n"
    answer = ask("".join(line.format(place) for place in range(100)))
    assert [(quote.count, quote.line.number) for quote in answer.unknown] == [(100, 1)]
    assert ids(answer) == []
    assert answer.decide.startswith("dmesg")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("gds_device_buffer.cufile_register: cuFileBufRegister returned an error = 5016", "cufile.5016"),
        ("profile.py: cuFileHandleRegister failed: err=5030", "udev.no-database"),
    ],
)
def test_a_program_that_names_its_module_is_no_row_of_gdscheck(line: str, cause: str) -> None:
    answer = ask(line)
    assert [part.kind for part in answer.parts] == ["program"]
    assert ids(answer)[0] == cause


def test_every_section_of_cufile_json_begins_a_row_of_gdscheck() -> None:
    keys = (Path(cufile.__file__).parent / "keys.yml").read_text()
    sections = set(re.findall(r"(?m)^- key: (\w+)\.", keys))
    assert len(sections) > 5
    for section in sections:
        assert [part.kind for part in split(f"{section}.some_key : true".encode(), "paste")] == ["gdscheck"]


GLOBAL, NVME = "properties.use_pci_p2pdma", "block.nvme.use_pci_p2pdma"


@pytest.mark.parametrize(
    ("mode", "storage", "shown"),
    [("true", "false", True), ("false", "true", True), ("true", "true", False), ("false", "false", False)],
)
def test_half_of_p2pdma_is_shown_by_rows_with_and_without_their_report(mode: str, storage: str, shown: bool) -> None:
    rows = f"{GLOBAL} : {mode}\n{NVME} : {storage}\n"
    log = "".join(f" 20-11-2026 14:07:57:140 [pid=506 tid=506] INFO  0:1 {row}\n" for row in rows.splitlines())
    whole = DIRECT.replace(f"{GLOBAL} : false", f"{GLOBAL} : {mode}").replace(f"{NVME} : false", f"{NVME} : {storage}")
    for text in (rows, log, whole):
        assert ("cufile.p2pdma-half-set" in ids(ask(text))) is shown


def test_a_release_whose_storage_has_no_key_of_its_own_is_not_half_set() -> None:
    old = f"{GLOBAL} : true\n"
    for texts in ((old,), (old, DIRECT), (DIRECT, old), (DIRECT + old,)):
        assert "cufile.p2pdma-half-set" not in ids(ask(*texts))


def test_prose_is_not_recognised() -> None:
    answer = ask("Dear all,\n\nit is raining.\n")
    assert not answer.recognised
    assert "Nothing in this text is known here." in render(answer)


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("cut", [0, 1, 7])
def test_texts_in_utf_16_with_and_without_their_mark_are_read(encoding: str, cut: int, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes((XID + UDEV).encode(encoding)[cut:])
    assert {"kernel.xid-79", "udev.no-database"} <= set(ids(answer_to(judge.read_texts([str(path)]))))


def test_a_text_cut_in_a_line_or_character_is_read_up_to_there() -> None:
    whole = f"{UDEV}kernel: größer\n{XID}".encode()
    for place in range(len(UDEV.encode()), len(whole)):
        assert "udev.no-database" in ids(answer_to([("log", whole[:place])]))


def test_zeros_before_a_line_do_not_hide_it() -> None:
    assert "kernel.xid-79" in ids(answer_to([("log", b"\0" * 5000 + XID.encode())]))


def test_more_lines_than_memory_may_hold_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "LINES", 100)
    path = tmp_path / "log"
    path.write_text("a\n" * 100)
    assert judge.read_texts([str(path)])
    for end in ("\n", "\r"):
        path.write_bytes(f"a{end}".encode() * 201)
        with pytest.raises(UsageError, match="has more than 100 lines; give its end: tail -n 50"):
            judge.read_texts([str(path)])


REPORT = "nvidia-bug-report.sh Version: 34275561\nuname: Linux {} 6.8.0-45-generic #45-Ubuntu SMP x86_64 GNU/Linux\n"


@pytest.mark.parametrize(
    ("lines", "mixed"),
    [
        (["Nov 26 12:00:00 gpu7 kernel: {}", "Nov 26 12:00:01 gpu8 kernel: {}"], True),
        (["2026-11-26T12:00:00+0100 gpu7 kernel: {}", "2026-11-26T12:00:00+0100 gpu8.example.com dkms[7]: {}"], True),
        ([REPORT.format("gpu7"), REPORT.format("gpu8")], True),
        (["Nov 26 12:00:00 gpu7 kernel: {}", "Nov 26 12:00:01 GPU7.example.com systemd[1]: {}"], False),
        (["Nov 26 12:00:00 localhost kernel: {}", "Nov 26 12:00:01 gpu7 kernel: {}"], False),
        (["2026-11-26T12:00:00.1Z INFO worker: {}", "2026-11-26T12:00:00.1Z gpu7 kernel: {}"], False),
        (["[ 4242.100001] {}", "{}"], False),
    ],
)
def test_two_hosts_in_a_text_are_named_and_do_not_explain_each_other(lines: list[str], mixed: bool) -> None:
    facts = ["NVIDIA UNIX Open Kernel Module for x86_64  590.44.01", "Linux version 6.17.0-8-generic"]
    text = "".join(f"{line.format(fact)}\n" for line, fact in zip(lines, facts, strict=True))
    text += "cufile: errornum: 801\n"
    for texts in ([text], [f"{text}{line}\n" for line in text.splitlines()]):
        answer = ask(*texts)
        assert any("hosts are mixed" in remark for remark in answer.remarks) is mixed
        certainty = {cause.id: cause.certainty for cause in answer.causes}["driver.p2pdma-refcount"]
        assert (certainty == judge.POSSIBLE) is mixed


def test_a_report_in_a_unit_s_journal_is_a_report() -> None:
    journal = "".join(f"Nov 26 12:00:00 gpu7 gdscheck[7]: {line}\n" for line in DIRECT.splitlines())
    assert ask(journal).path == judge.DIRECT
    failed = "Nov 26 12:00:00 gpu7 sh[7]:  cuFile initialization failed\n"
    assert ask(DIRECT, failed).path != judge.DIRECT


# ── output ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("texts", [(TRACE, XID, MAKE), (DIRECT,), ("nothing\n",)], ids=["faults", "direct", "nothing"])
def test_the_document_follows_its_schema(texts: tuple[str, ...]) -> None:
    value = json.loads(json.dumps(as_document(ask(*texts))))
    jsonschema.validate(value, json.loads((cases.FOLDER / "logs" / "answer.schema.json").read_text()))


def test_the_text_begins_with_the_first_cause_and_its_line() -> None:
    answer = ask(TRACE)
    rendered = render(answer)
    first = answer.causes[0]
    assert rendered.startswith("1. ")
    assert rendered.index(first.quotes[0].line.text) < rendered.index("   do    ") < rendered.index("   read  ")
    assert first.quotes[0].line.place in rendered


def test_what_a_text_says_cannot_drive_a_terminal() -> None:
    hostile = UDEV.replace("vda", "vda\x07\u202e\x9b31m")
    assert not set(render(ask(hostile))) & set("\x07\u202e\x9b\x1b")


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "words_of"),
    [
        (b"", "is empty"),
        (b"\n \n\0\0", "is empty"),
        (b"\x1f\x8b\x08" + bytes(range(256)) * 20, "is no text"),
        (b"\x7fELF" + b"\0" * 5000 + b"abc", "is no text"),
    ],
)
def test_what_is_no_text_is_one_error(content: bytes, words_of: str, tmp_path: Path) -> None:
    file = tmp_path / "paste"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=words_of) as raised:
        judge.read_texts([str(file)])
    assert "\n" not in str(raised.value)


def test_folders_missing_files_and_large_files_are_one_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        judge.read_texts([str(tmp_path)])
    with pytest.raises(UsageError, match="No such file"):
        judge.read_texts([str(tmp_path / "none")])
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(judge.LIMIT + 1)
    with pytest.raises(UsageError, match="more than 32 MiB"):
        judge.read_texts([str(large)])


def test_zeros_of_a_crashed_host_do_not_hide_a_log(tmp_path: Path) -> None:
    file = tmp_path / "kern.log"
    file.write_bytes(XID.encode() * 20 + b"\0" * 512 + GPL.encode())
    assert "kernel.xid-79" in ids(answer_to(judge.read_texts([str(file)])))


# ── what stands beside a line decides ────────────────────────────────────────────────────────────────────────────

NOT_OPEN = (
    "[  160.1] NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:{})\n"
    "               NVRM: installed in this system is not supported by open\n"
    "               NVRM: nvidia.ko because it does not include the required GPU\n"
)
LOADED = "Module                  Size  Used by\nnvidia_peermem         16384  0\n"
EFAULT = "ibv_reg_mr failed with GPU buffer: Bad address\n"
DISABLED = "NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
STDIN = "nvcc: <built-in>: fatal error: when writing output to : Bad file descriptor\n"


def sure(answer: Answer) -> list[str]:
    return [cause.id for cause in answer.causes if cause.certainty != "possible"]


@pytest.mark.parametrize(
    ("text", "shown", "possible"),
    [
        (NOT_OPEN.format("1db6"), ["driver.other-flavour"], []),
        (NOT_OPEN.format("2331"), ["gpu.not-readable"], []),
        (NOT_OPEN.format("2331") + "Driver Version: 570.86.15\n", ["gpu.not-readable"], []),
        (NOT_OPEN.format("2b85") + "Driver Version: 560.35.03\n", ["driver.gpu-not-supported"], ["gpu.not-readable"]),
        (
            NOT_OPEN.format("2331") + NOT_OPEN.format("1b82"),
            ["gpu.not-readable", "driver.other-flavour"],
            [],
        ),
        (NOT_OPEN[NOT_OPEN.index("\n") + 1 :], [], ["gpu.not-readable", "driver.other-flavour"]),
        ("ibv_reg_dmabuf_mr(fd=31, offset=0x0) failed: Unknown error 524\n", ["rdma.dmabuf-refused"], []),
        ("ibv_reg_dmabuf_mr failed, errno=95\n", ["rdma.dmabuf-unsupported"], []),
        ("ibv_reg_dmabuf_mr() failed: Protocol not supported\n", ["rdma.dmabuf-unsupported"], []),
        ("ibv_reg_dmabuf_mr failed: Bad address\n", ["rdma.dmabuf-fault"], []),
        (
            "ibv_reg_dmabuf_mr(fd=93, offset=0x5f, length=95) failed: Invalid argument\n",
            [],
            ["rdma.dmabuf-unsupported", "rdma.dmabuf-refused", "rdma.dmabuf-fault"],
        ),
        ("efa:mr:efa_mr_reg_impl():893<warn> Unable to register MR: Bad address\n", ["efa.no-gpu-memory"], []),
        (EFAULT, [], ["nvidia-peermem.not-autoloaded", "rdma.dmabuf-not-exported", "memory.not-pinnable"]),
        (
            EFAULT + LOADED,
            ["memory.not-pinnable"],
            ["rdma.dmabuf-not-exported"],
        ),
        (DISABLED + LOADED + "NCCL version 2.21.5+cuda12.4\n", ["nccl.old-peermem-name"], []),
        (DISABLED.replace("IB", "Socket"), ["nccl.socket"], []),
        (STDIN, [], ["cufile.closes-stdin"]),
        (STDIN + "ls: cannot access '/dev/nvidia-fs*': No such file or directory\n", ["cufile.closes-stdin"], []),
    ],
)
def test_what_stands_beside_a_line_decides(text: str, shown: list[str], possible: list[str]) -> None:
    answer = ask(text)
    assert sure(answer) == shown
    assert sorted(set(ids(answer)) - set(shown)) == sorted(possible)


def test_lines_that_differ_by_numbers_are_all_looked_at() -> None:
    text = "".join(f"ibv_reg_mr2 called. cuMemAlloc: {number}, dmaBufSupported: 0\n" for number in (0, 0, 1))
    assert ask(text + EFAULT).setting.value("vmm") == "yes"
    lines = [f"[    1.000000] nvidia-fs:rw_verify_area failed with {number}\n" for number in (-13, -14)]
    assert "nvidia-fs.access-ok" in ids(ask("".join(lines)))


def test_a_module_that_the_text_shows_loaded_is_never_missing() -> None:
    text = "nvidia_fs             262144  0\n\n" + UDEV.replace(
        "udev property not found: ID_FS_USAGE vda", "nvidia-fs.ko driver not loaded"
    )
    answer = ask(text)
    assert ids(answer) == ["nvidia-fs.not-visible"]
    assert [quote.line.number for quote in answer.causes[0].quotes] == [3, 1]
