"""The values that libcufile uses, and whether they are those that a configuration intends.

At level INFO every release logs a block "CUFILE CONFIGURATION" once it has read its configuration and found its driver
(seen in 1.4.0 to 1.20.0; tests/evidence/h200 has some).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

#: Keys of cufile.json → the name under which the library logs them, where that differs; keys.yml has the same.
SHOWN = {
    "properties.allow_compat_mode": "properties.use_compat_mode",
    "properties.io_batchsize": "properties.max_batch_io_size",
    "properties.rdma_load_balancing_policy": "properties.rdma_peer_affinity_policy",
    "properties.gpu_bounce_buffer_slab_config.slab_size_kb": "properties.gpu_bounce_buffer_slab_size_kb",
    "properties.gpu_bounce_buffer_slab_config.slab_count": "properties.gpu_bounce_buffer_slab_count",
}
_ENTRY = re.compile(r"\] INFO\s+\S+?:\d+ (.*)$")
_VALUE = re.compile(r"([a-z]+(?:\.[A-Za-z0-9_]+)+) ?: ?(.*)$")
_MOUNT = re.compile(r"(/.*?)\s+dev_id \d+ : ?(.*)$")
_TABLE = ".mount_table"


@dataclass(frozen=True)
class Difference:
    """A key of cufile.json with another value in effect; both values as the library logs them."""

    key: str
    intended: str
    effective: str


def effective_values(log: str) -> Dict[str, str]:
    """Name → value of the block "CUFILE CONFIGURATION" of a log at level INFO; empty when there is none.

    A mount table is ``path: address address``, its entries separated by ``; ``.  The names are the library's, which for
    a few keys are not those of cufile.json (see SHOWN).
    """
    values: Dict[str, str] = {}
    in_block, last = False, ""
    for line in log.splitlines():
        entry = _ENTRY.search(line)
        text = entry.group(1).strip() if entry else ""
        if text == "CUFILE CONFIGURATION:":
            in_block = True
        elif text == "GPU INFO:":
            break
        elif in_block:
            value, mount = _VALUE.match(text), _MOUNT.match(text)
            if value:
                last = value.group(1)
                values[last] = value.group(2).strip()
            elif mount and last.endswith(_TABLE):
                row = f"{mount.group(1)}: {mount.group(2).strip()}"
                values[last] = "; ".join(filter(None, [values[last], row]))
    return values


def given_keys(config: Mapping[str, Any], path: str = "") -> Iterator[Tuple[str, Any]]:
    """Dotted name and value of every key that a configuration gives."""
    for name, value in config.items():
        key = path + str(name)
        if isinstance(value, Mapping) and not key.endswith(_TABLE):
            yield from given_keys(value, key + ".")
        else:
            yield key, value


def as_logged(value: Any) -> str:
    """A value of cufile.json as the library logs it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return " ".join(as_logged(entry) for entry in value)
    if isinstance(value, Mapping):
        rows = (f"{path}: {as_logged(_addresses(row))}" for path, row in value.items())
        return "; ".join(sorted(rows))
    return str(value)


def _addresses(row: Any) -> Any:
    return row.get("rdma_dev_addr_list", []) if isinstance(row, Mapping) else row


def same(value: Any, effective: str) -> bool:
    """Whether the logged value is the intended one."""
    if isinstance(value, bool):
        # libcufile logs one switch as a number, and takes a switch as the number of an unsigned key.
        return effective in (("true", "1") if value else ("false", "0"))
    if isinstance(value, Mapping):
        return as_logged(value) == "; ".join(sorted(effective.split("; ")))
    return as_logged(value).split() == effective.split()


def logged(key: str, values: Mapping[str, str]) -> Optional[str]:
    """The logged value of a key of cufile.json; None: not logged."""
    return values.get(SHOWN.get(key, key))


def differences(config: Mapping[str, Any], values: Mapping[str, str]) -> Tuple[List[Difference], int]:
    """Keys whose logged value isn't the intended one, and the number of compared keys."""
    rows = [(key, value, logged(key, values)) for key, value in given_keys(config)]
    compared = [(key, value, effective) for key, value, effective in rows if effective is not None]
    differing = [Difference(key, as_logged(value), shown) for key, value, shown in compared if not same(value, shown)]
    return differing, len(compared)
