"""What apply, rollouts, validate, explain and the documentation know, by tests/cases/parts.yml: all the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from gdsdeploy.host import checks
from gdsdeploy.host.boot.grub import EntriesGrub, MenuGrub, MenuGrub2
from gdsdeploy.host.boot.loader import BootError, Loader, loader
from gdsdeploy.host.boot.sdboot import SystemdBoot
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.gdscheck.reader import LABELS, P2PDMA_ROW, RDMA_ROW
from gdsdeploy.host.model.finding import NOT_APPLICABLE
from gdsdeploy.host.subjects import filesystem, nvidia_fs, path, rdma
from gdsdeploy.host.subjects.boot import Recorded
from gdsdeploy.model.profile_parts import SCHEDULERS
from gdsdeploy.model.rollout_settings import Drain
from gdsdeploy.rollout import drain
from tests.unit.host import hosts
from tests.unit.host.checks.changes import EXPECTATION

ROOT = Path(__file__).parents[3]
PARTS: dict[str, Any] = yaml.safe_load((ROOT / "tests/cases/parts.yml").read_text())
LOADERS, STORAGE = PARTS["boot loaders"], PARTS["storage"]


def _kinds(base: type) -> set[type]:
    """The classes below it that hosts or fleets have, rather than what several of them share."""
    below = {kind for one in base.__subclasses__() for kind in _kinds(one)}
    return below | ({base} if not getattr(base, "__abstractmethods__", ()) and base.__name__[0] != "_" else set())


def test_every_boot_loader_is_in_the_table() -> None:
    assert _kinds(Loader) == {MenuGrub, EntriesGrub, SystemdBoot, MenuGrub2}
    assert {kind.__name__ for kind in _kinds(Loader)} == set(LOADERS)


@pytest.mark.parametrize("name", LOADERS)
def test_validate_reads_a_boot_loader_by_the_class_that_apply_changes_it_by(name: str) -> None:
    document = hosts.named(LOADERS[name]["host"])
    facts = facts_from(document)
    chosen = loader(files=Recorded(Document(document)))
    assert type(chosen).__name__ == name
    assert facts.boot.default_kernel == facts.kernel.release
    if "unchanged" in LOADERS[name]:
        with pytest.raises(BootError, match="gdsdeploy doesn't run"):
            chosen.default("6.1.0-50-amd64", check=True)


def test_the_documentation_has_the_boot_loaders_that_are_changed() -> None:
    page = (ROOT / "docs/fleet.md").read_text().partition("| boot loader | where the arguments are set |")[2]
    listed = re.findall(r"(?m)^\| ([^|-][^|]*?) \|", page.partition("\n\n")[0])
    assert listed == [row["docs"] for row in LOADERS.values() if "unchanged" not in row]


def test_a_scheduler_that_rollouts_ask_is_one_that_the_gate_comes_before() -> None:
    table = PARTS["schedulers"]
    assert set(get_args(Drain.model_fields["by"].annotation)) == set(table)
    assert {kind.__name__ for kind in _kinds(drain.Drainer)} == {row["drain"] for row in table.values()}
    for name, row in table.items():
        commands = {"out": ["true"], "back": ["true"]} if name == "command" else {}
        assert type(drain.drainer(Drain(by=name, **commands), ROOT)).__name__ == row["drain"]
    assert {unit for row in table.values() for unit in row["units"]} == set(SCHEDULERS)


@pytest.mark.parametrize("name", PARTS["fabrics"])
def test_a_fabric_that_needs_its_manager_is_never_not_applicable(name: str) -> None:
    findings = checks.run(facts_from(hosts.named(PARTS["fabrics"][name]["host"])), EXPECTATION)
    (finding,) = (one for one in findings if one.check == "driver.services")
    assert finding.verdict != NOT_APPLICABLE


def test_storage_is_known_to_explain_to_the_reader_of_gdscheck_and_to_cufile_json() -> None:
    rows = {label for row in STORAGE.values() for label in row["rows"]}
    assert set(filesystem.NATIVE) - set(filesystem.LOCAL) == set(STORAGE)
    assert {name: row["hooks"] for name, row in STORAGE.items() if "hooks" in row} == filesystem.NETWORK
    assert {*filesystem.NETWORK.values(), *path.STACKS.values()} == set(nvidia_fs.HOOKS)
    assert {*path.STACKS, *path.FILESYSTEMS} >= rows
    unjudged = {row["unjudged"] for row in STORAGE.values() if "unjudged" in row}
    assert {*path.STACKS, *path.FILESYSTEMS} == LABELS - {RDMA_ROW, P2PDMA_ROW} - unjudged
    sections = {name: client.section for name, client in rdma.CLIENTS.items()}
    assert sections == {name: row["section"] for name, row in STORAGE.items() if "section" in row}
    keys = yaml.safe_load((ROOT / "gdsdeploy/cufile/keys.yml").read_text())
    named = {row["key"].split(".")[1] for row in keys if row["key"].startswith("fs.")} - {"<name>", "generic"}
    assert named == set(sections.values())
