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
        assert typed["reasons"][0].startswith("nvidia-fs is not loaded, or not visible in this container")
        assert len(typed["reasons"]) == 1
    assert {path for row in typed["storage"].values() for path in row["paths"]} == {"compat"}


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for recording in WRITTEN:
        (GOLDEN / f"{recording.name}.json").write_text(golden(recording))
