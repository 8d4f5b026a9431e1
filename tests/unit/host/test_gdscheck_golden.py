"""Every recording as typed data: written down for the older ones, and losslessly for all.

``python -m tests.unit.host.test_gdscheck_golden`` writes the goldens anew; their diff is to be read against the
recordings.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.gdscheck import document, reader
from gdsdeploy.host.gdscheck.document import meaning
from gdsdeploy.host.gdscheck.reader import COMPAT, DIRECT, ERRORS, REFUSED, UNKNOWN, plain

TESTS = Path(__file__).parents[2]
GOLDEN = TESTS / "golden" / "gdscheck"
WRITTEN = sorted(
    [*(TESTS / "evidence" / "gdscheck").glob("*.txt"), *(TESTS / "evidence" / "h200").glob("libcufile-*.log")]
)
LIVE = sorted((TESTS / "evidence").glob("gdscheck-*/gdscheck-p.*"))


def read_report(path: Path) -> dict[str, Any]:
    return document.document(reader.read_recording(path.read_bytes()), path.name)


def golden(path: Path) -> str:
    return json.dumps(read_report(path), indent=1, ensure_ascii=False) + "\n"


def name(path: Path) -> str:
    return path.name.removeprefix("gdscheck-p.libcufile-")


@pytest.mark.parametrize("path", WRITTEN, ids=name)
def test_the_typed_values_of_a_recording(path: Path) -> None:
    assert json.loads(golden(path)) == json.loads((GOLDEN / f"{path.name}.json").read_text())


def test_each_golden_has_its_recording() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{path.name}.json" for path in WRITTEN}


def messages(path: Path) -> list[str]:
    """The lines of a recording, of a log the messages up to the end of the report."""
    lines = [
        re.sub(r"^ ?\d\d-\d\d-\d{4} .*?\] [A-Z]+ +\S+:\d+ ", "", line).strip() for line in path.read_text().split("\n")
    ]
    end = "Platform verification succeeded"
    return lines[: lines.index(end) + 1] if end in lines else lines


def printed(key: str, value: Any) -> str:
    """A typed value as the library writes it."""
    if isinstance(value, bool):
        return str(int(value)) if key == "properties.rdma_dynamic_routing" else str(value).lower()
    if isinstance(value, list):
        return " ".join(str(part) for part in value)
    return "none" if value is None else str(value)


@pytest.mark.parametrize("path", [*WRITTEN, *LIVE], ids=name)
def test_nothing_of_a_recording_is_lost_or_made_up(path: Path) -> None:
    """By a reading of its own: plain splitting at headings and colons."""
    lines, typed = messages(path), read_report(path)
    parts: dict[str, list[str]] = {"header": []}
    for line in lines:
        if line.endswith(("CONFIGURATION:", "ENVIRONMENT:", "INFO:")):
            parts[line] = []
        elif line and set(line) != {"="}:
            parts[list(parts)[-1]].append(line)
    driver = [
        line.split(":", 1) for line in parts.get("DRIVER CONFIGURATION:", []) if re.match(r"[A-Z][\w ]+ : ", line)
    ]
    assert {key.strip(): value.strip() for key, value in driver} == {
        k: row["value"] for k, row in typed["storage"].items()
    }
    sub = [line[2:].split(":", 1) for line in parts.get("DRIVER CONFIGURATION:", []) if line.startswith("--")]
    assert {key.strip(): value.strip() for key, value in sub} == typed["rdma"]["rows"]
    settings = [line for line in parts.get("CUFILE CONFIGURATION:", []) if re.match(r"[a-z]+\.[a-z0-9_.]+ ?:", line)]
    words = {key.strip(): value.strip() for key, value in (line.split(":", 1) for line in settings)}
    tables = {key for key in words if key.endswith("mount_table")}
    assert {k: v for k, v in words.items() if k not in tables} == {
        k: printed(k, v) for k, v in typed["config"].items() if k not in tables
    }
    for key in tables:
        assert typed["config"][key]
    version = re.search(r"GDS release version: (\S+)", "\n".join(parts["header"]))
    assert (typed["release"] if typed["release_from"] == "header" else None) == (version[1] if version else None)
    rows = {line.split()[2] for line in parts.get("GPU INFO:", []) if line.startswith("GPU index")}
    assert {str(gpu["index"]) for gpu in typed["gpus"]} == rows
    # Since 1.16 a run without a GPU ends with the configuration.
    without_gpu = any("use this library only for sysmem" in line for line in lines) and typed["verdict"] == "compat"
    assert typed["complete"] is (without_gpu or "Platform verification succeeded" in lines)
    status = re.search(r"^rc=(\d+)$", path.read_text(), re.MULTILINE)
    assert typed["exit_status"] == (int(status[1]) if status else None)
    assert typed["strays"] == []


@pytest.mark.parametrize("path", [p for p in LIVE if p.name.endswith("h200.txt")], ids=name)
def test_a_real_gpu_without_nvidia_fs_is_in_compat_mode(path: Path) -> None:
    typed = read_report(path)
    version = re.match(r"(\d+)\.(\d+)", name(path))
    assert version is not None
    assert (typed["verdict"], typed["exit_status"], typed["nvidia_fs_version"]) == ("compat", 0, None)
    (gpu,) = typed["gpus"]
    recent = (int(version[1]), int(version[2])) >= (1, 13)
    assert (gpu["name"], gpu["supports_gds"], gpu["bar_mib"]) == ("NVIDIA H200", recent, 262144 if recent else None)
    if ".forced." in path.name:
        assert typed["reasons"] == ["the configuration forces compat mode (properties.force_compat_mode)"]
    else:
        assert typed["reasons"][0].startswith("the library sees no nvidia-fs")
        assert len(typed["reasons"]) == 1
    assert {path for row in typed["storage"].values() for path in row["paths"]} == {"compat"}


# -- Logs and reports as people send them: default-level logs, several processes, other releases, marks of Markdown.


OPEN_1_9 = TESTS / "evidence" / "gdscheck" / "gdscheck-p.libcufile-1.9.1.ngpu1.nvfs-2.28.open-driver.txt"
TRACE = TESTS / "evidence" / "h200" / "libcufile-1.15.1-trace.log"


def log(*messages: tuple[int, str]) -> bytes:
    """A log of level ERROR: (process, message) of each line."""
    return "".join(
        f" 20-11-2026 14:07:5{place % 10}:1 [pid={pid} tid={pid}] ERROR  cufio:339 {text}\n"
        for place, (pid, text) in enumerate(messages)
    ).encode()


def typed(data: bytes) -> dict[str, Any]:
    return document.document(reader.read_recording(data), "-")


@pytest.mark.parametrize(
    "message",
    [
        "cuFileHandleRegister error: GPUDirect Storage not supported on current file",
        "unable to load, liburcu-bp.so.6",
        "nvidia-fs MAP ioctl failed : ret -1 err 22",
        "NVMe Driver not registered with nvidia-fs!!!",
    ],
)
def test_errors_of_calls_are_no_refusal(message: str) -> None:
    report = typed(log((1, message)))
    assert report["verdict"] == ERRORS
    assert report["reasons"][0].startswith("the library did not give up")
    assert message in " ".join(report["reasons"])


def test_a_library_that_gave_up_is_refused_even_at_the_default_level() -> None:
    assert typed(log((1, "nvidia-fs.ko driver not loaded")))["verdict"] == REFUSED


def test_the_errors_of_all_processes_count_in_the_order_of_the_file() -> None:
    messages = [
        (1, "No matching pair for network device to closest GPU found in the platform"),
        (2, "No matching pair for network device to closest GPU found in the platform"),
        (1, "Inc-bar-usage failed: size 524288000 remaining bytes 281018368"),
    ]
    for order in (messages, [(3 - pid, text) for pid, text in messages], [(9, text) for _, text in messages]):
        report = typed(log(*order))
        assert report["runs"] == 1
        assert [error["line"] for error in report["errors"]] == [text for _, text in messages]


def test_a_refusal_among_processes_with_errors_stays_a_run_of_its_own() -> None:
    recording = reader.read_recording(
        log((1, "cuFile read failed"), (2, "nvidia-fs.ko driver not loaded"), (3, "cuFile read failed"))
    )
    assert [report.verdict for report in recording.runs] == [REFUSED, ERRORS]
    assert len(recording.report.errors) == 2


def test_the_last_errors_of_a_long_log_are_kept() -> None:
    report = typed(log(*((1, f"cuFile write failed, offset {place}") for place in range(1000)), (1, "the telling one")))
    assert report["errors"][0]["line"] == "cuFile write failed, offset 0"
    assert report["errors"][-1]["line"] == "the telling one"


def without(label: str, release: str) -> bytes:
    lines = OPEN_1_9.read_text().replace("1.9.1.3", release).splitlines(keepends=True)
    return "".join(line for line in lines if not line.strip().startswith(label + " ")).encode()


def test_a_row_that_a_release_does_not_print_is_no_hole() -> None:
    assert b"1.9.1.3" in OPEN_1_9.read_bytes()
    assert typed(without("BeeGFS", "1.7.1.12"))["verdict"] == DIRECT
    assert typed(OPEN_1_9.read_bytes().replace(b"1.9.1.3", b"1.7.1.12"))["verdict"] == DIRECT
    assert typed(without("BeeGFS", "1.9.1.3"))["verdict"] == UNKNOWN
    assert typed(without("NVMesh", "1.7.1.12"))["verdict"] == UNKNOWN


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("cuFileHandleRegister error: GPUDirect Storage not supported on current file", 5008),
        ("cuFileHandleRegister error: internal error", 5030),
        ("cuFileHandleRegister error: file descriptor is not registered", 5027),
        ("cuFileHandleRegister error: nvidia-fs driver is not loaded", 5001),
        ("cuFileBufRegister error: invalid arguments", 5022),
        ("cuFileHandleRegister error, failed to allocate file object", None),
        ("udev property not found: ID_FS_USAGE vda", None),
    ],
)
def test_a_result_has_the_code_of_its_words(line: str, code: int | None) -> None:
    assert meaning(line).code == code
    assert meaning(line).means


def test_text_shows_the_errors_after_a_report() -> None:
    recording = reader.read_recording(TRACE.read_bytes())
    text = document.text(recording, "-")
    assert recording.report.verdict == COMPAT
    assert "udev property not found: ID_FS_USAGE vda" in text
    assert text.count("udev property not found") == 1
    assert "(2 such lines)" in text


def test_marks_of_markdown_colours_and_encodings_change_nothing() -> None:
    text = OPEN_1_9.read_text()
    verdict = typed(text.encode())
    bold = "\n".join(f"**{line.strip()}**" if line.strip() else line for line in text.split("\n"))
    words = "\n".join(line.replace(": Supported", ": **Supported**") for line in text.split("\n"))
    quoted = "".join(f"> {line}\n" for line in text.split("\n"))
    colours = text.replace("Supported", "\x1b[32mSupported\x1b[0m").replace("\n", "\r\n")
    for other in (bold, words, quoted, colours):
        assert typed(other.encode()) == verdict
    assert typed(text.encode("utf-16")) == verdict


def test_pointers_of_c_are_no_bold_words() -> None:
    line = "static int f(char **argv, char **envp, void *p)\n"
    assert plain(line.encode()) == line


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for recording in WRITTEN:
        (GOLDEN / f"{recording.name}.json").write_text(golden(recording))
