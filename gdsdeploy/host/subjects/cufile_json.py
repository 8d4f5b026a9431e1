"""libcufile's configuration: its file, the one that a variable lays over it, and what they rule out.

CUFILE_ENV_PATH_JSON names a second configuration, which libcufile lays over /etc/cufile.json.  The rules were seen in
the real libcufile 1.9.1, 1.15.1 and 1.20.0: it reads /etc/cufile.json, then the named file, key by key.  null and an
empty list change nothing, and a mount table gets further mounts.  A missing file is ignored; if one of both is broken,
every cuFile call fails.  Any user can name any file so, and the collector may be root: only what libcufile reads of a
configuration is recorded, that is the sections that it knows, of a regular file that is one.

P2PDMA needs one key of cufile.json for the mode and, from libcufile 1.16 on, one for each storage.

The values in use are those of a block "CUFILE CONFIGURATION", which every release logs at level INFO once it has read
its configuration and found its driver (seen in 1.4.0 to 1.20.0; tests/evidence/h200 has some).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, cast

from ..facts.document import Document
from ..facts.unknown import Facts, Maybe, UndecidedError, Unknown, any_of, fact, given, if_known, known, require
from ..io.reading import whole
from ..libcufile import p2pdma
from ..model.expectation import Expectation
from ..paths import CUFILE, CUFILE_OPEN
from ..rootdir import inside
from . import libcufile, quote
from .condition import (
    DIRECT_PATH,
    NOTES,
    USABLE,
    Cause,
    Condition,
    condition,
    listed_cause,
    numbers,
    required,
    rule,
    suspicion,
)
from .environment import Variable
from .register import Answer, check, failed, not_applicable, passed
from .types import HostFacts, Mount, Recorder

#: As of /etc/cufile.json.
LIMIT = 256 * 1024


def record_configuration(recorder: Recorder, path: str, root: str = "/") -> str:
    """Record the configuration ``path`` as seen inside ``root`` once; returns its key in the section ``configs``."""
    key = path if root == "/" else root + path
    if key not in recorder.document["configs"]:
        recorder.value("configs", key, lambda place: read_configuration(place if root == "/" else inside(root, path)))
    return key


def read_configuration(path: str) -> Dict[str, Any]:
    """``config``: the known sections; or ``broken``: why every libcufile refuses the file.

    Raises OSError, and ValueError for a file that may be refused or not.
    """
    # A device isn't opened: that alone can have an effect.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it isn't a regular file")
    text = whole(path, LIMIT).decode("utf-8", "replace")
    try:
        value = parse_config(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if _is_refused(text, error):
            return {"broken": f"it isn't JSON: {error}"}
        raise ValueError(f"it may not be JSON: {error}") from None
    if value is None or value in ({}, []):
        return {"config": {}}
    if not isinstance(value, dict):
        return {"broken": "it isn't a JSON object"}
    config = {name: value[name] for name in SECTIONS if value.get(name) is not None}
    wrong = [name for name, section in config.items() if not isinstance(section, dict)]
    return {"broken": f"its section {wrong[0]} isn't an object"} if wrong else {"config": config}


def _is_refused(text: str, error: ValueError) -> bool:
    """Whether libcufile refuses a text for the reason for which Python does.

    It does for an empty or unclosed text, for one that begins with neither brace nor bracket, and for a comma before a
    closing one.  Otherwise it may accept it: its parser takes some numbers that Python's doesn't.
    """
    plain = without_comments(text).lstrip()
    rest = plain[getattr(error, "pos", 0) :]
    return plain[:1] not in ("{", "[") or not rest.strip() or re.match(r"[\s,]*[}\]]", rest) is not None


#: The variable that names the file.
VARIABLE = "CUFILE_ENV_PATH_JSON"
#: The sections that some release reads.
SECTIONS = (
    "logging", "profile", "execution", "properties", "block", "sparse", "fs", "denylist", "miscellaneous",
)  # fmt: skip


#: Switches of ``properties`` that every release reads.
SWITCHES = ("allow_compat_mode", "force_compat_mode")


@dataclass(frozen=True)
class Overlay:
    """``variable`` names the file."""

    variable: Variable
    #: its known sections; empty where there is no such file
    config: Mapping[str, Any] = field(default_factory=dict)
    exists: bool = True
    #: why libcufile refuses it; empty where it doesn't
    broken: str = ""

    @property
    def path(self) -> str:
        return self.variable.value

    def value(self, section: str, key: str) -> Any:
        """The value that the file gives the key, at any depth of the section; None where it doesn't."""
        return next((value for name, value in _values(self.config.get(section)) if name == key), None)


