"""Support bundles: evidence from the hosts, redacted, in one file for ``validate --evidence`` to judge offline.

A gzipped tar archive, the same bytes for the same content::

    gdsdeploy-support/
      README.txt                     what it is and what was taken out
      manifest.json                  versions, when, hosts and errors, waivers, what was taken out
      fleet.yml                      masked, without comments
      gdsdeploy.lock
      report.json                    what validate said, as its --json prints it
      hosts/<name>/evidence.json     what the host's files and programs said
      hosts/<name>/expectation.json  what was expected of the host
      logs/<name>                    the end of the controller's logs
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import json
import platform
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Optional

from gdsdeploy import __version__, console, paths
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.machine import Machine
from gdsdeploy.converge.plan_fleet import EVIDENCE
from gdsdeploy.errors import GdsError, HostUnreachable, translated
from gdsdeploy.fleetfile import selection
from gdsdeploy.host.checks import Memory
from gdsdeploy.host.errors import DesiredError
from gdsdeploy.host.facts import document
from gdsdeploy.host.facts.document import FOLDER, VERSION, limit_of
from gdsdeploy.host.io import tarball, wording
from gdsdeploy.host.io.tarball import Packed
from gdsdeploy.host.model import schema
from gdsdeploy.host.model.expectation import Expectation, from_json as expectation_from
from gdsdeploy.host.model.finding import Waiver
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.hostnames import grouped, words
from gdsdeploy.model.lock import Lock
from gdsdeploy.report import formats
from gdsdeploy.report.model import HostReport, Report, Trouble, failures_in, trouble_from
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.ssh.reply_schema import evidence_errors
from gdsdeploy.ssh.transport import answer_line, ask
from gdsdeploy.validate import fleet_validation
from gdsdeploy.validate.fleet_validation import (
    ValidateOptions,
    fit_expectation,
    host_report,
    line,
    report_without_evidence,
    utc_now,
)
from gdsdeploy.validate.redact import HOST, SERIAL, USER, Redactor, mask_fleet

#: Bytes of a log that are packed.
LOG_LIMIT = 512 * 1024
#: Hosts of a bundle, each with two files.
MOST = (tarball.MEMBERS - 100) // 2
_FEWER = "Make several bundles with --limit HOST[,HOST…]"
#: What a bundle has of a host's evidence: what facts are read from, and where they are from.
SECTIONS: Final = frozenset(reply_schema.Evidence.model_fields)

README = """\
A support bundle of gdsdeploy {version}, made on {when} from {fleet}.

It holds the evidence of {count}, what was expected of them, and the verdicts. Judge it again, without the hosts:

    gdsdeploy validate --evidence THIS-FILE

Before it was packed, the following was replaced, the same thing always by the same word:

{redacted}

