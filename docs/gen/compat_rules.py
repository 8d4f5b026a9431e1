"""Every shipped rule as JSON: ``python -m docs.gen.compat_rules > gdsdeploy/host/data/compat.json``.

They are those of compat.yml, and those that the releases in cuda.yml make.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib import resources
from typing import Any

from gdsdeploy import lock
from gdsdeploy.files import yamlfile
from gdsdeploy.fleetfile.rules import RuleFile
from gdsdeploy.host.model.compat import Rule


def load(text: str) -> tuple[Rule, ...]:
    """Read compat.yml; raises ValueError (pydantic's) for a rule that is malformed, and for an id given twice."""
    return _checked(yamlfile.shipped(text)["rules"])


def _checked(blocks: list[dict[str, Any]]) -> tuple[Rule, ...]:
    file = RuleFile.model_validate({"rules": blocks})
    if file.repeated():
        raise ValueError(file.repeated()[0][1])
    return tuple(block.rule() for block in file.rules)


def of_releases(releases: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """The rules that the rows of cuda.yml make; its head describes them."""
    for row in releases:
        if "driver" in row:
            yield _driver_of_cuda(**row)
        if "nvidia_fs" in row:
            yield _nvidia_fs_of_libcufile(**row)
    yield _newer("cuda", releases[-1]["cuda"], "driver")
    yield _newer("libcufile", releases[-1]["libcufile"], "nvidia_fs")


def _driver_of_cuda(cuda: str, driver: str, driver_source: str = "", **_: str) -> dict[str, Any]:
    name = driver if "." in driver else f"branch {driver}"
    return {
        "id": f"cuda-{cuda}-driver",
        "says": f"CUDA {cuda} came with driver {name}; with an older one it works by minor-version compatibility,"
        " without what only the newer driver has.",
        "known": "documentation",
        "source": driver_source or "CUDA release notes, toolkit driver versions",
        "when": {"cuda": cuda},
        "warns": {"driver": f"<{driver}"},
    }


def _nvidia_fs_of_libcufile(
    libcufile: str, nvidia_fs: str, cuda: str = "", nvidia_fs_source: str = "", **_: str
) -> dict[str, Any]:
    of_cuda = f" (CUDA {cuda})" if cuda else ""
    return {
        "id": f"gds-{libcufile}-nvidia-fs",
        "says": f"GDS {libcufile}{of_cuda} came with nvidia-fs {nvidia_fs} or newer; an older one beside libcufile"
        f" {libcufile} was never tested.",
        "known": "documentation" if nvidia_fs_source else "source",
        "source": nvidia_fs_source or f"GDS_VERSION in the sources of nvidia-fs {nvidia_fs}",
        "when": {"libcufile": libcufile},
        "warns": {"nvidia_fs": f"<{nvidia_fs}"},
    }


def _newer(subject: str, newest: str, other: str) -> dict[str, Any]:
    """Nothing is known about releases of ``subject`` after ``newest``, a major and a minor version."""
    major, minor = newest.split(".")
    name = {"cuda": "CUDA"}.get(subject, subject)
    return {
        "id": f"{subject}-newer",
        "says": f"No source about {name} after {newest} was read, so whether this {other.replace('_', '-')} fits"
        " isn't known.",
        "known": "documentation",
        "source": f"gdsdeploy's table of releases ends with {name} {newest}",
        "when": {subject: f">={major}.{int(minor) + 1}"},
        "doubts": {other: ">=0"},
    }


def table() -> str:
    """One rule on each line, without empty fields."""
    files = {
        name: resources.files(lock).joinpath(name).read_text(encoding="utf-8") for name in ("compat.yml", "cuda.yml")
    }
    blocks = yamlfile.shipped(files["compat.yml"])["rules"]
    rules = _checked([*blocks, *of_releases(yamlfile.shipped(files["cuda.yml"]))])
    rows = ({key: value for key, value in asdict(rule).items() if value} for rule in rules)
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


if __name__ == "__main__":
    print(table(), end="")