def overlay(document: Document, key: str, variable: Variable) -> Overlay:
    """The file that was recorded as ``key``; raises UndecidedError."""
    try:
        value = document.record("configs", key)
    except UndecidedError as error:
        raise UndecidedError(f"{VARIABLE} names a configuration that is unknown: {error}") from None
    if value is None:
        return Overlay(variable, exists=False)
    config, broken = value.get("config"), value.get("broken", "")
    if isinstance(config, dict):
        sections = {name: config[name] for name in SECTIONS if isinstance(config.get(name), dict)}
        return Overlay(variable, sections, broken=_wrong_type(sections))
    if broken and isinstance(broken, str):
        return Overlay(variable, broken=broken)
    raise UndecidedError(f"the record of {key} is malformed")


def merged(base: Optional[Mapping[str, Any]], over: Mapping[str, Any]) -> Dict[str, Any]:
    """``over`` laid over ``base`` key by key."""
    result = dict(base or {})
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping):
            result[key] = merged(below if isinstance(below, Mapping) else None, value)
        elif value is not None and value != []:
            result[key] = value
    return result


def _values(section: Any) -> Iterator[Tuple[str, Any]]:
    for name, value in section.items() if isinstance(section, Mapping) else ():
        yield name, value
        yield from _values(value)


def _wrong_type(config: Mapping[str, Any]) -> str:
    """The switch with a value of another type, for which every release refuses the file; empty where there is none."""
    values = {key: config.get("properties", {}).get(key) for key in SWITCHES}
    wrong = [key for key, value in values.items() if value is not None and not isinstance(value, bool)]
    return f"its properties.{wrong[0]} is neither true nor false" if wrong else ""


#: Keys of cufile.json → the name under which the library logs them, where that differs.
SHOWN = {
    "properties.allow_compat_mode": "properties.use_compat_mode",
    "properties.io_batchsize": "properties.max_batch_io_size",
    "properties.rdma_load_balancing_policy": "properties.rdma_peer_affinity_policy",
    "properties.gpu_bounce_buffer_slab_config.slab_size_kb": "properties.gpu_bounce_buffer_slab_size_kb",
    "properties.gpu_bounce_buffer_slab_config.slab_count": "properties.gpu_bounce_buffer_slab_count",
}
#: Of a file system: the addresses for all mounts, and a table of mounts, whose rows have the same list.
LIST, TABLE = "rdma_dev_addr_list", "mount_table"


class Difference(NamedTuple):
    """A key of cufile.json with another value in effect; both values as the library logs them."""

    key: str
    intended: str
    effective: str


def key_name(path: Tuple[str, ...]) -> str:
    """The name of a key by its path in a document: dotted, and a different one for each path.

    A member whose own name has a dot is quoted, so that it never counts as a path.
    """
    odd = (not part or "." in part or part.startswith('"') for part in path)
    return ".".join(json.dumps(part, ensure_ascii=False) if quoted else part for part, quoted in zip(path, odd))


def given_keys(config: Mapping[str, Any], path: Tuple[str, ...] = ()) -> Iterator[Tuple[str, Any]]:
    """Dotted name and value of every key that a configuration gives."""
    for name, value in config.items():
        if isinstance(value, Mapping) and name != TABLE:
            yield from given_keys(value, (*path, name))
        else:
            yield key_name((*path, name)), value


def listed(value: Any) -> Dict[str, List[str]]:
    """Mount point → its addresses, of a mount table; of a list, all are for the mount point ``""``."""
    lists = {"": value}
    if isinstance(value, Mapping):
        lists = {mount: row.get(LIST) if isinstance(row, Mapping) else None for mount, row in value.items()}
    return {
        mount: [text for text in addresses if isinstance(text, str) and text] if isinstance(addresses, list) else []
        for mount, addresses in lists.items()
    }


