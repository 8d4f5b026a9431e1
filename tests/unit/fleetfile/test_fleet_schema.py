"""The JSON Schema accepts what the reader of fleet files accepts, and refuses what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from markdown_it import MarkdownIt

from docs.gen import fleet_schema
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.fleetfile.load import load_fleet

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads(fleet_schema.text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
MINIMAL = "version: 1\nprofiles:\n  gds: {os: debian-12, %s}\nhosts: {gpu1: gds}\n"


class _Loader(yaml.SafeLoader):
    """As YAML is to an editor: a day is text."""


_LAST = {
    key: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:timestamp"]
    for key, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.yaml_implicit_resolvers = _LAST


def problems(text: str) -> list[str]:
    document: Any = yaml.load(text, Loader=_Loader)
    return [error.message for error in VALIDATOR.iter_errors(document)]


def accepts(text: str, folder: Path) -> bool:
    """Whether gdsdeploy reads this fleet file."""
    path = folder / "fleet.yml"
    path.write_text(text)
    try:
        load_fleet(path)
    except FleetInvalid:
        return False
    return True


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yml")), ids=lambda path: path.stem)
def test_an_example_fits(path: Path) -> None:
    assert problems(path.read_text()) == []


def _shown() -> list[tuple[str, str]]:
    """(page, text) of every YAML block of a page that is a part of a fleet file."""
    parts = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for token in MarkdownIt().parse(page.read_text()):
            keys = re.findall(r"(?m)^(\w+):", token.content)
            if token.type == "fence" and token.info == "yaml" and keys and set(keys) <= set(SCHEMA["properties"]):
                parts.append((page.name, token.content))
    return parts


def test_what_pages_show_fits() -> None:
    """What a part leaves out is filled in: the version, and the system of profiles."""
    shown = _shown()
    assert len(shown) > 20
    for page, text in shown:
        document = yaml.load(text, Loader=_Loader) or {}
        document = {"version": 1, "profiles": {"gds": {}}, **document}
        for profile in document["profiles"].values():
            profile.setdefault("os", "debian-13")
        assert [error.message for error in VALIDATOR.iter_errors(document)] == [], f"{page}:\n{text}"


#: Keys of a profile, and of the whole file.
ACCEPTED = [
        "driver: '550'", "driver: {version: '>=550, <560', flavour: open, options: {NVreg_X: 1}}", "kernel: '6.12'",
        "rdma: auto", "boot: auto", "boot: {arguments: {iommu: pt, nokaslr: null, hugepages: 1024}}", "gate: false",
        "watch: true", "watch: {every: 60}", "gpus: 8", "nics: {count: 8, link: 400}", "nvme: {count: 4, model: PM}",
        "storage: [{mount: /data, path: direct, load: {read: '5 GB/s', seconds: 10}}]", "signing: {}", "fit: {}",
        "topology: {nvme: PIX}", "cufile: {properties: {use_poll_mode: true}}", "companions: [persistenced]",
        "modules: packaged", "nvidia_fs: '>=2.26.6'", "cufile_stats: 3",
]  # fmt: skip
ACCEPTED_AT_THE_TOP = [
    "rollout: {canary: {soak: 30m}, batches: {soak: 90}, drain: {timeout: 12h}, console: {timeout: 1h}}",
    "rollout: {reboot_timeout: 20m, max_unavailable: 10%, windows: ['22:00-05:00'], failures: {later: 2}}",
    "repositories: {debian: {max_age: 30d}}",
    "hosts: {gpu2: {profile: gds, labels: {rack: r1}, port: 22}}",
    "waivers: [{check: rdma.link, until: 2026-12-31, reason: cable}]",
    "waivers: [{check: rdma.link, until: '2026-12-31', reason: cable, hosts: [gpu1]}]",
    "builders: {build1: gds}",
    "ssh: {user: admin, port: 22}",
]
REFUSED = [
        "drivr: '550'", "driver: 550", "driver: 'abc'", "kernel: 6.12", "rdma: maybe", "boot: sometimes", "gate: 1",
        "watch: {evry: 60}", "gpus: eight", "gpus: -1", "nics: {driver: mlx5_core}", "mode: fast", "arch: ppc64",
        "storage: [{mount: data}]", "storage: [{mount: /d, load: {read: fast}}]", "fit: {family: ipv5}",
        "topology: {nvme: NEAR}", "companions: [dcgm]", "modules: borrow", "nvidia_fs: 2.26", "cufile_stats: 1",
]  # fmt: skip
REFUSED_AT_THE_TOP = [
        "rollout: {canary: {soak: soon}}", "rollout: {drain: {by: hand}}", "host: {}", "ssh: {port: 99999}",
        "hosts: {gpu2: {labels: {rack: r1}}}", "hosts: {'gpu 2': gds}", "waivers: [{check: rdma.link}]",
]  # fmt: skip


def top(rest: str) -> str:
    """A fleet file with ``rest``."""
    hosts = "" if rest.startswith("hosts") else "hosts: {gpu1: gds}\n"
    return f"version: 1\nprofiles: {{gds: {{os: debian-12}}}}\n{hosts}{rest}\n"


@pytest.mark.parametrize("text", [*(MINIMAL % keys for keys in ACCEPTED), *map(top, ACCEPTED_AT_THE_TOP)])
def test_both_accept(text: str, tmp_path: Path) -> None:
    assert accepts(text, tmp_path)
    assert problems(text) == []


@pytest.mark.parametrize("text", [*(MINIMAL % keys for keys in REFUSED), *map(top, REFUSED_AT_THE_TOP)])
def test_both_refuse(text: str, tmp_path: Path) -> None:
    assert not accepts(text, tmp_path)
    assert problems(text) != []


def test_editors_show_what_keys_mean() -> None:
    profile = SCHEMA["$defs"]["Profile"]["properties"]
    described = [key for key, entry in profile.items() if entry.get("description")]
    assert described == list(profile)
    assert profile["mode"]["description"] == "`nvidia-fs`, `p2pdma`, `compat`"
    assert SCHEMA["$defs"]["Drain"]["properties"]["timeout"]["description"] == "Seconds that running work has to end in"
