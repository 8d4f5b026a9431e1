"""Bills of materials: what CycloneDX's schema asks of them, and that the same materials give the same bytes."""

from __future__ import annotations

import json
import re
import tomllib
import uuid
from pathlib import Path

import pytest

from gdsdeploy.zipapp import sbom

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
NEEDED = PROJECT["dependencies"]
DOCUMENTS = {"wheel": sbom.of_wheel("1.2.3", NEEDED), "host": sbom.of_host_program("1.2.3")}
PURL = re.compile(r"pkg:pypi/[a-z0-9][a-z0-9.-]*(@[0-9][a-z0-9.+]*)?(#[a-z0-9.-]+)?")
#: Allowed in a component of CycloneDX 1.6, of what we write.
KEYS = {"type", "bom-ref", "name", "version", "purl", "licenses", "scope", "properties"}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_keeps_to_the_schema(name: str) -> None:
    document = json.loads(DOCUMENTS[name])
    head = {"bomFormat", "specVersion", "serialNumber", "version", "metadata", "components", "dependencies"}
    assert set(document) == head
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.6", 1)
    assert uuid.UUID(document["serialNumber"].removeprefix("urn:uuid:")).version == 5
    components = [document["metadata"]["component"], *document["components"]]
    for part in components:
        assert set(part) <= KEYS
        assert part["type"] in {"application", "library", "platform"}
        assert part["name"]
        assert "purl" not in part or PURL.fullmatch(part["purl"])
        assert part.get("licenses", []) in ([], [{"license": {"id": PROJECT["license"]}}])
        assert all(set(each) == {"name", "value"} for each in part.get("properties", []))
    references = [part["bom-ref"] for part in components]
    assert len(set(references)) == len(references)
    assert [part["ref"] for part in document["dependencies"]] == references
    assert {name for part in document["dependencies"] for name in part.get("dependsOn", [])} <= set(references)


def test_the_wheel_lists_each_requirement_once() -> None:
    document = json.loads(DOCUMENTS["wheel"])["components"]
    assert [part["properties"][0]["value"] for part in document if "properties" in part] == sorted(NEEDED)
    assert "securesystemslib" in {part["name"] for part in document}, "without its extra"


def test_the_same_materials_give_the_same_bytes_and_others_another_number() -> None:
    assert sbom.of_wheel("1.2.3", reversed(NEEDED)) == DOCUMENTS["wheel"]
    numbers = {json.loads(text)["serialNumber"] for text in (*DOCUMENTS.values(), sbom.of_host_program("1.2.4"))}
    assert len(numbers) == 3