def as_logged(value: Any) -> str:
    """A value of cufile.json as the library logs it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return " ".join(as_logged(entry) for entry in value)
    if isinstance(value, Mapping):
        return "; ".join(sorted(f"{mount}: {' '.join(addresses)}" for mount, addresses in listed(value).items()))
    return str(value)


def same(value: Any, effective: str) -> bool:
    """Whether the logged value is the intended one."""
    if isinstance(value, bool):
        # libcufile logs one switch as a number, and takes a switch as the number of an unsigned key.
        return effective in (("true", "1") if value else ("false", "0"))
    if isinstance(value, Mapping):
        return _is_same_table(listed(value), effective)
    return as_logged(value).split() == effective.split()


def _is_same_table(table: Dict[str, List[str]], effective: str) -> bool:
    """Whether the logged rows have a mount table's addresses.

    A logged row is of one filesystem: the names of all its mounts, then the addresses of all of them, each once.
    """
    left = {mount: set(" ".join(addresses).split()) for mount, addresses in table.items()}
    for row in effective.split("; "):
        names, _, addresses = row.partition(": ")
        mounts = [mount for mount in left if f" {mount} " in f" {names} "]
        if set().union(*map(left.pop, mounts)) != set(addresses.split()):
            return False
    return not any(left.values())


def logged(key: str, values: Mapping[str, str]) -> Optional[str]:
    """The logged value of a key of cufile.json; None: not logged."""
    return values.get(SHOWN.get(key, key))


def differences(config: Mapping[str, Any], values: Mapping[str, str]) -> Tuple[List[Difference], int]:
    """Keys whose logged value isn't the intended one, and the number of compared keys."""
    rows = [(key, value, logged(key, values)) for key, value in given_keys(config)]
    compared = [(key, value, effective) for key, value, effective in rows if effective is not None]
    differing = [Difference(key, as_logged(value), shown) for key, value, shown in compared if not same(value, shown)]
    return differing, len(compared)


class CufileFacts(Facts):
    """libcufile and its configuration; every fact about the file is about ``path``, normally /etc/cufile.json."""

    def __init__(self, document: Document, named: Optional[Variable] = None) -> None:
        """named: the variable by which programs get a second configuration."""
        super().__init__(document)
        self.path, self._named = CUFILE, named

    @fact
    def digests(self) -> Mapping[str, Maybe[Optional[str]]]:
        """Path of a configuration → sha256 of it; None: there is none."""
        paths = [path for path in self.document.paths("files") if path.endswith(".json")]
        return {path: known(partial(_digest, self.document, path)) for path in (CUFILE, *paths)}

    @fact
    def config(self) -> Optional[Mapping[str, Any]]:
        """The file as a JSON object with its comments removed."""
        text = self.document.text(CUFILE)
        try:
            value = None if text is None else parse_config(text)
        except (ValueError, RecursionError) as error:
            raise UndecidedError(f"{CUFILE} is not JSON: {error}") from None
        if text is not None and not isinstance(value, dict):
            raise UndecidedError(f"{CUFILE} is not a JSON object")
        return cast("Optional[Mapping[str, Any]]", value)

    #: ``accepted`` or ``rejected``
    acceptance = given(libcufile.acceptance)
    #: what libcufile said when its driver was opened
    opened = given(libcufile.opened)
    #: file name version of the library that the loader takes; None: none is installed
    library = given(libcufile.installed)

    @fact
    def effective(self) -> Optional[Mapping[str, str]]:
        """The values in effect, by the library's names; None: it stopped before it logged them."""
        # Evidence needs a part of this module, and not the reader of logs.
        from ..gdscheck.reader import parse_log

        return parse_log(self.document.attempted(CUFILE_OPEN).log).config or None

    @fact
    def overlay(self) -> Optional[Overlay]:
        """What programs lay over the file; None: nothing."""
        named = self._named
        if named is None:
            return None
        if not named.value.startswith("/"):
            raise UndecidedError(f"{named.name} in {named.place} names {named.value}, which depends on the program")
        return overlay(self.document, named.value, named)

    @property
    def merged(self) -> Mapping[str, Any]:
        """The configuration that programs get: the file, and what is laid over it."""
        config, over = self.config, self.overlay
        return merged(config, over.config) if over else config or {}

    def setting(self, section: str, key: str, default: Any) -> Any:
        """A value of the configuration that programs get, ``default`` where it is not there."""
        values = self.merged.get(section)
        return values.get(key, default) if isinstance(values, dict) else default


