"""A profile's cufile.json: the mode's switches, a compat policy, consistent sizes, values for one host (fit.py), and
over them all the keys of the fleet file.

Pure: the same profile, library version and facts give the same text.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from gdsdeploy import resources
from gdsdeploy.cufile import model
from gdsdeploy.cufile.fit import FitTarget, fit
from gdsdeploy.cufile.model import Key, Release, check, get, keys, release_of
from gdsdeploy.errors import FleetInvalid
from gdsdeploy.host.facts.cufile import given_keys
from gdsdeploy.host.libcufile import p2pdma
from gdsdeploy.model.fleet import Profile

#: Where the library looks first.
PATH = "/etc/cufile.json"
#: Every process writes a separate file there, so the folder has to be writable like /tmp (mode 1777).
LOG_DIR = "/var/log/cufile"

#: Different files that are kept: a fleet has one for each profile, and one for each host where it's fitted.
KINDS = 1024

Variant = Literal["host", "container", "user"]

_PEER_TYPE = {"peermem": "nvidia_peermem", "dmabuf": "dmabuf"}


@dataclass(frozen=True)
class Rendered:
    """A configuration: its text, its values, and notes about the host."""

    text: str
    document: Mapping[str, Any]
    #: dotted key → the origin of its value
    sources: Mapping[str, str]
    notes: tuple[str, ...]


def render(name: str, profile: Profile, libcufile: str, host: FitTarget | None = None) -> str:
    """The text of /etc/cufile.json for the profile ``name`` under that version of libcufile; see ``rendered``."""
    return render_profile(name, profile, libcufile, host).text


def render_profile(
    name: str, profile: Profile, libcufile: str, host: FitTarget | None = None, *, variant: Variant = "host"
) -> Rendered:
    """The file of the profile ``name`` under that version of libcufile.

    host: needed if ``profile.fit`` is set, and ignored otherwise.
    variant: ``container`` and ``user`` are for CUFILE_ENV_PATH_JSON, which overlays /etc/cufile.json with a file.
    Raises FleetInvalid with every problem, each with the profile and the key, and HostUnfit if a necessary fact about
    the host is unknown.
    """
    release = release_of(libcufile)
    if release < model.OLDEST:
        oldest = model.release_text(model.OLDEST)
        raise FleetInvalid(
            f"profiles.{name}.libcufile: {libcufile} is older than {oldest}, the oldest release whose keys are known",
            hint="Pin a newer libcufile and run `gdsdeploy lock`",
        )
    values = _defaults(profile, libcufile, release)
    notes: tuple[str, ...] = ()
    sources = {key: source for key, (_, source) in values.items()}
    below = {key: value for key, (value, _) in values.items()}
    if profile.fit is not None:
        if host is None:
            raise FleetInvalid(f"profiles.{name}.fit: this file differs between hosts, and no host is named")
        fitted = fit(profile, host, release)
        below, sources, notes = {**below, **fitted.values}, {**sources, **fitted.sources}, fitted.notes
    result = _overlay(_nest(below), profile.cufile)
    sources |= {key: f"the fleet file, profile {name}" for key, _ in given_keys(profile.cufile)}
    if variant == "container" and get(profile.cufile, "logging.dir") is None:
        result["logging"]["dir"], sources["logging.dir"] = "/tmp", "a folder that every image has"  # noqa: S108 # nosec B108
    file = _file(json.dumps(result), json.dumps(sources), tuple(usage(profile, variant)), release)
    _refuse(name, profile, libcufile, release, file.problems)
    return Rendered(file.text, result, sources, notes)


@dataclass(frozen=True)
class _File:
    #: empty where there are problems
    text: str
    #: (key of the profile, message)
    problems: tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=KINDS)
def _file(values: str, sources: str, head: tuple[str, ...], release: Release) -> _File:
    """The file with these values, which hosts of a kind share.  values, sources: as JSON, in their order."""
    document = json.loads(values)
    problems = tuple((f"cufile.{problem.key}".rstrip("."), problem.message) for problem in check(document, release))
    if problems:
        return _File("", problems)
    entries = _entries(document, "", keys(release), json.loads(sources))
    return _File(_template().render(entries=entries, usage=head), ())


def document(name: str, profile: Profile, libcufile: str) -> dict[str, Any]:
    """The same as a mapping, for a profile without ``fit``; raises FleetInvalid."""
    return dict(render_profile(name, profile, libcufile).document)


def usage(profile: Profile, variant: Variant) -> list[str]:
    """The comment at the head of the file: how a program gets it."""
    if variant == "host":
        return []
    lines = ["libcufile reads /etc/cufile.json first, and lays the file of this variable over it, key by key:"]
    if variant == "user":
        return [*lines, "    export CUFILE_ENV_PATH_JSON=$HOME/.config/cufile.json"]
    options = ["--volume ./cufile.json:/etc/gdsdeploy/cufile.json:ro"]
    options += ["--env CUFILE_ENV_PATH_JSON=/etc/gdsdeploy/cufile.json", "--gpus all"]
    if profile.mode == "nvidia-fs":
        # The module and its devices are the host's; a container sees /proc/driver/nvidia-fs by itself.
        options += [f"--device /dev/nvidia-fs{number}" for number in range(16)]
    if profile.rdma != "none":
        options += ["--device /dev/infiniband", "--ulimit memlock=-1"]
    # Without udev's database cuFileHandleRegister fails with 5027.
    options.append("--volume /run/udev:/run/udev:ro")
    options += [f"--volume {mount.mount}:{mount.mount}" for mount in profile.storage]
    return [*lines, *(f"    {option}" for option in options)]


def _refuse(name: str, profile: Profile, libcufile: str, release: Release, refused: Sequence[tuple[str, str]]) -> None:
    """Raise FleetInvalid with what contradicts the mode, and with what the library would refuse beside it."""
    problems = _against_mode(profile, libcufile, release)
    contradictory = {key for key, _ in problems}
    problems += [(key, message) for key, message in refused if key not in contradictory]
    if problems:
        lines = [f"profiles.{name}.{key}: {message}" for key, message in problems]
        hint = f"The keys and limits are those of libcufile {libcufile}, which the lock has for this profile"
        raise FleetInvalid("\n".join(lines), hint=hint)


def log_dir(profile: Profile) -> str:
    """The profile's folder of log files; if it's missing, every release refuses to work at all."""
    return str(get(profile.cufile, "logging.dir") or LOG_DIR)


def _defaults(profile: Profile, libcufile: str, release: Release) -> dict[str, tuple[Any, str]]:
    """The values for keys that the fleet file doesn't set, and their origins."""
    release_keys = keys(release)
    largest = get(profile.cufile, model.LARGEST) or release_keys[model.LARGEST].default_for(release)
    buffer = release_keys[model.BUFFER].default_for(release)
    if isinstance(largest, int) and largest >= 64:
        # From 1.13 on a buffer larger than a request is fatal, and the library's own default may be larger.
        buffer = min(buffer, largest)
    own, mode = f"the default of libcufile {libcufile}", f"the mode {profile.mode}"
    values: dict[str, tuple[Any, str]] = {
        "logging.dir": (log_dir(profile), "gdsdeploy's own folder"),
        "logging.level": ("ERROR", own),
        model.ALLOW_COMPAT: _compat(profile),
        model.FORCE_COMPAT: (profile.mode == "compat", mode),
        model.LARGEST: (largest, own),
        model.BUFFER: (buffer, own),
    }
    if model.P2PDMA in release_keys:
        values[model.P2PDMA] = (profile.mode == "p2pdma", mode)
    if model.NVME_P2PDMA in release_keys and profile.mode == "p2pdma":
        # A profile says nothing about other kinds of storage; the fleet file adds their keys.
        values[model.NVME_P2PDMA] = (True, mode)
    if profile.cufile_stats:
        values[model.STATISTICS] = (profile.cufile_stats, f"cufile_stats: {profile.cufile_stats}")
    if profile.rdma != "none":
        values["properties.rdma_peer_type"] = (_PEER_TYPE[profile.rdma], f"rdma: {profile.rdma}")
    return values


