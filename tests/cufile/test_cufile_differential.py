"""Our judgement of files and variables, and what we render, held against what real libraries do."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gdsdeploy import run
from gdsdeploy.cufile import model
from gdsdeploy.cufile.check import check
from gdsdeploy.cufile.model import EXAMINED_RELEASES, P2PDMA, Release, release_of
from gdsdeploy.cufile.render import render_profile
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.gdscheck.reader import parse_log
from gdsdeploy.host.libcufile import p2pdma
from gdsdeploy.host.subjects import cufile_json
from gdsdeploy.host.subjects.cufile_json import LAST_WITH_ALLOW_COMPAT, P2PDMA_VARIABLE
from gdsdeploy.host.subjects.mechanisms import VARIABLE
from gdsdeploy.host.subjects.p2pdma import LIBRARY
from gdsdeploy.model.fleet import Profile
from tests.cufile.differential import Deviation, deviations, differences, disagreements, generated, judged
from tests.cufile.documents import nest
from tests.cufile.gdschecks import started
from tests.cufile.libraries import RELEASES, SOURCES, library

SEED = 20261121
#: Generated ones for each library, besides the fixed ones and each key at its edges (130 to 230): few enough for the
#: suite.  A thousand each were asked while this was written: `python -m tests.cufile.differential SEED COUNT`.
COUNT = 120


def test_every_judged_release_has_a_library() -> None:
    assert {release_of(version) for version in SOURCES} == set(EXAMINED_RELEASES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", SOURCES)
def test_outcome_key_and_effective_values_are_the_librarys(version: str) -> None:
    unexcused, outcomes = disagreements(version, generated(SEED, version, COUNT))
    assert not unexcused, "\n".join(map(str, unexcused))
    # A generator that makes nothing but one kind of document would show nothing.
    assert outcomes["taken"] > COUNT / 4
    assert outcomes["refused"] > COUNT / 4
    assert outcomes["aborts"] >= 10


@pytest.mark.parametrize("version", SOURCES)
def test_defaults_are_the_librarys(version: str) -> None:
    release, used = release_of(version), library(version).ask("{}").effective
    ours = {name: key.default_for(release) for name, key in model.keys(release).items()}
    shown = {name: value for name in ours if (value := cufile_json.logged(name, used)) is not None}
    assert len(shown) > 20
    assert [
        name for name, value in shown.items() if ours[name] is not None and not cufile_json.same(ours[name], value)
    ] == []


@pytest.mark.parametrize("deviation", deviations(), ids=lambda deviation: deviation.id)
def test_known_deviations_still_deviate_and_only_where_it_is_said(deviation: Deviation) -> None:
    text = deviation.document.encode()
    parted = []
    for version in SOURCES:
        others = [other for other in deviations() if other is not deviation and other.concerns(version)]
        empty, answer = library(version).ask_all([b"{}", text])
        unexcused = differences(text, judged(text, version), answer, empty)
        if any(not any(other.excuses(difference) for other in others) for difference in unexcused):
            parted.append(version)
    assert parted == [version for version in SOURCES if deviation.concerns(version)]


# -- For which storage each released libcufile takes PCI P2PDMA, by its own rows, is what our data and findings say.
# The stand-in libcuda has a GPU with P2PDMA, and the stand-in /proc/kallsyms a kernel with it, so that the keys
# decide.


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
    return dict(render_profile("gds", intent, version).document)


def enabled(log: str, release: Release) -> set[str]:
    """The storage for which the library reports P2PDMA."""
    rows = parse_log(log).storage
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


# -- libcufile's switches in the environment: each release takes true and false in any case, ignores all else, and
# applies them after cufile.json. ``EnvironmentFacts.switch`` and explain's rules read them in the same way.


#: Opens the driver and prints the library's log.
CHILD = """
import ctypes, os
ctypes.CDLL("libcufile.so.0").cuFileDriverOpen()
print(open("cufile.log").read(), flush=True)
os._exit(0)
"""
VALUES = {"true": True, "TRUE": True, "False": False, "1": None}


def logged(version: str, variable: str, value: str, **properties: Any) -> str:
    words = [f"{variable}={value}", "CUFILE_LOGFILE_PATH=cufile.log", "CUFILE_LOGGING_LEVEL=INFO"]
    argv = [str(run.which("env")), *words, sys.executable, "-I", "-S", "-c", CHILD]
    printed = started(argv, version, config=json.dumps({"properties": properties}))
    assert "CUFILE CONFIGURATION" in printed.text, printed.text
    return printed.text


def switched(log: str, key: str) -> bool:
    return any(line.rstrip().endswith(f"properties.{key} : true") for line in log.splitlines())


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("value", VALUES)
def test_switches(version: str, value: str) -> None:
    for default in (True, False):
        expected = default if VALUES[value] is None else VALUES[value]
        forced = logged(version, "CUFILE_FORCE_COMPAT_MODE", value, force_compat_mode=default)
        assert switched(forced, "force_compat_mode") is expected
        peer_type = "dmabuf" if default else "nvidia_peermem"
        memory = logged(version, VARIABLE, value, rdma_peer_type=peer_type, rdma_dev_addr_list=[])
        assert any("DmaBuf support" in line and "Enabled" in line for line in memory.splitlines()) is expected
        p2pdma = logged(version, P2PDMA_VARIABLE, value, use_pci_p2pdma=default)
        has_p2pdma = "properties.use_pci_p2pdma" in p2pdma
        assert has_p2pdma is (tuple(map(int, version.split(".")[:2])) >= LIBRARY)
        assert switched(p2pdma, "use_pci_p2pdma") is (expected and has_p2pdma)
        reads_variable = tuple(map(int, version.split(".")[:2])) <= LAST_WITH_ALLOW_COMPAT
        allowed = logged(version, "CUFILE_ALLOW_COMPAT_MODE", value, allow_compat_mode=default)
        assert switched(allowed, "use_compat_mode") is (expected if reads_variable else default)
