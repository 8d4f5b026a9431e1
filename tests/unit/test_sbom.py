"""Bills of materials: what CycloneDX's schema asks of them, and that the same materials give the same bytes."""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from pathlib import Path

import pytest

from gdsdeploy.zipapp import sbom

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
NEEDED = PROJECT["dependencies"]
DOCUMENTS = {"wheel": sbom.of_wheel("1.2.3", NEEDED), "host": sbom.of_host_program("1.2.3")}
PURL = re.compile(r"pkg:pypi/[a-z0-9][a-z0-9.-]*(@[0-9][a-z0-9.+]*)?(#[a-z0-9.-]+)?")
#: Allowed in a component of CycloneDX 1.6, of what we write.
KEYS = {"type", "bom-ref", "name", "version", "purl", "licenses", "scope", "properties"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_keeps_to_the_schema(name: str) -> None:
    found = json.loads(DOCUMENTS[name])
    head = {"bomFormat", "specVersion", "serialNumber", "version", "metadata", "components", "dependencies"}
    assert set(found) == head
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.6", 1)
    assert uuid.UUID(found["serialNumber"].removeprefix("urn:uuid:")).version == 5
    components = [found["metadata"]["component"], *found["components"]]
    for item in components:
        assert set(item) <= KEYS
        assert item["type"] in {"application", "library", "platform"}
        assert item["name"]
        assert "purl" not in item or PURL.fullmatch(item["purl"])
        assert item.get("licenses", []) in ([], [{"license": {"id": PROJECT["license"]}}])
        assert all(set(each) == {"name", "value"} for each in item.get("properties", []))
    references = [item["bom-ref"] for item in components]
    assert len(set(references)) == len(references)
    assert [item["ref"] for item in found["dependencies"]] == references
    assert {name for item in found["dependencies"] for name in item.get("dependsOn", [])} <= set(references)


def test_the_wheel_lists_each_requirement_once() -> None:
    found = json.loads(DOCUMENTS["wheel"])["components"]
    assert [item["properties"][0]["value"] for item in found if "properties" in item] == sorted(NEEDED)
    assert "securesystemslib" in {item["name"] for item in found}, "without its extra"


def test_the_same_materials_give_the_same_bytes_and_others_another_number() -> None:
    assert sbom.of_wheel("1.2.3", reversed(NEEDED)) == DOCUMENTS["wheel"]
    numbers = {json.loads(text)["serialNumber"] for text in (*DOCUMENTS.values(), sbom.of_host_program("1.2.4"))}
    assert len(numbers) == 3