def _digest(document: Document, path: str) -> Optional[str]:
    text = document.text(path)
    if text is not None and "\ufffd" in text:
        raise UndecidedError("the file is not UTF-8")
    return None if text is None else hashlib.sha256(text.encode("utf-8")).hexdigest()


def parse_config(text: str) -> Any:
    """A configuration's first value, without comments: as libcufile reads it.  Raises ValueError and RecursionError."""
    return json.JSONDecoder().raw_decode(without_comments(text).lstrip())[0]


def without_comments(text: str) -> str:
    """JSON without // and /* */ comments, which the library's parser takes."""
    return re.sub(
        r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', lambda match: match.group(1) or " ", text, flags=re.DOTALL
    )


#: The last release that reads CUFILE_ALLOW_COMPAT_MODE.
LAST_WITH_ALLOW_COMPAT = (1, 16)
#: The smallest I/O that takes a filesystem's direct path: a key in the filesystem's section below ``fs``.
MINIMUM = "posix_gds_min_kb"


def _by_setting(facts: HostFacts, ident: str, key: str, what: str = "", fix: str = "") -> Cause:
    """A cause that is one key of ``properties``."""
    return listed_cause(ident, quote.setting(facts, "properties", key), what, fix, key=key)


def _by_variable(facts: HostFacts, ident: str, name: str) -> Cause:
    """A cause that is a variable which some place sets."""
    variable = facts.environment.variables[name]
    return listed_cause(ident, quote.variable(variable), place=variable.place)


@rule(DIRECT_PATH, 20)
def direct(facts: HostFacts, mount: Optional[Mount]) -> Iterator[Condition]:
    """Settings that rule out either direct path."""
    key = "force_compat_mode"
    cause = _by_setting(facts, "cufile.force-compat", key, "cufile.json forces compat mode")
    yield Condition(lambda: facts.cufile.setting("properties", key, False) is not True, cause)
    name = "CUFILE_FORCE_COMPAT_MODE"
    yield Condition(
        lambda: facts.environment.switch(name) is not True,
        lambda: _by_variable(facts, "cufile.variable-forces-compat", name),
    )
    for mode in ("vanilla_posix_io_mode", "posix_io_mode"):
        if if_known(partial(facts.cufile.setting, "properties", mode, False), None) is True:
            yield suspicion(_by_setting(facts, "cufile.posix-io", mode))
    if mount is not None:
        devices = mount.devices
        yield _not_denied(facts, "filesystems", [mount.filesystem])
        yield _not_denied(facts, "mounts", [mount.mount_point])
        yield _not_denied(facts, "drivers", sorted({device.kind for device in devices}))
        yield _not_denied(facts, "devices", ["/dev/" + device.name for device in devices])


@condition
def _not_denied(facts: HostFacts, key: str, values: List[str]) -> Condition:
    denied = facts.cufile.setting("denylist", key, [])
    matches = [value for value in values if isinstance(denied, list) and value in denied]
    shown = " and ".join(matches)
    what, fix = f"denylist.{key} in cufile.json names {shown}", f"remove {shown} from denylist.{key}"
    return required(not matches, "cufile.denied", quote.setting(facts, "denylist", key), what, fix)


@condition
def fallback(facts: HostFacts) -> Condition:
    """Whether compat mode may replace a direct path."""
    allowed = facts.cufile.setting("properties", "allow_compat_mode", True)
    forced = facts.cufile.setting("properties", "force_compat_mode", False)
    name = "CUFILE_ALLOW_COMPAT_MODE"
    release = if_known(lambda: libcufile.release(facts), None)
    reads_variable = release is not None and numbers(release) <= LAST_WITH_ALLOW_COMPAT
    if reads_variable and forced is not True and if_known(lambda: facts.environment.switch(name), None) is False:
        return Condition(False, _by_variable(facts, "cufile.variable-no-compat", name))
    fix = "remove the causes above, or set properties.allow_compat_mode to true"
    cause = _by_setting(facts, "cufile.no-compat", "allow_compat_mode", "cufile.json disallows compat mode", fix)
    return Condition(allowed is True or forced is True, cause)