def _compat(profile: Profile) -> tuple[bool, str]:
    """Compat mode is disallowed only if every mount requires a direct path."""
    if profile.mode == "compat":
        return True, "the mode compat"
    compat = [mount.mount for mount in profile.storage if mount.path == "compat"]
    if compat or not profile.storage:
        return True, f"compat is good enough for {', '.join(compat)}" if compat else "the fleet file lists no mount"
    return False, "every mount of the fleet file asks for a direct path"


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        section_values = result
        for section in sections:
            section_values = section_values.setdefault(section, {})
        section_values[last] = value
    return result


def _against_mode(profile: Profile, libcufile: str, release: Release) -> list[tuple[str, str]]:
    """Contradictions in the profile: (key of the profile, message)."""
    problems: list[tuple[str, str]] = []
    if profile.mode == "p2pdma" and model.P2PDMA not in keys(release):
        since = model.known_keys()[model.P2PDMA].since
        problems.append(("mode", f"p2pdma needs libcufile {since} or newer; the lock has {libcufile}"))
    value = get(profile.cufile, model.P2PDMA)
    if isinstance(value, bool) and model.P2PDMA in keys(release) and value != (profile.mode == "p2pdma"):
        message = f"contradicts mode: {profile.mode}, which sets this key; change the mode instead"
        problems.append((f"cufile.{model.P2PDMA}", message))
    level = get(profile.cufile, model.STATISTICS)
    if level not in (None, 3, profile.cufile_stats):
        # Other processes can read paths at level 3 only, and from 1.16 on nothing at 1 and 2.
        message = "must be 0 or 3, and as cufile_stats of the profile, which sets this key; remove it here"
        problems.append((f"cufile.{model.STATISTICS}", message))
    if profile.mode != "p2pdma":
        own = (row.name for row in p2pdma.keys_for(min(release, model.NEWEST)))
        message = f"contradicts mode: {profile.mode}, which rules this path out; change the mode instead"
        problems += [(f"cufile.{key}", message) for key in own if get(profile.cufile, key) is True]
    if profile.mode == "compat":
        problems += [
            ("storage", f"{mount.mount}: mode: compat has no {mount.path} path; write path: compat or change the mode")
            for mount in profile.storage
            if mount.path != "compat"
        ]
    return problems


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` merged into ``below`` key by key, as the library merges a second file into the first."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = _overlay(inner, value) if both and inner is not None else value
    return result


def _entries(
    content: Mapping[str, Any], path: str, release_keys: Mapping[str, Key], sources: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One object for the template, in the order of keys.yml: values as JSON, sections as entries."""

    def place(name: str) -> int:
        places = (at for at, key in enumerate(release_keys) if f"{key}.".startswith(f"{path}{name}."))
        return next(places, len(release_keys))

    result: list[dict[str, Any]] = []
    for name in sorted(content, key=place):
        value, key = content[name], release_keys.get(path + name)
        section = key is None and isinstance(value, Mapping)
        inner = _entries(value, f"{path}{name}.", release_keys, sources) if section else None
        if inner == []:
            continue
        unit = f"[{key.unit}] " if key and key.unit else ""
        result.append(
            {
                "key": json.dumps(name),
                "value": json.dumps(value),
                "entries": inner,
                "meaning": unit + key.meaning if key else None,
                # A host's facts may contain line ends, after which the rest would not be a comment.
                "source": " ".join(sources.get(path + name, "").split()),
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
        autoescape=False,  # noqa: S701 # nosec B701
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("cufile.json.j2")
