"""A bill of materials in CycloneDX 1.6: components and requirements.

The build of the wheel and of the collection load this module without the rest of gdsdeploy.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable
from typing import Any

HOST = "gdsdeploy-host"
LICENSE = "Apache-2.0"
#: Sections of a document, as CycloneDX names them.
Json = dict[str, Any]


def of_wheel(version: str, requirements: Iterable[str]) -> bytes:
    """The wheel: the program, the host program in it, and the packages it needs (PEP 508), which are not in it."""
    needed = [_requirement(text) for text in sorted(requirements)]
    return _document(_ours("gdsdeploy", version), [_ours(HOST, version), *needed])


def of_host_program(version: str) -> bytes:
    """The host program: it has no code of others, and needs nothing but Python."""
    return _document(_ours(HOST, version), [{"type": "platform", "bom-ref": "python", "name": "python"}])


def _ours(name: str, version: str) -> Json:
    purl = f"pkg:pypi/gdsdeploy@{version}" + ("" if name == "gdsdeploy" else f"#{name}.pyz")
    names = {"type": "application", "bom-ref": name, "name": name, "version": version}
    return {**names, "purl": purl, "licenses": [{"license": {"id": LICENSE}}]}


def _requirement(text: str) -> Json:
    name = re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", text.strip())[0]).lower()
    names = {"type": "library", "bom-ref": name, "name": name, "scope": "required", "purl": f"pkg:pypi/{name}"}
    return {**names, "properties": [{"name": "gdsdeploy:requirement", "value": text}]}


def _document(subject: Json, components: list[Json]) -> bytes:
    """The same materials give the same bytes: no time, and a serial number made from the content."""
    refs = [component["bom-ref"] for component in components]
    dependencies = [{"ref": subject["bom-ref"], "dependsOn": refs}, *({"ref": ref} for ref in refs)]
    content: Json = {"metadata": {"component": subject}, "components": components, "dependencies": dependencies}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}", "version": 1}
    return (json.dumps({**head, **content}, indent=1) + "\n").encode()