@rule(NOTES, 10)
def notes(facts: HostFacts, mount: Mount) -> Iterator[Cause]:
    """Settings that exclude some I/O from a direct path, or have no effect."""
    over = facts.cufile.overlay
    if over and not over.exists:
        values = {"file": over.path, "place": over.variable.place}
        yield listed_cause("cufile.overlay-missing", quote.variable(over.variable), **values)
    section = facts.cufile.setting("fs", mount.filesystem, {})
    least = section.get(MINIMUM) if isinstance(section, dict) else None
    if isinstance(least, int) and least > 0:
        key = f"fs.{mount.filesystem}.{MINIMUM}"
        yield listed_cause("cufile.small-io", quote.setting(facts, "fs", MINIMUM), least=str(least), key=key)
    key = "gds_rdma_write_support"
    if facts.cufile.setting("properties", key, True) is False:
        yield _by_setting(facts, "cufile.no-rdma-writes", key)


@rule(USABLE, 11)
def overlay_usable(facts: HostFacts, _mount: Optional[Mount] = None) -> Iterator[Condition]:
    """If libcufile refuses the second file, every cuFile call fails as well."""
    over = if_known(lambda: facts.cufile.overlay, None)
    if over and over.broken:
        evidence = (*quote.with_source(over.path, [over.broken]), *quote.variable(over.variable))
        place = over.variable.place
        yield required(False, "cufile.overlay-refused", evidence, why=over.broken, file=over.path, place=place)


@rule(DIRECT_PATH, 21)
def overlay_direct(facts: HostFacts, _mount: Optional[Mount]) -> Iterator[Condition]:
    """A file that was not seen may set anything."""
    over, named = known(lambda: facts.cufile.overlay), facts.environment.variables.get(VARIABLE)
    if isinstance(over, Unknown) and named is not None:
        evidence = (*quote.variable(named), over.reason)
        yield required(over, "cufile.variable-overlays", evidence, place=named.place, suspect=True)


#: The variable that libcufile applies over ``properties.use_pci_p2pdma``, from 1.13 on.
P2PDMA_VARIABLE = "CUFILE_USE_PCIP2PDMA"


def requests_p2pdma(facts: HostFacts, storage: Callable[[], Optional[str]]) -> bool:
    """Whether the configuration asks for P2PDMA on ``storage``, as filesystem.storage_of says, with one key or both.

    Never for storage that NVIDIA lists no such route to, whatever its key.  Raises UndecidedError.
    """
    name = known(storage)
    if isinstance(name, Unknown):
        return p2pdma_enabled(facts) and require(name) is not None
    row = p2pdma_key(name)
    if row is None or not row.route:
        return False
    release = if_known(lambda: libcufile.release(facts), None)
    if release is not None and numbers(release) < p2pdma.OWN_KEYS_SINCE:
        return p2pdma_enabled(facts)
    return any_of([known(lambda: p2pdma_enabled(facts)), known(lambda: _own_key(facts, row))])


def p2pdma_key(storage: Optional[str]) -> Optional[p2pdma.StorageKey]:
    return next((row for row in p2pdma.storage_keys() if row.storage == storage), None)


def p2pdma_enabled(facts: HostFacts) -> bool:
    """The first half: ``properties.use_pci_p2pdma``, or the variable over it."""
    switch = if_known(lambda: facts.environment.switch(P2PDMA_VARIABLE), None)
    if switch is not None:
        return switch
    return facts.cufile.setting("properties", "use_pci_p2pdma", False) is True


def _own_key(facts: HostFacts, row: p2pdma.StorageKey) -> bool:
    """The second half: the key of one kind of storage."""
    section, _, name = row.section.partition(".")
    keys = facts.cufile.setting(section, name, {})
    return isinstance(keys, dict) and keys.get(row.key) is True


