"""On a machine with a GPU: the path that is predicted is the one that libcufile logged for a real write and read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cufile.render import PATH
from gdsdeploy.host.explain.cause import BROKEN, COMPAT
from gdsdeploy.host.explain.cause import Path as Taken
from gdsdeploy.host.explain.explanation import path_of
from gdsdeploy.host.facts import Unknown, facts_from
from gdsdeploy.host.libcufile.errors import lookup
from gdsdeploy.host.paths import CONTAINER_FILES

RECORDED = Path(__file__).parents[3] / "evidence" / "gpu"
HOSTS = sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir())
DONE = {"cuFileWrite": 1 << 20, "cuFileRead": 1 << 20, "same": True}


def predicted(host: str, *, configuration: str | None = None) -> Taken:
    document = json.loads((RECORDED / host / "evidence.json").read_text())
    if configuration is not None:
        document["files"][PATH] = configuration
    facts = facts_from(document)
    assert not isinstance(facts.storage.mounts, Unknown)
    return path_of(facts, facts.storage.mounts["/"])


def answers(host: str, kind: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RECORDED / host / f"io-{kind}.json").read_text())
    return record


def log(host: str, kind: str) -> str:
    return (RECORDED / host / f"io-{kind}.log").read_text()


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
    assert DONE.items() <= answers(host, "rendered").items()
    assert re.search(r"Compatibility Mode: (1|true) Compat Read Mode: \1 Compat Write Mode: \1", log(host, "rendered"))


@pytest.mark.parametrize("host", HOSTS)
def test_with_the_fallback_forbidden_nothing_opens_as_predicted(host: str) -> None:
    strict = json.loads(re.sub(r"(?m)^\s*//.*", "", (RECORDED / host / "cufile.json").read_text()))
    strict["properties"]["allow_compat_mode"] = False
    path = predicted(host, configuration=json.dumps(strict))
    assert path.path == BROKEN
    assert answers(host, "strict") == {"cuFileDriverOpen": [5001, 0]}
    assert "nvidia-fs.ko driver not loaded" in log(host, "strict")


def test_the_machine_is_no_container_although_its_image_was_one() -> None:
    for host in HOSTS:
        document = json.loads((RECORDED / host / "evidence.json").read_text())
        # Marks that were not looked for when it was recorded.
        for path in CONTAINER_FILES:
            document["files"].setdefault(path, {"error": "ENOENT"})
        assert facts_from(document).environment.container is None
