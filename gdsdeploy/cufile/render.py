"""A profile's cufile.json: the mode's switches, a compat policy, sizes that agree, and the fleet's own words over them.

Pure: the same profile and library version give the same text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from gdsdeploy import resources
from gdsdeploy.cufile.model import OLDEST, Key, Release, check, get, keys, known_keys, release_of
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.model.fleet import Profile

#: Where the library looks first.
PATH = "/etc/cufile.json"
#: Every process writes a file of its own there, so the folder has to be writable like /tmp (mode 1777).
LOG_DIR = "/var/log/cufile"

_P2PDMA = "properties.use_pci_p2pdma"
_ALLOW_COMPAT = "properties.allow_compat_mode"
_LARGEST = "properties.max_direct_io_size_kb"
_BUFFER = "properties.per_buffer_cache_size_kb"

_PEER_TYPE = {"peermem": "nvidia_peermem", "dmabuf": "dmabuf"}


def render(name: str, profile: Profile, libcufile: str) -> str:
    """The text of /etc/cufile.json for the profile ``name`` under that version of libcufile.

    Raises FleetInvalid with every problem, each with the profile and the key.
    """
    intended = document(name, profile, libcufile)
    return _template().render(entries=_entries(intended, "", keys(release_of(libcufile))))


def document(name: str, profile: Profile, libcufile: str) -> dict[str, Any]:
    """The same as a mapping; raises FleetInvalid."""
    release = release_of(libcufile)
    if release < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise FleetInvalid(
            f"profiles.{name}.libcufile: {libcufile} is older than {oldest}, the oldest release whose keys are known",
            hint="Pin a newer libcufile and run `gdsdeploy lock`",
        )
    problems = _against_mode(profile, libcufile, release)
    result = _overlaid(_defaults(profile, release), profile.cufile)
    problems += [(f"cufile.{item.key}".rstrip("."), item.message) for item in check(result, release)]
    if problems:
        lines = [f"profiles.{name}.{key}: {message}" for key, message in problems]
        hint = f"The lock has libcufile {libcufile} for this profile; the keys and limits are those of that release"
        raise FleetInvalid("\n".join(lines), hint=hint)
    return result


def log_dir(profile: Profile) -> str:
    """The folder of log files that the profile's file names: without it, every release refuses to work at all."""
    return str(get(profile.cufile, "logging.dir") or LOG_DIR)


def _defaults(profile: Profile, release: Release) -> dict[str, Any]:
    """What is written where the fleet says nothing."""
    known = keys(release)
    direct = [mount for mount in profile.storage if mount.path != "compat"]
    everything_direct = bool(profile.storage) and len(direct) == len(profile.storage)
    largest = get(profile.cufile, _LARGEST) or known[_LARGEST].default_for(release)
    buffer = known[_BUFFER].default_for(release)
    if isinstance(largest, int) and largest >= 64:
        # From 1.13 on a buffer larger than a request is fatal, and the library's own default is one.
        buffer = min(buffer, largest)
    values: dict[str, Any] = {
        "logging.dir": log_dir(profile),
        "logging.level": "ERROR",
        _ALLOW_COMPAT: profile.mode == "compat" or not everything_direct,
        "properties.force_compat_mode": profile.mode == "compat",
        _LARGEST: largest,
        _BUFFER: buffer,
    }
    if _P2PDMA in known:
        values[_P2PDMA] = profile.mode == "p2pdma"
    if profile.rdma != "none":
        values["properties.rdma_peer_type"] = _PEER_TYPE[profile.rdma]
    result: dict[str, Any] = {}
    for key, value in values.items():
        section, last = key.split(".")
        result.setdefault(section, {})[last] = value
    return result


def _against_mode(profile: Profile, libcufile: str, release: Release) -> list[tuple[str, str]]:
    """What the profile's own keys contradict: (key of the profile, message)."""
    found: list[tuple[str, str]] = []
    if profile.mode == "p2pdma" and _P2PDMA not in keys(release):
        since = known_keys()[_P2PDMA].since
        found.append(("mode", f"p2pdma needs libcufile {since} or newer; the lock has {libcufile}"))
    asked = get(profile.cufile, _P2PDMA)
    if isinstance(asked, bool) and _P2PDMA in keys(release) and asked != (profile.mode == "p2pdma"):
        message = f"contradicts mode: {profile.mode}, which sets this key; change the mode instead"
        found.append((f"cufile.{_P2PDMA}", message))
    if profile.mode == "compat":
        found += [
            ("storage", f"{mount.mount}: mode: compat has no {mount.path} path; write path: compat or change the mode")
            for mount in profile.storage
            if mount.path != "compat"
        ]
    return found


def _overlaid(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` laid over ``below`` key by key, as the library itself lays a second file over the first."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = _overlaid(inner, value) if both and inner is not None else value
    return result


def _entries(content: Mapping[str, Any], path: str, known: Mapping[str, Key]) -> list[dict[str, Any]]:
    """What the template writes for one object, in the order of keys.yml: values as JSON, sections as entries."""
    every = list(known)

    def place(name: str) -> int:
        return min((at for at, key in enumerate(every) if f"{key}.".startswith(f"{path}{name}.")), default=len(every))

    result: list[dict[str, Any]] = []
    for name in sorted(content, key=place):
        value, key = content[name], known.get(path + name)
        inner = _entries(value, f"{path}{name}.", known) if key is None and isinstance(value, Mapping) else None
        if inner == []:
            continue
        unit = f"[{key.unit}] " if key and key.unit else ""
        result.append(
            {
                "key": json.dumps(name),
                "value": json.dumps(value),
                "entries": inner,
                "meaning": unit + key.meaning if key else None,
            }
        )
    return result


@functools.cache
def _template() -> Template:
    # JSON is not HTML: each value is encoded by json.dumps before it gets here.
    loader = FileSystemLoader(resources.templates())
    environment = Environment(
        loader=loader,
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("cufile.json.j2")
