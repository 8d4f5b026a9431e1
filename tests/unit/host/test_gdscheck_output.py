"""gdscheck's real output of seven releases, and what damage to it must never turn into."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdsdeploy.host.gdscheck import BROKEN, COMPAT, DIRECT, END, REFUSED, UNKNOWN, Gpu, Report, Row, parse, parse_log

EVIDENCE = Path(__file__).parents[2] / "evidence"
FILES = sorted((EVIDENCE / "gdscheck").glob("gdscheck-p.*.txt"))


def recorded(path: Path) -> tuple[str, int]:
    """A recording without its last line, which holds the exit status."""
    text, _, status = path.read_text().rstrip("\n").rpartition("\nrc=")
    return text, int(status)


def report(name: str) -> Report:
    return parse(*recorded(EVIDENCE / "gdscheck" / f"gdscheck-p.libcufile-{name}.txt"))


def test_there_are_recordings() -> None:
    assert len(FILES) >= 38


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[20:-4])
def test_verdict_of_every_recording(path: Path) -> None:
    result = parse(*recorded(path))
    name = path.name
    refused = re.search(r"ngpu0|json-badtype|json-trailing|compat-false|nvfs-version-3", name)
    ruled_out = re.search(r"nvfs-version-2|proprietary", name)
    good = COMPAT if "no-nvidia-fs" in name else BROKEN if ruled_out else DIRECT
    assert result.verdict == (REFUSED if refused else good)
    assert bool(result.contradictions) is (ruled_out is not None)
    assert result.complete is (refused is None)
    assert bool(result.errors) is (refused is not None)
    assert result.strays == ()


def test_rows_of_an_old_release() -> None:
    result = report("1.9.1.ngpu1.nvfs-2.28.open-driver")
    assert (result.release, result.nvidia_fs, result.nvidia_fs_minimum) == ("1.9.1.3", "2.28", "2.12")
    assert result.storage["NVMe"] == Row("Supported", True)
    assert result.storage["IBM Spectrum Scale"] == Row("Unsupported", False)
    assert result.rdma["Mellanox PeerDirect"] == "Disabled"
    assert result.config["properties.posix_pool_slab_size_kb"] == "4 1024 16384"
    assert result.gpus == (Gpu(0, "NVIDIA H100 80GB HBM3", True, 0, "Disabled", bar=1),)
    assert result.platform["Nvidia Driver Info Status"] == "Supported(Nvidia Open Driver Installed)"


def test_rows_of_a_new_release() -> None:
    result = report("1.20.0.ngpu1.nvfs-2.28.open-driver")
    assert (result.release, result.nvidia_fs, result.nvidia_fs_minimum) == ("1.20.0.107", "2.28", "2.12")
    assert result.storage["NVMe"] == Row("nvfs, compat", True, ("nvfs", "compat"))
    assert result.storage["PanFS"] == Row("compat", False, ("compat",))
    assert result.gpus[0].bar_mib == 131072


def test_without_nvidia_fs_old_releases_print_no_header() -> None:
    result = report("1.9.1.ngpu1.no-nvidia-fs.noconfig")
    assert (result.release, result.nvidia_fs, result.nvidia_fs_minimum) == ("", "", "")
    assert report("1.15.1.ngpu1.no-nvidia-fs.noconfig").nvidia_fs == ""


def test_reasons_of_a_gpu_without_gds_come_together() -> None:
    gpu = report("1.20.0.ngpu1.no-nvidia-fs.noconfig").gpus[0]
    assert not gpu.gds
    assert gpu.reason == "BAR1=0; Model Not Supported"


def test_iommu_is_told() -> None:
    result = report("1.15.1.iommu-gpu")
    assert result.gpus[0].iommu == result.platform["IOMMU"].replace("enabled", "Enabled") == "Pass-through or Enabled"


def test_the_environment_is_told() -> None:
    assert report("1.20.0.p2pdma.nvfs-2.28").environment == {"CUFILE_LOGGING_LEVEL": "TRACE"}


def test_a_loaded_module_below_the_minimum_is_told_though_gdscheck_ends_well() -> None:
    result = report("1.20.0.nvfs-version-2.3")
    assert (result.exit_status, result.nvidia_fs, result.nvidia_fs_minimum) == (0, "2.3", "2.12")
    assert result.contradictions == ("the loaded nvidia-fs 2.3 is older than the minimum 2.12",)


def test_why_the_library_gave_up() -> None:
    assert report("1.15.1.json-badtype").errors[0] == (
        "json type mismatch, config read failed for json field properties.use_poll_mode"
    )
    assert any("nvidia-fs driver version mismatch" in line for line in report("1.20.0.nvfs-version-3.1").errors)
    # The rows before it gave up are whole, but a direct path is not believed.
    rows = report("1.9.1.ngpu0.no-nvidia-fs.noconfig").storage
    assert {row.supported for row in rows.values()} == {False}


@pytest.mark.parametrize("status", [None, 0, 1, 134, 255, -11])
def test_the_verdict_does_not_follow_the_exit_status(status: int | None) -> None:
    for path in FILES:
        text, own = recorded(path)
        assert parse(text, status).verdict == parse(text, own).verdict


def test_success_words_alone_are_worth_nothing() -> None:
    assert parse(" Platform verification succeeded\n", 0).verdict == UNKNOWN
    assert parse("", 0).verdict == UNKNOWN
    assert parse("NVMe : Supported\nPlatform verification succeeded\n", 0).storage == {}


def test_known_remarks_between_rows_are_harmless() -> None:
    text, status = recorded(EVIDENCE / "gdscheck" / "gdscheck-p.libcufile-1.9.1.ngpu1.nvfs-2.28.open-driver.txt")
    remark = " warn: error opening log file: Permission denied, logging will be disabled\n"
    lines = text.splitlines(keepends=True)
    for place in range(len(lines)):
        assert parse("".join([*lines[:place], remark, *lines[place:]]), status).verdict == DIRECT
    assert parse(text + "\n harmless words at the end", status).verdict == DIRECT


@pytest.mark.parametrize(
    "log", ["libcufile-1.15.1-trace.log", "libcufile-1.20.0-p2pdma-requested-trace.log"], ids=lambda name: name[:16]
)
def test_a_real_log_has_the_same_rows(log: str) -> None:
    result = parse_log((EVIDENCE / "h200" / log).read_text())
    assert result.complete
    assert result.verdict == COMPAT
    assert result.gpus == (Gpu(0, "NVIDIA H200", True, 262144, "Disabled", bar=1),)
    assert result.platform["Nvidia Driver Info Status"] == "Supported(Nvidia Open Driver Installed)"
    assert result.config["properties.use_pci_p2pdma"] == "true"
    assert result.storage["NVMe"].supported is False


def test_a_real_log_that_ends_in_a_refusal() -> None:
    result = parse_log((EVIDENCE / "h200" / "libcufile-1.20.0-compat-not-allowed.log").read_text())
    assert result.verdict == REFUSED
    assert result.errors[0] == "nvidia-fs.ko driver not loaded"


WHOLE = [recorded(path)[0] for path in FILES if parse(*recorded(path)).verdict == DIRECT]


def claims_nothing(result: Report) -> None:
    assert result.verdict in (UNKNOWN, REFUSED)
    assert not any(row.supported for row in result.storage.values())


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(WHOLE), st.floats(0, 1))
def test_a_cut_report_claims_no_direct_path(text: str, where: float) -> None:
    end = text.index(END) + len(END) - 1
    claims_nothing(parse(text[: int(where * end)], 0))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(WHOLE), st.sampled_from([recorded(path)[0] for path in FILES]), st.randoms(use_true_random=False)
)
def test_two_runs_mixed_line_by_line_claim_no_direct_path(first: str, second: str, random: object) -> None:
    left, right = first.splitlines(), second.splitlines()
    mixed: list[str] = []
    while left or right:
        mixed.append((left if left and (not right or random.random() < 0.5) else right).pop(0))  # type: ignore[attr-defined]
    claims_nothing(parse("\n".join(mixed), 0))


@pytest.mark.parametrize("text", WHOLE, ids=lambda text: text.partition("release version: ")[2][:8])
def test_no_row_takes_the_value_of_another_across_a_hole(text: str) -> None:
    whole, values = parse(text, 0), [match.end() for match in re.finditer(r"^ \w[\w ]+ +: ", text, re.MULTILINE)]
    assert len(values) > 10
    for start in values:
        for end in values:
            if start < end:
                for label, row in parse(text[:start] + text[end:], 0).storage.items():
                    assert not row.supported or whole.storage[label].supported


@settings(deadline=None)
@given(st.text() | st.lists(st.sampled_from([line for text in WHOLE for line in text.splitlines()])).map("\n".join))
def test_no_text_crashes_the_reader(text: str) -> None:
    parse(text)
    parse_log(text)