Sections of evidence that were left out, because this gdsdeploy doesn't know them: {left_out}
"""


@dataclass(frozen=True)
class BundleHost:
    """One host of a bundle: evidence, or the reason why there is none."""

    expectation: Expectation
    evidence: dict[str, Any] | None
    trouble: Trouble | None = None
    waivers: tuple[Waiver, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Bundle:
    """All that is packed."""

    fleet: str
    lock: str
    #: RFC 3339, UTC: when the hosts were asked
    when: str
    hosts: Mapping[str, BundleHost]
    #: name → text, whole or in parts, of what goes along: fleet.yml, gdsdeploy.lock, report.json, logs
    texts: Mapping[str, str | Iterable[str]] = field(default_factory=dict)
    #: sections of the hosts' evidence that aren't in it
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class _ManifestHost:
    """A host in the manifest."""

    error: Optional[Trouble]  # noqa: UP045 - the reader of schemas knows this form
    waivers: list[Waiver]
    seconds: float


@dataclass(frozen=True)
class _Manifest:
    """What is read of a manifest."""

    fleet: str
    lock: str
    when: str
    hosts: dict[str, _ManifestHost]


def redact_bundle(bundle: Bundle, redactor: Redactor) -> Bundle:
    """The bundle without what identifies a site; verdicts stay what they are.

    Raises GdsError where two hosts would have one name.
    """
    names = {name: redactor.name(name) for name in bundle.hosts}
    for name, others in grouped((name, other) for name, other in names.items()).items():
        if len(others) > 1:
            raise GdsError(f"{words(others)}: all of them would be {name} in the bundle", hint="Pack each with --limit")
    hosts, left_out = Packed[BundleHost](), set[str]()
    for name, host in bundle.hosts.items():
        left_out.update(set(host.evidence or ()) - SECTIONS)
        hosts[names[name]] = _redacted_host(host, redactor)
    texts = {name: redactor.text(text) for name, text in bundle.texts.items() if isinstance(text, str)}
    return Bundle(redactor.text(bundle.fleet), bundle.lock, bundle.when, hosts, texts, tuple(sorted(left_out)))


def _redacted_host(host: BundleHost, redactor: Redactor) -> BundleHost:
    """The same host, with the declared sections of its evidence alone."""
    evidence = host.evidence
    if evidence is not None:
        binaries = evidence.get("binaries")
        evidence = {name: redactor.value(section) for name, section in evidence.items() if name in SECTIONS}
        if binaries:
            redacted = {redactor.text(path): _redacted_binary(path, data, redactor) for path, data in binaries.items()}
            evidence["binaries"] = redacted
        if own := _own_name(host.evidence):
            evidence["host"]["name"] = redactor.name(own)
    expected = {
        **redactor.value(asdict(host.expectation)),
        "host": redactor.name(host.expectation.host),
        "cufile_sha256": _digest(host, redactor),
    }
    said = host.trouble
    trouble = said and replace(said, message=redactor.text(said.message), hint=redactor.text(said.hint))
    waivers = tuple(
        replace(each, check=redactor.text(each.check), reason=redactor.text(each.reason)) for each in host.waivers
    )
    return BundleHost(expectation_from(json.dumps(expected)), evidence, trouble, waivers, host.seconds)


def _redacted_binary(path: str, data: Any, redactor: Redactor) -> Any:
    """Hex digits; those of a boot loader's variable are four bytes and a text (The Boot Loader Interface)."""
    if not isinstance(data, str):
        return redactor.value(data)
    if "/efivars/Loader" in path:
        with contextlib.suppress(ValueError):
            value = bytes.fromhex(data)
            return (value[:4] + redactor.text(value[4:].decode("utf-16-le")).encode("utf-16-le")).hex()
    return data


def pack(bundle: Bundle, taken_out: Mapping[str, int]) -> bytes:
    """The archive.  taken_out: kind → how many different ones were replaced.

    Raises GdsError for one that :func:`read` would refuse.
    """
    count = wording.count(len(bundle.hosts), "host")
    hosts = {
        name: {
            "error": asdict(host.trouble) if host.trouble else None,
            "waivers": [asdict(waiver) for waiver in host.waivers],
            "seconds": round(host.seconds, 3),
        }
        for name, host in bundle.hosts.items()
    }
    manifest = {
        "version": VERSION,
        "tool": f"gdsdeploy {__version__}",
        "python": platform.python_version(),
        "when": bundle.when,
        "fleet": bundle.fleet,
        "lock": bundle.lock,
        "hosts": hosts,
        "redacted": dict(taken_out),
        "left_out": list(bundle.left_out),
    }
    readme = README.format(
        version=__version__,
        when=bundle.when,
        fleet=bundle.fleet,
        count=count,
        redacted="\n".join(f"  {kind}: {number}" for kind, number in taken_out.items()) or "  nothing",
        left_out=", ".join(bundle.left_out) or "none",
    )
    texts = {"manifest.json": json.dumps(manifest, indent=1) + "\n", "README.txt": readme}
    # The report of many hosts is larger than what a reader takes before it has seen their files.
    return _archive(itertools.chain(texts.items(), _host_files(bundle.hosts), bundle.texts.items()))


def _host_files(hosts: Mapping[str, BundleHost]) -> Iterator[tuple[str, str]]:
    for name, host in hosts.items():
        yield f"hosts/{name}/expectation.json", host.expectation.to_json()
        if host.evidence is not None:
            text = json.dumps(host.evidence, indent=1, sort_keys=True) + "\n"
            file = f"hosts/{name}/evidence.json"
            yield file, text if len(text) <= limit_of(file) else json.dumps(host.evidence, separators=(",", ":"))


def read(path: Path) -> Bundle:
    """Read a bundle, packed or not, without unpacking it to disk; raises GdsError for anything else."""
    with evidence_errors():
        manifest, files = document.bundle(str(path))
        with translated((KeyError, ValueError, DesiredError), lambda error: document.damaged(str(path), error)):
            values = {field.name: manifest.get(field.name) for field in fields(_Manifest)}
            contents = schema.load(_Manifest, values, "manifest.json", lines=True)
            hosts = Packed[BundleHost]()
            for name, host in contents.hosts.items():
                hosts[name] = _host(name, host, files)
            time.strptime(contents.when, "%Y-%m-%dT%H:%M:%SZ")
        return Bundle(contents.fleet, contents.lock, contents.when, hosts)


