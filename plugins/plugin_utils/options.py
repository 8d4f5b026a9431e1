"""The options of a resource: of its task, and in a role of the collection the role's variables ROLE_OPTION.

What documents the roles reads this module, too, and imports no Ansible.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from .files import FILES, Files, GdsError

#: Schemas of all desired states, where the collection doesn't carry the program's sources: in a rendered folder.
SCHEMAS = Path(__file__).parents[2] / "gdsdeploy-host.json"
#: What is given for everything, which isn't a resource.
ALL = {"fleet_id": {"type": "str"}, "lock_serial": {"type": "int"}}
#: Variable → its name in 0.1.0, which 0.2.0 no longer reads.
RENAMED = {
    "gds_driver_dependents": "gds_driver_along",
    "gds_driver_superseded": "gds_driver_leaving",
    "gds_gate_files": "gds_gate_left",
    "gds_kernel_superseded": "gds_kernel_leaving",
    "gds_modules_source": "gds_modules_from",
    "gds_packages_dependents": "gds_packages_along",
    "gds_packages_packages": "gds_packages_wanted",
    "gds_packages_superseded": "gds_packages_leaving",
    "gds_restore_has_record": "gds_restore_known",
    "gds_restore_holds": "gds_restore_held",
    "gds_restore_new_kernels": "gds_restore_unwanted_kernels",
    "gds_restore_new_packages": "gds_restore_unwanted",
}
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict"}


def specification(resource: str) -> dict[str, Any]:
    """The options of a resource as an argument specification; raises GdsError for a resource that isn't there."""
    if resource == "all":
        return ALL
    schemas = _schemas()
    if resource not in schemas:
        known = ", ".join(sorted(schemas))
        raise GdsError("desired", f"{resource}: unknown resource", f"set resource to one of {known}")
    files = FILES.get(resource, Files())
    own = {key: value for key, value in arguments(schemas[resource]).items() if key not in files.contents}
    return {**own, **files.options}


def arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object as an argument specification."""
    return {
        name: {**_argument(part), **({"required": True} if name in schema["required"] else {})}
        for name, part in schema["properties"].items()
    }


def _argument(schema: Mapping[str, Any]) -> dict[str, Any]:
    argument: dict[str, Any] = {"type": _TYPES[schema["type"]]}
    if "enum" in schema:
        argument["choices"] = list(schema["enum"])
    inner = schema.get("items", schema)
    if "items" in schema:
        argument["elements"] = _TYPES[inner["type"]]
    if "properties" in inner:
        argument["options"] = arguments(inner)
    return argument


@lru_cache(maxsize=1)
def _schemas() -> dict[str, Any]:
    """Name of a resource → the JSON schema of its desired state; made once for all hosts and tasks of a run."""
    from ansible.constants import DEFAULT_LOCAL_TMP

    made = Path(DEFAULT_LOCAL_TMP) / SCHEMAS.name
    for file in (SCHEMAS, made):
        if file.is_file():
            return dict(json.loads(file.read_bytes()))
    from ansible_collections.gdsdeploy.gds.gdsdeploy.host.apply import registry

    schemas: dict[str, Any] = registry.schemas()
    with tempfile.NamedTemporaryFile("w", dir=made.parent, delete=False) as file:
        json.dump(schemas, file)
    Path(file.name).replace(made)
    return schemas


def checked(resource: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options in their types; raises GdsError for those that aren't as the resource needs them."""
    from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

    result = ArgumentSpecValidator(specification(resource)).validate(dict(options))
    if result.error_messages:
        raise GdsError("desired", f"{resource}: {'; '.join(result.error_messages)}")
    return dict(_without_none(result.validated_parameters))


def of_role(role: str, options: Iterable[str], variables: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Option → the variable that has it, of the role; and for each old name a sentence that says the new one."""
    found, notes = {}, []
    for option in options:
        name = f"{role}_{option}"
        old = RENAMED.get(name, "")
        if old in variables:
            notes.append(f"{old} is now {name}; the old name works until 0.2.0")
        used = old if old in variables and name not in variables else name
        if used in variables:
            found[option] = used
    return found, notes


def _without_none(value: Any) -> Any:
    """A validated value without unset options."""
    if isinstance(value, Mapping):
        return {key: _without_none(element) for key, element in value.items() if element is not None}
    return [_without_none(element) for element in value] if isinstance(value, list) else value
