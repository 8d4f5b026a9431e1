"""For which storage each released libcufile takes PCI P2PDMA, by its own rows, is what our data and findings say.

The stand-in libcuda has a GPU with P2PDMA, and the stand-in /proc/kallsyms a kernel with it, so that the keys decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gdsdeploy.cufile import model, render
from gdsdeploy.cufile.check import check
from gdsdeploy.cufile.model import P2PDMA, Release, release_of
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host import gdscheck
from gdsdeploy.host.libcufile import p2pdma
from gdsdeploy.model.fleet import Profile
from tests.cufile.differential import deviations
from tests.cufile.documents import nest
from tests.cufile.libraries import SOURCES, library

#: Storage → its row in the library's log.  RAID has none: it counts as its disks.
ROWS = {
    "nvme": "NVMe",
    "nvmeof": "NVMeOF",
    "lustre": "DDN EXAScaler",
    "beegfs": "BeeGFS",
    "gpfs": "IBM Spectrum Scale",
    "nfs": "NFS",
    "scatefs": "ScaTeFS",
    "virtiofs": "VIRTIOFS",
    "panfs": "PanFS",
}
#: The row of releases without the storage's own keys.
OLD_ROW = "NVMe P2PDMA"
FOLDERS = ("/var/log/cufile",)


def rendered(version: str, **profile: Any) -> dict[str, Any]:
    intent = Profile.model_validate({"os": "debian-13", "mode": "p2pdma", **profile})
    return render.document("gds", intent, version)


def enabled(log: str, release: Release) -> set[str]:
    """The storage for which the library reports P2PDMA."""
    rows = gdscheck.parse_log(log).storage
    if release < p2pdma.OWN_KEYS_SINCE:
        return {"nvme"} if OLD_ROW in rows and rows[OLD_ROW].value == "Supported" else set()
    return {name for name, row in ROWS.items() if row in rows and "p2pdma" in rows[row].value.split(", ")}


def configurations_for(version: str) -> Iterator[dict[str, Any]]:
    """Nothing, either half, and both halves, for each kind of storage that the release knows and has a row for."""
    excused = [one.mentions for one in deviations() if one.mentions and one.concerns(version)]
    yield {}
    yield nest({P2PDMA: True})
    for row in p2pdma.keys_for(release_of(version)):
        if row.storage in ROWS and row.storage not in excused:
            yield nest({row.name: True})
            yield nest({P2PDMA: True, row.name: True})
            yield nest({P2PDMA: False, row.name: True})
            yield nest({P2PDMA: True, row.name: False})


def expected(document: dict[str, Any], release: Release) -> set[str]:
    """The same by our data."""
    if model.get(document, P2PDMA) is not True or P2PDMA not in model.keys(release):
        return set()
    own = p2pdma.keys_for(release)
    return {row.storage for row in own if model.get(document, row.name) is True} if own else {"nvme"}


@pytest.mark.parametrize("version", SOURCES)
def test_rows_of_the_library_are_those_of_the_keys(version: str) -> None:
    release, configurations = release_of(version), list(configurations_for(version))
    answers = library(version).ask_all(map(json.dumps, configurations))
    for document, answer in zip(configurations, answers, strict=True):
        storage = enabled(answer.log, release)
        assert answer.accepted is True, document
        assert storage == expected(document, release), document
        findings = {finding.id for finding in check(json.dumps(document).encode(), release).findings}
        wants_it = "use_pci_p2pdma" in json.dumps(document) and "true" in json.dumps(document)
        half_set = wants_it and release >= p2pdma.OWN_KEYS_SINCE and not storage
        assert ("p2pdma-half-set" in findings) is half_set, document


@pytest.mark.parametrize("version", [one for one in SOURCES if release_of(one) >= (1, 13)])
def test_the_rendered_file_switches_p2pdma_on_for_disks(version: str) -> None:
    release = release_of(version)
    intent = rendered(version)
    fabric = rendered(version, cufile=nest({"block.nvmeof.use_pci_p2pdma": True})) if release >= (1, 16) else intent
    off = {**intent, "properties": {**intent["properties"], P2PDMA.rpartition(".")[2]: False}}
    answers = library(version).ask_all(map(json.dumps, (intent, fabric, off)), folders=FOLDERS)
    rows = [enabled(answer.log, release) for answer in answers]
    assert rows == [{"nvme"}, {"nvme", "nvmeof"} if release >= (1, 16) else {"nvme"}, set()]


@pytest.mark.parametrize("version", [one for one in SOURCES if release_of(one) < (1, 13)])
def test_older_releases_have_no_p2pdma_to_render(version: str) -> None:
    with pytest.raises(FleetInvalid, match=r"p2pdma needs libcufile 1\.13 or newer"):
        rendered(version)
