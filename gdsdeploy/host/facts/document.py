"""Reads an evidence document without trusting its shape.

It keeps three answers apart: a value; ``None`` for what the collector looked for and didn't find; UndecidedError for
what it didn't look for or couldn't read.  Only the second proves absence.

Reads saved evidence, for the controller's verbs and for the program on hosts.

It accepts the output of ``evidence --json``, the JSON of ``validate --with-evidence``, and a support bundle: the
archive, or the folder that it was unpacked to.

Hosts of a fleet are alike: a text that one host had needs no second reading where the next one has the same.
"""

from __future__ import annotations

import calendar
import glob
import io
import os
import posixpath
import re
import shlex
import sys
import time
from functools import lru_cache, partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple, Union

from ..errors import HostError
from ..io import jsontext, reading
from ..paths import CUFILE_CONTROL, CUFILE_OPEN, CUFILE_SONAME, GDSCHECK
from ..rootdir import open_file
from .unknown import UndecidedError, Value, if_known

#: Errors that mean "there is no such thing".
ABSENT = ("ENOENT", "ENOTDIR", "ENODEV", "ENXIO")
#: The words for a record of an error, unless its reader has better ones.
READ = "could not be read"
#: As in process.py.
NOT_FOUND = 127
TIMED_OUT = 124
#: Times in a document: UTC.
TIME = "%Y-%m-%dT%H:%M:%SZ"
#: Programs whose record always has the log that they wrote, empty or not.
OPENS = (CUFILE_OPEN, CUFILE_CONTROL)
LOGGED = (*OPENS, GDSCHECK)
#: As the program that opens it would say.
NO_LIBRARY = f"gdsdeploy: not loaded: {CUFILE_SONAME}: the host has no such file\n"


class Ran(NamedTuple):
    """A program's run: its exit status (124: killed at its time limit, 127: not installed) and its output."""

    status: int
    stdout: str
    stderr: str
    log: str = ""


#: (section, key) → what was there; see _Watched.
Reads = Dict[Tuple[str, str], Any]
#: In place of a key: the section's keys, and all of it.
_KEYS, _ALL = "\0keys", "\0all"
_TIMES = (("", "collected_at"), ("", "seconds"))


