"""libcufile, its configuration, and whether the one accepts the other."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..paths import CUFILE, CUFILE_CONTROL, CUFILE_OPEN, LIBRARY_FOLDERS, LIBRARY_PATTERN
from .document import TIMED_OUT, Document, Ran
from .effective import effective_values
from .unknown import Maybe, Unknown

ACCEPTED, REJECTED = "accepted", "rejected"
#: How libcufile says that it does not take a configuration (the same words in 1.4.0 to 1.20.0).
REFUSAL = re.compile(r"failed to load (user )?config|cuFile configuration load error|error reading config")
#: What cuFileDriverOpen returns for it: -EINVAL up to 1.15, CU_FILE_DRIVER_INVALID_PROPS in 1.20.
INVALID = (-22, 5002)
#: Lines before a refusal that say what is wrong.
_REASON = re.compile(
    r"json|config|invalid|specified:|aligned|multiple of|slab|parsing error|LargestUInt|initialization failed"
)


@dataclass(frozen=True)
class Opened:
    """What ``cuFileDriverOpen`` did: its CUfileOpError and CUresult, None where it did not return."""

    error: Optional[int]
    cuda_error: Optional[int]
    hung: bool
    #: what the library said, its log after its output
    lines: Tuple[str, ...]


@dataclass(frozen=True)
class CufileFacts:
    """``path`` of every fact about the file is the expected one, normally /etc/cufile.json."""

    #: path of a configuration → sha256 of it; None: there is none
    digests: Mapping[str, Maybe[Optional[str]]]
    #: the file as a JSON object with its comments removed
    config: Maybe[Optional[Mapping[str, Any]]]
    #: ``accepted`` or ``rejected``
    acceptance: Maybe[str]
    opened: Maybe[Opened]
    #: what the library said that it works with, by its own names; None: it stopped before it said so
    effective: Maybe[Optional[Mapping[str, str]]]
    #: file name version of the library that the loader takes, e.g. ``1.9.1``
    library: Maybe[Optional[str]]

    def setting(self, section: str, key: str, default: Any) -> Maybe[Any]:
        """A value of the configuration, ``default`` where it or the file is not there."""
        if isinstance(self.config, Unknown):
            return self.config
        inside = (self.config or {}).get(section)
        return inside.get(key, default) if isinstance(inside, dict) else default


def cufile_facts(document: Document) -> CufileFacts:
    text = document.text(CUFILE)
    digests = {path: _digest(document.text(path)) for path in document.paths("files") if path.endswith(".json")}
    opened = _opened(document)
    return CufileFacts(
        digests={CUFILE: _digest(text), **digests},
        config=_config(text),
        acceptance=_acceptance(document, opened),
        opened=opened,
        effective=_effective(document),
        library=_library(document),
    )


def _digest(text: Maybe[Optional[str]]) -> Maybe[Optional[str]]:
    if not isinstance(text, str):
        return text
    if "\ufffd" in text:
        return Unknown("the file is not UTF-8")
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _config(text: Maybe[Optional[str]]) -> Maybe[Optional[Mapping[str, Any]]]:
    if not isinstance(text, str):
        return text
    try:
        # The library's parser stops at the end of the first value; text after it is ignored.
        value, _ = json.JSONDecoder().raw_decode(without_comments(text).lstrip())
    except (ValueError, RecursionError) as error:
        return Unknown(f"{CUFILE} is not JSON: {error}")
    return value if isinstance(value, dict) else Unknown(f"{CUFILE} is not a JSON object")


def without_comments(text: str) -> str:
    """JSON without // and /* */ comments, which the library's parser takes."""
    return re.sub(
        r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', lambda found: found.group(1) or " ", text, flags=re.DOTALL
    )


