"""libcufile, its configuration, and whether the one accepts the other; the values that it uses, and intended ones.

The values in use are those of a block "CUFILE CONFIGURATION", which every release logs at level INFO once it has read
its configuration and found its driver (seen in 1.4.0 to 1.20.0; tests/evidence/h200 has some).
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Iterator, List, Mapping, Optional, Tuple

from ..libcufile.probe import returned
from ..paths import CUFILE, CUFILE_CONTROL, CUFILE_OPEN, LIBRARY_FOLDERS, LIBRARY_PATTERN
from .document import TIMED_OUT, Document, Ran, group_of
from .environment import Overlay, Variable, merged, overlay
from .unknown import Facts, Maybe, UndecidedError, fact, given, if_known, known

#: Keys of cufile.json → the name under which the library logs them, where that differs.
SHOWN = {
    "properties.allow_compat_mode": "properties.use_compat_mode",
    "properties.io_batchsize": "properties.max_batch_io_size",
    "properties.rdma_load_balancing_policy": "properties.rdma_peer_affinity_policy",
    "properties.gpu_bounce_buffer_slab_config.slab_size_kb": "properties.gpu_bounce_buffer_slab_size_kb",
    "properties.gpu_bounce_buffer_slab_config.slab_count": "properties.gpu_bounce_buffer_slab_count",
}
_TABLE = ".mount_table"


@dataclass(frozen=True)
class Difference:
    """A key of cufile.json with another value in effect; both values as the library logs them."""

    key: str
    intended: str
    effective: str


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


ACCEPTED, REJECTED = "accepted", "rejected"
#: libcufile's words for a configuration that it refuses (the same in 1.4.0 to 1.20.0).
REFUSAL = re.compile(r"failed to load (user )?config|cuFile configuration load error|error reading config")
#: cuFileDriverOpen's result for it: -EINVAL up to 1.15, CU_FILE_DRIVER_INVALID_PROPS in 1.20.
INVALID = (-22, 5002)
#: Lines before a refusal with its reason.
_REASON = re.compile(
    r"json|config|invalid|specified:|aligned|multiple of|slab|parsing error|LargestUInt|initialization failed"
)


@dataclass(frozen=True)
class Opened:
    """The result of ``cuFileDriverOpen``: its CUfileOpError and CUresult, None where it didn't return."""

    error: Optional[int]
    cuda_error: Optional[int]
    hung: bool
    #: the library's messages: its output, then its log
    lines: Tuple[str, ...]


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
        return None if text is None else _config(text)

    @fact
    def acceptance(self) -> str:
        """``accepted`` or ``rejected``."""
        return _acceptance(self.document, self.opened)

    opened = given(lambda document: _opened(document, CUFILE_OPEN))

    @fact
    def effective(self) -> Optional[Mapping[str, str]]:
        """The values in effect, by the library's names; None: it stopped before it logged them."""
        # Evidence needs a part of this module, and not the reader of logs.
        from ..gdscheck import parse_log

        return parse_log(self.document.attempted(CUFILE_OPEN).log).config or None

    @fact
    def library(self) -> Optional[str]:
        """File name version of the library that the loader takes, e.g. ``1.9.1``: NVIDIA and Debian name it so."""
        run = self.document.attempted(CUFILE_OPEN)
        match = re.search(r"gdsdeploy: loaded .*?/libcufile\.so\.(\d+\.\d+\S*)", run.stdout)
        if match:
            return match.group(1)
        if "gdsdeploy: not loaded" not in run.stdout:
            raise UndecidedError("the name of the loaded libcufile has no version")
        for folder in LIBRARY_FOLDERS:
            names = self.document.existing(f"{folder}/{LIBRARY_PATTERN}")
            if names:
                return _behind(self.document, folder, names)
        for folder in reversed(LIBRARY_FOLDERS):
            self.document.names(f"{folder}/{LIBRARY_PATTERN}")
        return None

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


def _config(text: str) -> Mapping[str, Any]:
    try:
        value = parse_config(text)
    except (ValueError, RecursionError) as error:
        raise UndecidedError(f"{CUFILE} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UndecidedError(f"{CUFILE} is not a JSON object")
    return value


def without_comments(text: str) -> str:
    """JSON without // and /* */ comments, which the library's parser takes."""
    return re.sub(
        r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', lambda match: match.group(1) or " ", text, flags=re.DOTALL
    )


def _opened(document: Document, name: str) -> Opened:
    run = document.attempted(name)
    not_loaded = re.search(r"gdsdeploy: (not loaded: .*|no cuFileDriverOpen.*)", run.stdout)
    if not_loaded:
        raise UndecidedError("libcufile was " + not_loaded.group(1))
    if "gdsdeploy: loaded" not in run.stdout:
        output = run.stderr.strip() or run.stdout.strip() or "it printed nothing"
        raise UndecidedError("no program could ask libcufile: " + output)
    return Opened(*returned(run.stdout), run.status == TIMED_OUT, _messages(run))


def _messages(run: Ran) -> Tuple[str, ...]:
    # At level INFO the log has every effective value; errors have the other levels.
    logged = [line for line in run.log.splitlines() if re.search(r"\] (ERROR|WARN|NOTICE) ", line)]
    lines = (run.stdout + "\n" + run.stderr).splitlines() + logged
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("gdsdeploy:"))


def _acceptance(document: Document, opened: Opened) -> str:
    """See ``libcufile/probe.py``: a refused control shows that a configuration is accepted."""
    if opened.error in INVALID or any(REFUSAL.search(line) for line in opened.lines):
        return REJECTED
    if opened.error is None and not opened.hung:
        # Numbers beyond 32 bits raise an exception that libcufile doesn't catch (seen in 1.4.0 to 1.20.0).
        if any("LargestUInt" in line or "Json" in line for line in opened.lines):
            return REJECTED
        raise UndecidedError("libcufile died: {}".format("; ".join(opened.lines[-2:]) or "no message"))
    control = _opened(document, CUFILE_CONTROL)
    if any(REFUSAL.search(line) for line in control.lines):
        return ACCEPTED
    reason = "; ".join(control.lines[:2]) or "no message"
    raise UndecidedError(f"libcufile stops before it reads its configuration: {reason}")


def refusal(opened: Opened) -> List[str]:
    """The library's own lines about a refused configuration."""
    return [line for line in opened.lines if _REASON.search(line)]


def _behind(document: Document, folder: str, names: Tuple[str, ...]) -> str:
    soname = "libcufile.so.0"
    target = if_known(lambda: document.link(folder + "/" + soname), None)
    file = soname if target is None else posixpath.basename(target)
    match = re.match(r"libcufile\.so\.(\d+\.\d+\S*)$", file) if soname in names else None
    return group_of(match, "no version in the names " + ", ".join(names))