def _host(name: str, host: _ManifestHost, files: Mapping[str, bytes]) -> BundleHost:
    expected, file = expectation_from(files[f"hosts/{name}/expectation.json"].decode()), f"hosts/{name}/evidence.json"
    evidence = document.document(file, files[file]) if file in files else None
    return BundleHost(expected, evidence, host.error, tuple(host.waivers), float(host.seconds))


def _archive(entries: Iterable[tuple[str, str | Iterable[str]]]) -> bytes:
    packed, left = io.BytesIO(), tarball.UNPACKED
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as plain,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, text in entries:
            with tempfile.SpooledTemporaryFile(tarball.EACH) as file:
                file.writelines(part.encode() for part in ([text] if isinstance(text, str) else text))
                entry = tarfile.TarInfo(f"{FOLDER}/{name}")
                entry.size, most = file.tell(), limit_of(name)
                left += (tarball.EACH if most else 0) - entry.size
                if left < 0 or (most and entry.size > most):
                    limit = f"{most:,}" if left >= 0 else f"{entry.size + left:,}, which the others leave"
                    words = f"{name} has {entry.size:,} bytes; the limit is {limit}"
                    raise GdsError(f"the bundle can't be read again: {words}", hint=_FEWER)
                file.seek(0)
                archive.addfile(entry, file)
    return packed.getvalue()


def _digest(host: BundleHost, redactor: Redactor) -> str:
    """The digest that the host's cufile.json has to have; of the redacted one where the original has it."""
    files = (host.evidence or {}).get("files") or {}
    text = files.get(host.expectation.cufile_path)
    if isinstance(text, str) and hashlib.sha256(text.encode()).hexdigest() == host.expectation.cufile_sha256:
        return hashlib.sha256(redactor.text(text).encode()).hexdigest()
    return host.expectation.cufile_sha256