class _Watched(Dict[str, Any]):
    """A section that tells what is read of it."""

    def __init__(self, name: str, section: Mapping[str, Any], frames: List[Reads]) -> None:
        super().__init__(section)
        self._name, self._frames = name, frames

    def now(self, key: str) -> Any:
        """What a reader of ``key`` gets."""
        if key == _KEYS:
            return list(dict.keys(self))
        return dict(dict.items(self)) if key == _ALL else dict.get(self, key, _KEYS)

    def _tell(self, key: str) -> None:
        self._frames[-1][self._name, key] = self.now(key)

    def __getitem__(self, key: str) -> Any:
        self._tell(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._tell(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._tell(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._tell(_KEYS)
        return super().__iter__()

    def __len__(self) -> int:
        self._tell(_KEYS)
        return super().__len__()

    def keys(self) -> Any:
        self._tell(_KEYS)
        return super().keys()

    def values(self) -> Any:
        self._tell(_ALL)
        return super().values()

    def items(self) -> Any:
        self._tell(_ALL)
        return super().items()

    def __eq__(self, other: object) -> bool:
        self._tell(_ALL)
        return super().__eq__(other)

    __hash__ = None


class Document:
    """An evidence document.  Its methods raise UndecidedError alone, however malformed the document is."""

    def __init__(self, value: Any, watched: bool = False) -> None:
        """watched: keep what each fact and each check reads."""
        #: all that was collected
        self.value: Dict[str, Any] = value if isinstance(value, dict) else {}
        #: what is being computed, innermost last, each with what it has read; None: nothing is kept
        self.frames: Optional[List[Reads]] = [{}] if watched else None
        if self.frames is not None:
            sections = {name: each for name, each in self.value.items() if isinstance(each, dict)}
            watching = {name: _Watched(name, section, self.frames) for name, section in sections.items()}
            self.value = _Watched("", {**self.value, **watching}, self.frames)
        self._sections = {name: section for name, section in dict.items(self.value) if isinstance(section, dict)}

    def text(self, path: str, section: str = "files") -> Optional[str]:
        """The whole of a file, or an entry of another section of texts."""
        return self._read(section, path, _text)

    def line(self, path: str) -> Optional[str]:
        """A file of one line, without its end."""
        text = self.text(path)
        return text if text is None else text.strip()

    def decimal(self, path: str, digits: int = 9) -> Optional[int]:
        """A file with a number of at most so many digits."""
        text = self.line(path)
        if text is not None and not (text.isascii() and text.isdecimal() and len(text) <= digits):
            raise UndecidedError(f"{path} says {text!r}")
        return None if text is None else int(text)

    def link(self, path: str) -> Optional[str]:
        """A link's target, made absolute."""
        target = self._read("links", path, _text)
        return target if target is None else posixpath.normpath(posixpath.join(posixpath.dirname(path), target))

    def names(self, path: str, section: str = "listings") -> Optional[Tuple[str, ...]]:
        """The names in a folder, or those that match a pattern; or an entry of another section of lists of texts."""
        return self._read(section, path, _texts)

    def existing(self, path: str) -> Tuple[str, ...]:
        """The names in a folder; empty where there is none, or it is unknown."""
        return if_known(lambda: self.names(path), None) or ()

    def lines(self, path: str) -> Optional[Tuple[str, ...]]:
        """The recorded lines of a large file."""
        return self._read("excerpts", path, lambda value: _texts(_get(value, "lines")))

    def looked_for(self, path: str, word: str) -> bool:
        """Whether the collector recorded lines with ``word``: older versions recorded fewer lines."""
        value = self._section("excerpts").get(path)
        return isinstance(value, dict) and word in str(value.get("pattern", ""))

    def ran(self, name: str) -> Ran:
        """A program's run that began, ended in time, and wrote no more than was kept."""
        run = self.attempted(name)
        if run.status == NOT_FOUND:
            raise UndecidedError(f"{name} could not be run: {run.stderr.strip()}")
        if run.status == TIMED_OUT:
            raise UndecidedError(f"{name} had not ended when its time was up")
        return run

    def output(self, name: str, words: str) -> str:
        """What a program printed that ended well; ``words`` is its name in the reason why another one didn't."""
        run = self.ran(name)
        if run.status != 0:
            said = run.stderr.strip() or run.stdout[:200].strip()
            raise UndecidedError(f"{words}: {said or f'exit status {run.status}'}")
        return run.stdout

    def attempted(self, name: str) -> Ran:
        """A program's run, whatever its exit status, which wrote no more than was kept."""
        value = self._section("commands").get(name)
        if value is None and name in OPENS and if_known(lambda: self.names(CUFILE_SONAME), None) == ():
            return Ran(3, NO_LIBRARY, "", "")
        if not isinstance(value, dict):
            raise UndecidedError(f"{name} was not run")
        # A missing part is no empty one: the program's output is then unknown.
        status, stdout, stderr = _number(value.get("status")), _text(value.get("stdout")), _text(value.get("stderr"))
        log = _text(value.get("log", None if name in LOGGED else ""))
        if status is None or stdout is None or stderr is None or log is None:
            raise UndecidedError(f"the record of {name} is malformed")
        if "error" in value:
            raise UndecidedError("the output of {} is {}".format(name, value["error"]))
        return Ran(status, stdout, stderr, log)

    def age(self, name: str) -> float:
        """Seconds from a program's run to the collection of the document; 0 where it doesn't say more."""
        asked = _get(self._section("commands").get(name), "asked_at")
        if asked is None:
            return 0.0
        try:
            begin, end = (calendar.timegm(time.strptime(text, TIME)) for text in (asked, self.collected_at()))
        except (TypeError, ValueError):
            return 0.0
        return max(0.0, end - begin)

    def printed(self, name: str) -> str:
        """What was kept of a program's output, complete or not; it proves what it shows, and no absence."""
        text = _get(self._section("commands").get(name), "stdout")
        return text if isinstance(text, str) else ""

    def module(self, path: str) -> Dict[str, Any]:
        """The record of a module file."""
        value = self._section("modules").get(path)
        if not isinstance(value, dict):
            raise UndecidedError(f"{path} was not read")
        if "error" in value:
            raise UndecidedError(str(value["error"]))
        return value

    def tree(self, path: str) -> str:
        """The digest of a driver's source tree."""
        digest = _text(_get(self._section("trees").get(path), "digest"))
        return collected(digest, f"the source tree {path} could not be read")

    def host(self, *keys: str) -> str:
        value: Any = self._section("host")
        for key in keys:
            value = _get(value, key)
        return collected(_text(value) or None, "host.{} was not recorded".format(".".join(keys)))

    def uid(self) -> int:
        value = self._section("host").get("uid")
        return collected(value if isinstance(value, int) and value >= 0 else None, "host.uid was not recorded")

    def environment(self) -> Dict[str, str]:
        """The collecting program's environment variables that concern this stack."""
        value = self.value.get("environment")
        if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
            return {str(name): text for name, text in value.items()}
        raise UndecidedError("the environment was not recorded")

    def number(self, section: str, key: str, name: str = "") -> Optional[int]:
        """The entry of a section of numbers.  name: what it is in messages, if it isn't the key."""
        return self._read(section, key, _number, name=name)

    def features(self, device: str) -> Optional[Dict[str, int]]:
        """The sets of features in the ext4 superblock of a block device."""
        return self._read("features", device, _numbers, name="the superblock of " + device)

    def record(self, section: str, key: str, failed: str = READ) -> Optional[Dict[str, Any]]:
        """A record of several values; for an error the reason stands after the words ``failed``."""
        return self._read(section, key, _record, failed)

    def opens(self, path: str) -> Optional[str]:
        """``ok``, or the name of the error with which the collecting program couldn't open the file."""
        return self._read("opens", path, lambda value: _text(value if isinstance(value, str) else _get(value, "error")))

    def recorded(self, section: str, key: str) -> bool:
        """Whether the collector looked at an entry of a section, whatever it found."""
        return key in self._section(section)

    def has(self, section: str) -> bool:
        """Whether the document has the section, empty or not."""
        return section in self._sections

    def paths(self, section: str) -> Tuple[str, ...]:
        """The keys of a section's entries."""
        return tuple(sorted(str(key) for key in self._section(section)))

    def collected_at(self) -> str:
        value = self.value.get("collected_at")
        return value if isinstance(value, str) else ""

    def seconds(self) -> float:
        value = self.value.get("seconds")
        return float(value) if isinstance(value, (int, float)) else 0.0

    def gaps(self) -> Tuple[str, ...]:
        """Collectors that didn't finish, each as one sentence."""
        value = self.value.get("gaps")
        gaps = [gap for gap in value if isinstance(gap, dict)] if isinstance(value, list) else []
        return tuple("{}: {}".format(gap.get("collector"), gap.get("reason")) for gap in gaps)

    def not_collected(self, what: str, collector: str) -> UndecidedError:
        """Why the evidence doesn't have an entry that this release's ``collector`` records: ``what`` names it."""
        gap = next((gap for gap in self.gaps() if gap.startswith(collector + ": ")), "")
        return UndecidedError(f"{what} not collected: {gap or 'an older gdsdeploy recorded this evidence'}")

    def watching(self, compute: Callable[[], Value]) -> Tuple[Value, Reads]:
        """What ``compute`` returns, and what it has read of this document; nothing where it isn't watched."""
        if self.frames is None:
            return compute(), {}
        self.frames.append({})
        try:
            value = compute()
        finally:
            reads = self.frames.pop()
        return value, reads

    @property
    def own_reads(self) -> Reads:
        """What was read before any check, but for the time of the collection."""
        assert self.frames is not None
        return {place: content for place, content in self.frames[0].items() if place not in _TIMES}

    def same(self, reads: Reads) -> bool:
        """Whether another document's readers would have got the same from this one, which is watched."""
        value = self.value
        assert isinstance(value, _Watched)
        for (name, key), content in reads.items():
            section = dict.get(value, name) if name else value
            if not isinstance(section, _Watched) or section.now(key) != content:
                return False
        return True

    def _section(self, section: str) -> Dict[str, Any]:
        return self._sections.get(section, {})

    def _read(
        self, section: str, key: str, read: Callable[[Any], Optional[Value]], failed: str = READ, name: str = ""
    ) -> Optional[Value]:
        """What ``read`` makes of the record, None where the record says that nothing exists.

        read: returns None for a malformed record.  name: the entry's name in messages, if it isn't the key.
        """
        entries = self._section(section)
        if key not in entries:
            raise UndecidedError(f"{key} was not looked at")
        record = entries[key]
        error = _get(record, "error")
        if error in ABSENT:
            return None
        if record is None:
            raise UndecidedError(f"{key} was not recorded")
        return collected(read(record), f"{name or key} {failed}: {error or 'malformed record'}")


def collected(value: Optional[Value], why_not: str) -> Value:
    """A value that isn't None; raises UndecidedError with the reason ``why_not``."""
    if value is None:
        raise UndecidedError(why_not)
    return value


def group_of(match: Optional[re.Match[str]], why_not: str) -> str:
    """The first group; raises UndecidedError where nothing matches."""
    return str(collected(match, why_not).group(1))


def recorded_lines(document: Document, path: str) -> Tuple[str, ...]:
    """The lines of a large file; none where it isn't there, or they aren't known."""
    return if_known(lambda: document.lines(path) or (), ())


def there(value: Optional[Value], path: str) -> Value:
    """What the document has of ``path``; raises UndecidedError where the host has no such file or program."""
    return collected(value, "there is no " + path)


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _record(value: Any) -> Optional[Dict[str, Any]]:
    return value if isinstance(value, dict) and "error" not in value else None


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> Optional[Tuple[str, ...]]:
    return tuple(value) if isinstance(value, list) and all(isinstance(text, str) for text in value) else None


def _number(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _numbers(value: Any) -> Optional[Dict[str, int]]:
    valid = isinstance(value, dict) and value and all(isinstance(number, int) for number in value.values())
    return dict(value) if valid else None


#: The folder in a support bundle's archive, and the version of its manifest.
FOLDER = "gdsdeploy-support"
VERSION = 1
#: Bytes of the index of a bundle, in which each host has a line or two.
INDEX = 64 * 1024 * 1024
#: The name of the host of a file that isn't a bundle.
UNNAMED = ""
#: Names of hosts in a message.
_SHOWN = 20
_HINT = "Save it on the host: python3 -I -S /usr/lib/gdsdeploy/gdsdeploy-host.pyz evidence --json >FILE"
#: The files of a bundle that are read, and those with evidence, by host.
_INDEX = "manifest.json"
_MEMBER = r"manifest\.json|hosts/[A-Za-z0-9][A-Za-z0-9._-]{0,62}/(evidence|expectation)\.json"
_EVIDENCE = re.compile(r"hosts/([^/]+)/evidence\.json")
#: The first bytes of gzip, and the mark that a tar header has from byte 257 on.
_GZIP, _TAR, _HEADER = b"\x1f\x8b", b"ustar", 512


class EvidenceFileError(HostError):
    """A file can't be used as evidence; ``message`` has the file and the reason, ``hint`` what to do."""


def read(path: str) -> Dict[str, Dict[str, Any]]:
    """Host → its evidence; one entry with the name UNNAMED for a file that is not a bundle.

    path: ``-`` reads standard input.  Raises EvidenceFileError, also for a bundle without evidence.
    """
    return {host: evidence() for host, evidence in _saved(path).items()}


def one(path: str, host: str = "") -> Dict[str, Any]:
    """The evidence of one host.  host: selects one in a bundle with several; any other file has one only.

    Raises EvidenceFileError, also where a bundle doesn't have ``host``, or has several hosts and ``host`` is empty.
    """
    by_host = _saved(path)
    found = by_host.get(UNNAMED) or by_host.get(host)
    if found:
        return found()
    more = f" and {len(by_host) - _SHOWN} more" if len(by_host) > _SHOWN else ""
    names = ", ".join(list(by_host)[:_SHOWN]) + more
    if host:
        raise EvidenceFileError(f"{path}: it has no evidence of {host}; it has that of {names}")
    if len(by_host) > 1:
        hint = "Name one as HOST where the command takes it, or hosts/HOST/evidence.json of the unpacked bundle"
        raise EvidenceFileError(f"{path}: evidence of several hosts: {names}", hint)
    return next(iter(by_host.values()))()


def _saved(path: str) -> Dict[str, Callable[[], Dict[str, Any]]]:
    """Host → what reads its evidence."""
    if path != "-" and is_bundle(path):
        _, files = bundle(path)
        names = {match.group(1): name for name in sorted(files) for match in [_EVIDENCE.fullmatch(name)] if match}
        if not names:
            raise EvidenceFileError(f"{path}: this support bundle has no host's evidence", _HINT)
        return {host: partial(_member, path, name, files) for host, name in names.items()}
    try:
        text = sys.stdin.read(jsontext.LIMIT + 1) if path == "-" else _file_text(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError:
        raise EvidenceFileError(f"{path}: not evidence: neither text nor a support bundle", _HINT) from None
    return {UNNAMED: partial(document, path, text)}


def _member(path: str, name: str, files: Mapping[str, bytes]) -> Dict[str, Any]:
    return document(f"{path}: {name}", files[name])


def is_bundle(path: str) -> bool:
    """Whether ``path`` is a folder or an archive, damaged or not; raises EvidenceFileError where it cannot be read."""
    if os.path.isdir(path):
        return True
    try:
        header = reading.beginning(path, _HEADER)
    except OSError as error:
        raise _unreadable(path, error) from None
    return header.startswith(_GZIP) or header[257:262] == _TAR


def bundle(path: str) -> Tuple[Dict[str, Any], Mapping[str, bytes]]:
    """(manifest, name → UTF-8 of each file) of a support bundle, without unpacking it; raises EvidenceFileError."""
    import zlib

    from ..io import tarball

    if not is_bundle(path):
        hint = "Validate the evidence of one host with: gdsdeploy-host.pyz validate --evidence FILE --expectation FILE"
        raise EvidenceFileError(f"{path}: isn't a support bundle", hint)
    try:
        files = _folder(path) if os.path.isdir(path) else tarball.files(path, limit_of, f"{FOLDER}/")
        manifest = jsontext.loads(files[_INDEX].decode(), limit=INDEX)
        version = manifest["version"]
    except OSError as error:
        # Among these are errors of gzip, which have no number.
        raise (_unreadable(path, error) if error.errno else damaged(path, error)) from None
    except (zlib.error, EOFError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, error) from None
    if version != VERSION:
        raise EvidenceFileError(f"{path}: a bundle of version {str(version)[:20]}; this program reads {VERSION}")
    return manifest, files


def damaged(path: str, error: Exception) -> EvidenceFileError:
    """The error for a file that isn't a support bundle, or has lost a part."""
    words = f"it has no {error.args[0]}" if isinstance(error, KeyError) else str(error)
    hint = f"Make it again: gdsdeploy support-bundle FLEET -o {shlex.quote(path)}"
    return EvidenceFileError(f"{path}: isn't a support bundle, or is a damaged one ({words})", hint)


def document(where: str, text: Union[str, bytes]) -> Dict[str, Any]:
    """The evidence in the JSON ``text``, at its top or as ``evidence``.  Raises EvidenceFileError naming ``where``."""
    try:
        value = jsontext.loads(text if isinstance(text, str) else text.decode())
    except ValueError as error:
        raise EvidenceFileError(f"{where}: not evidence: {error}", _HINT) from None
    inside = value.get("evidence") if isinstance(value, dict) else None
    evidence = inside if isinstance(inside, dict) else value
    if not isinstance(evidence, dict) or not isinstance(evidence.get("files"), dict):
        raise EvidenceFileError(f"{where}: not evidence: JSON of another kind, without the files of a host", _HINT)
    return evidence


def _file_text(path: str) -> str:
    """The beginning of a file: one character more than the limit of JSON."""
    with io.TextIOWrapper(open_file(path), encoding="utf-8") as file:
        return file.read(jsontext.LIMIT + 1)


def _unreadable(path: str, error: OSError) -> EvidenceFileError:
    return EvidenceFileError(f"{path}: cannot be read: {error.strerror or error}", reading.look(path))


def limit_of(name: str) -> int:
    """Bytes that a file of a bundle may have; 0: it is for people."""
    return (INDEX if name == _INDEX else jsontext.LIMIT) if re.fullmatch(_MEMBER, name) else 0


def _folder(path: str) -> Mapping[str, bytes]:
    """Links are not followed: a bundle has none."""
    from ..io import tarball

    top = os.path.join(path, FOLDER) if os.path.isdir(os.path.join(path, FOLDER)) else path
    files: tarball.Packed[bytes] = tarball.Packed()
    hosts = glob.glob(os.path.join(glob.escape(top), "hosts", "*", "*.json"))
    for file in (os.path.join(top, _INDEX), *sorted(hosts)):
        name = os.path.relpath(file, top)
        if limit_of(name) and os.path.isfile(file) and not os.path.islink(file):
            files[name] = reading.whole(file, limit_of(name))
    return files


#: For pure functions of texts; nothing may change their results.  A fleet has fewer kinds of hosts than this.
once_for_alike = lru_cache(maxsize=256)