def _opened(document: Document, name: str = CUFILE_OPEN) -> Maybe[Opened]:
    run = document.attempted(name)
    if isinstance(run, Unknown):
        return run
    not_loaded = re.search(r"gdsdeploy: (not loaded: .*|no cuFileDriverOpen.*)", run.stdout)
    if not_loaded:
        return Unknown("libcufile was " + not_loaded.group(1))
    if "gdsdeploy: loaded" not in run.stdout:
        return Unknown(
            "no program could ask libcufile: " + (run.stderr.strip() or run.stdout.strip() or "it said nothing")
        )
    found = re.search(r"gdsdeploy: cuFileDriverOpen returned err=(-?\d{1,18}) cu_err=(-?\d{1,18})", run.stdout)
    error, cuda = (int(found.group(1)), int(found.group(2))) if found else (None, None)
    return Opened(error, cuda, run.status == TIMED_OUT, _said(run))


def _effective(document: Document) -> Maybe[Optional[Mapping[str, str]]]:
    run = document.attempted(CUFILE_OPEN)
    return run if isinstance(run, Unknown) else effective_values(run.log) or None


def _said(run: Ran) -> Tuple[str, ...]:
    # At level INFO the log holds every effective value; what went wrong stands at the other levels.
    logged = [line for line in run.log.splitlines() if re.search(r"\] (ERROR|WARN|NOTICE) ", line)]
    lines = (run.stdout + "\n" + run.stderr).splitlines() + logged
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("gdsdeploy:"))


def _acceptance(document: Document, opened: Maybe[Opened]) -> Maybe[str]:
    """See ``cufile_probe.py``: acceptance is shown by a control that is refused."""
    if isinstance(opened, Unknown):
        return opened
    if opened.error in INVALID or any(REFUSAL.search(line) for line in opened.lines):
        return REJECTED
    if opened.error is None and not opened.hung:
        # Numbers beyond 32 bits end in an exception that nothing catches (seen in 1.4.0 to 1.20.0).
        thrown = any("LargestUInt" in line or "Json" in line for line in opened.lines)
        return (
            REJECTED if thrown else Unknown("libcufile died: {}".format("; ".join(opened.lines[-2:]) or "no message"))
        )
    control = _opened(document, CUFILE_CONTROL)
    if isinstance(control, Unknown):
        return control
    if any(REFUSAL.search(line) for line in control.lines):
        return ACCEPTED
    what = "; ".join(control.lines[:2]) or "no message"
    return Unknown(f"libcufile stops before it reads its configuration: {what}")


def refusal(opened: Opened) -> List[str]:
    """The library's own lines about a refused configuration."""
    return [line for line in opened.lines if _REASON.search(line)]


def _library(document: Document) -> Maybe[Optional[str]]:
    """The version in the name of the file behind the SONAME, which is how NVIDIA and Debian name it."""
    loaded = document.attempted(CUFILE_OPEN)
    if isinstance(loaded, Unknown):
        return loaded
    found = re.search(r"gdsdeploy: loaded .*?/libcufile\.so\.(\d+\.\d+\S*)", loaded.stdout)
    if found:
        return found.group(1)
    if "gdsdeploy: not loaded" not in loaded.stdout:
        return Unknown("the name of the loaded libcufile has no version")
    unknown: Optional[Unknown] = None
    for folder in LIBRARY_FOLDERS:
        names = document.names(folder + "/" + LIBRARY_PATTERN)
        if isinstance(names, Unknown):
            unknown = names
        elif names:
            return _behind(document, folder, names)
    return unknown


def _behind(document: Document, folder: str, names: Tuple[str, ...]) -> Maybe[Optional[str]]:
    versions: Dict[str, str] = {}
    for name in names:
        target = document.link(folder + "/" + name)
        base = posixpath.basename(target) if isinstance(target, str) else name
        found = re.match(r"libcufile\.so\.(\d+\.\d+\S*)$", base)
        if found:
            versions[name] = found.group(1)
    return versions.get("libcufile.so.0") or Unknown("no version in the names " + ", ".join(names))