def last_log(folder: Path) -> dict[str, str]:
    """The end of the log in ``folder`` that was written last, in whole lines, by the name that it gets in a bundle."""
    newest = max(folder.glob("provision-*.log"), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return {}
    end = newest.read_bytes()[-LOG_LIMIT:].decode(errors="replace")
    return {f"logs/{newest.name}": end.partition("\n")[2] if len(end) >= LOG_LIMIT else end}


#: A numeric address.
_NUMERIC = re.compile(r"[\d.:a-fA-F]+")


def pack_fleet(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    hide_names: bool = False,
    timeout: float = TIMEOUT,
    progress: Callable[[str], None],
    step: console.Step,
) -> tuple[bytes, Mapping[str, int]]:
    """The archive of a support bundle, and kind → how many different things of it were replaced.

    timeout: seconds for each host; one that cannot be asked is in the bundle with the reason, and fails ``step``.
    Raises GdsError for more than a bundle can have, where possible before a host is asked.
    """
    if len(names) > MOST:
        raise GdsError(f"{len(names):,} hosts: a bundle has {MOST:,} at most", hint=_FEWER)
    when, hosts = utc_now(), Packed[BundleHost]()
    redactor = redactor_for(fleet, names, hide_names=hide_names)
    text_of = {
        "fleet.yml": mask_fleet(fleet_path.read_text(encoding="utf-8"), redactor.secret),
        "gdsdeploy.lock": lockfile.beside(fleet_path).read_text(encoding="utf-8"),
        **last_log(paths.runs(fleet_path)),
    }
    for name, text in text_of.items():
        if name.startswith("logs/"):
            redactor.learn_log(text, fleet.everyone())
    expected = {name: expectation(Machine(fleet, lock, name)) for name in names}
    stdin = {name: expectation.to_json().encode() for name, expectation in expected.items()}
    for name in names:
        # In the fleet's order, whichever answers first.
        hosts[name] = BundleHost(expected[name], None)
    evidence_of = partial(
        reply_schema.judge_reply, question="evidence", shape=reply_schema.Evidence, judge=dict[str, Any]
    )
    argv = (*EVIDENCE, "--trail", "--nvlink")
    for answer, evidence in ask(
        fleet, fleet_path, names, argv, evidence_of, timeout=timeout, stdin=stdin, read_only=True
    ):
        name = answer.host
        trouble = trouble_from(evidence) if isinstance(evidence, GdsError) else None
        host = BundleHost(
            fit_expectation(fleet, lock, expected[name], answer),
            None if isinstance(evidence, GdsError) else evidence,
            trouble,
            tuple(selection.waivers_of(fleet, name)),
            answer.seconds,
        )
        learn_host(redactor, host, hide_names=hide_names)
        hosts[name] = host
        progress(answer_line(answer, evidence))
    step.failure = failures_in({name: host.trouble and GdsError("") for name, host in hosts.items()})
    ordered = Bundle(fleet_path.name, lock.digest, when, hosts, text_of)
    redacted = redact_bundle(ordered, redactor)
    if kept := redactor.kept(HOST):
        console.warn(f"{words(kept)}: stays in texts of the evidence, where every host has this word")
    if redacted.left_out:
        console.warn(f"left out of the evidence, as this gdsdeploy doesn't know it: {', '.join(redacted.left_out)}")
    report = formats.json_pieces(judge(redacted, progress=lambda _: None))
    whole = replace(redacted, texts={**redacted.texts, "report.json": report})
    return pack(whole, redactor.summary()), redactor.summary()


def judge(
    bundle: Bundle, options: ValidateOptions | None = None, *, fleet: str = "", progress: Callable[[str], None]
) -> Report:
    """The checks' verdict on a bundle's evidence, with the waivers of its day.  fleet: its name in the report."""
    options = replace(options or ValidateOptions(), day=bundle.when[:10])
    reports, waivers_of, memory = list[HostReport](), dict[str, list[Waiver]](), Memory()
    for name, host in bundle.hosts.items():
        waivers_of[name] = [*host.waivers, *options.waivers]
        reports.append(_host_report(name, host, options, waivers_of[name], memory))
        progress(line(reports[-1]))
    waiver_uses = fleet_validation.waiver_uses(waivers_of, reports, options.today())
    return Report(fleet or bundle.fleet, bundle.lock, bundle.when, tuple(reports), waiver_uses)


def _host_report(
    name: str, host: BundleHost, options: ValidateOptions, waivers: Sequence[Waiver], memory: Memory
) -> HostReport:
    if host.evidence is None:
        trouble = host.trouble or trouble_from(HostUnreachable(f"{name}: the bundle has no evidence of it"))
        return HostReport(name, host.expectation.profile, trouble=trouble, seconds=host.seconds)
    try:
        with reply_schema.unexpected_errors(name):
            return host_report(host.expectation, host.evidence, options, waivers, host.seconds, memory)
    except GdsError as error:
        return report_without_evidence(host.expectation, error, host.seconds)


def redactor_for(fleet: Fleet | None, names: Sequence[str], *, hide_names: bool) -> Redactor:
    """The redactor for what identifies a fleet's site; it replaces the hosts' names only with ``hide_names``."""
    redactor = Redactor()
    known = dict.fromkeys([*(fleet.everyone() if fleet else ()), *names])
    for name in known if hide_names else ():
        redactor.learn(HOST, name)
    for ssh in map(fleet.connection, fleet.everyone()) if fleet else ():
        if ssh.address and ssh.address not in known and not _NUMERIC.fullmatch(ssh.address):
            redactor.learn("address", ssh.address)
            known[ssh.address] = None
        redactor.learn(USER, ssh.user or "")
    for name in known:
        _learn_domains(redactor, name)
    return redactor


def learn_host(redactor: Redactor, host: BundleHost, *, hide_names: bool) -> None:
    """Learn what the evidence of a host says to be its name, serial numbers, and what only looks like an address."""
    evidence, own = host.evidence or {}, _own_name(host.evidence)
    for name in (own, own.partition(".")[0]) if hide_names else ():
        redactor.learn(HOST, name)
    _learn_domains(redactor, own)
    files = evidence.get("files") or {}
    for path, text in files.items():
        # Files of the kernel that hold nothing but a serial number; it also stands in names of links and devices.
        if isinstance(text, str) and path.rpartition("/")[2].endswith(("serial", "vpd_pg80", "wwid")):
            redactor.learn(SERIAL, text.strip())
    commands = evidence.get("commands") or {}
    outputs = [commands[name].get("stdout", "") for name in ("dpkg-query", "rpm", "rpm-query") if name in commands]
    texts = [str(value) for value in [*asdict(host.expectation).values(), *outputs]]
    redactor.keep(texts, [path for section in ("files", "links", "listings") for path in evidence.get(section) or {}])


def _own_name(evidence: Mapping[str, Any] | None) -> str:
    return str(((evidence or {}).get("host") or {}).get("name", ""))


def _learn_domains(redactor: Redactor, name: str) -> None:
    """The domains that a host's name is in, but for the topmost."""
    labels = [] if _NUMERIC.fullmatch(name) else name.split(".")
    for at in range(1, len(labels) - 1):
        redactor.learn("domain", ".".join(labels[at:]))