def p2pdma_keys(facts: HostFacts, storage: str) -> Iterator[Condition]:
    """Both keys of a kind of storage, in a libcufile that has a route to it."""
    row, release = p2pdma_key(storage), known(lambda: libcufile.release(facts))
    if row is None or release is None:
        return
    since = ".".join(str(number) for number in row.since)
    what = f"libcufile {release} has no P2PDMA mode for this kind of storage ({storage}): {since} is the first"
    if storage != "nvme":
        yield required(
            lambda: numbers(require(release)) >= row.since,
            "cufile.no-p2pdma",
            (f"libcufile: {release}",),
            what,
            since=since,
        )
    if not isinstance(release, Unknown) and numbers(release) < p2pdma.OWN_KEYS_SINCE:
        return
    halves = {p2pdma.GLOBAL: known(lambda: p2pdma_enabled(facts)), row.name: known(lambda: _own_key(facts, row))}
    words = " and ".join(name for name, value in halves.items() if value is False)
    what = f"P2PDMA on this storage needs two keys of cufile.json, and {words} isn't true"
    evidence = tuple(f"{CUFILE}: {name} is {_shown(value)}" for name, value in halves.items())
    if if_known(lambda: facts.environment.switch(P2PDMA_VARIABLE), None) is not None:
        evidence = (*quote.variable(facts.environment.variables[P2PDMA_VARIABLE]), evidence[1])
    cause = listed_cause("cufile.p2pdma-half-set", evidence, what, f"set {words} to true")
    if isinstance(release, Unknown):
        yield Condition(release, cause, suspect=bool(words))
    else:
        yield Condition(lambda: not words and all(map(require, halves.values())), cause)


def _shown(value: Maybe[bool]) -> str:
    return "not known" if isinstance(value, Unknown) else "true" if value else "not true"


@check(
    "cufile.rendered",
    "the configuration of libcufile is the rendered one",
    expects="{cufile_path} with sha256 {cufile_sha256}",
    prevents="manual edits that were forgotten, and a file for another release",
    of_provision=True,
)
def rendered(facts: HostFacts, expectation: Expectation) -> Answer:
    path = expectation.cufile_path
    if not expectation.cufile_sha256:
        raise UndecidedError("the file is fitted to this host, and the host's facts don't decide its content")
    digest = require(facts.cufile.digests.get(path, Unknown(f"{path} was not looked at")))
    if digest is None:
        return failed(f"{path} does not exist", "Provision the host again")
    if digest == expectation.cufile_sha256:
        return passed(f"{path} as rendered")
    hint = "See the difference and put it into the fleet file: gdsdeploy provision --check --diff; then provision"
    return failed(f"{path} with sha256 {digest}", hint)


@check(
    "cufile.effective",
    "libcufile uses the values of its configuration",
    expects="every value of {cufile_path} that libcufile {libcufile_version} logs is the one in the file",
    prevents="a value that libcufile accepts and silently replaces",
    unknown_hint="libcufile's messages name what is missing; with allow_compat_mode false that is often nvidia-fs",
)
def effective(facts: HostFacts, _expectation: Expectation) -> Answer:
    missing = known(lambda: facts.cufile.config is None)
    refused = known(lambda: facts.cufile.acceptance != libcufile.ACCEPTED)
    if any_of([missing, refused]):
        return not_applicable("no configuration is in effect: see cufile.rendered and cufile.accepted")
    config, values = facts.cufile.config, facts.cufile.effective
    assert config is not None
    if values is None:
        return _nothing_logged(facts)
    differing, compared = differences(config, values)
    if not differing:
        return passed(f"{compared} values as intended, of {len(values)} that libcufile logs")
    lines = [f"{value.key}: {value.effective} (the file has {value.intended})" for value in differing]
    hint = "Set values that the library supports in the fleet file (profile, cufile), and provision again"
    return failed("; ".join(lines), hint, lines)


def _nothing_logged(facts: HostFacts) -> Answer:
    """Without a GPU no release logs its values, and no program can use cuFile: there is nothing to compare."""
    opened = facts.cufile.opened
    end = "did not return" if opened.error is None else f"returned {opened.error}"
    if facts.driver.gpus:
        reason = "; ".join(opened.lines[:2]) or "it gave no reason"
        raise UndecidedError(f"cuFileDriverOpen {end} before libcufile logged its values: {reason}")
    return not_applicable(
        f"none to compare: this host has no GPU, so cuFileDriverOpen {end} before libcufile logged any"
    )
