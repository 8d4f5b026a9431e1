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

import gzip
import hashlib
import io
import json
import platform
import re
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Optional

from gdsdeploy import __version__, paths
from gdsdeploy.converge.expectation import expectation
from gdsdeploy.converge.machine import Machine
from gdsdeploy.converge.plan_fleet import EVIDENCE
from gdsdeploy.errors import GdsError, HostUnreachable
from gdsdeploy.fleetfile import selection
from gdsdeploy.fleetfile.masking import mask_fleet
from gdsdeploy.host.errors import DesiredError
from gdsdeploy.host.facts import document
from gdsdeploy.host.facts.document import FOLDER, VERSION
from gdsdeploy.host.model import schema
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.expectation import from_json as expectation_from
from gdsdeploy.host.model.finding import Waiver, waiver_from
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.model.lock import Lock
from gdsdeploy.report import formats
from gdsdeploy.report.model import HostReport, Report, Trouble, trouble_from
from gdsdeploy.ssh import reply_schema
from gdsdeploy.ssh.endpoint import TIMEOUT
from gdsdeploy.ssh.reply_schema import evidence_errors
from gdsdeploy.ssh.transport import ask
from gdsdeploy.validate import fleet_validation
from gdsdeploy.validate.fleet_validation import (
    ValidateOptions,
    fit_expectation,
    host_report,
    line,
    report_without_evidence,
    utc_now,
)
from gdsdeploy.validate.redact import USER, Redactor

#: Bytes of a log that are packed.
LOG_LIMIT = 512 * 1024

README = """\
A support bundle of gdsdeploy {version}, made on {when} from {fleet}.

It holds the evidence of {count}, what was expected of them, and the verdicts. Judge it again, without the hosts:

    gdsdeploy validate --evidence THIS-FILE

Before it was packed, the following was replaced, the same thing always by the same word:

{redacted}
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
    #: name → text of what goes along: fleet.yml, gdsdeploy.lock, report.json, logs
    texts: Mapping[str, str] = field(default_factory=dict)


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
    """The bundle without what identifies a site; verdicts stay what they are."""
    for host in bundle.hosts.values():
        _learn_serials(redactor, host.evidence)
    hosts: dict[str, BundleHost] = {}
    for name, host in bundle.hosts.items():
        evidence = redactor.value(host.evidence)
        expected = {**redactor.value(asdict(host.expectation)), "cufile_sha256": _digest(host, redactor)}
        trouble = Trouble(**redactor.value(asdict(host.trouble))) if host.trouble else None
        waivers = tuple(waiver_from(redactor.value(waiver.as_dict())) for waiver in host.waivers)
        host_name, expectation = redactor.text(name), expectation_from(json.dumps(expected))
        hosts[host_name] = BundleHost(expectation, evidence, trouble, waivers, host.seconds)
    texts = {name: _redacted_text(redactor, name, text) for name, text in bundle.texts.items()}
    return Bundle(redactor.text(bundle.fleet), bundle.lock, bundle.when, hosts, texts)


def _redacted_text(redactor: Redactor, name: str, text: str) -> str:
    """JSON by its structure, anything else by patterns."""
    if not name.endswith(".json"):
        return redactor.text(text)
    return json.dumps(redactor.value(json.loads(text)), indent=2, ensure_ascii=False) + "\n"


def pack(bundle: Bundle, taken_out: Mapping[str, int]) -> bytes:
    """The archive.  taken_out: kind → how many different ones were replaced."""
    entries: dict[str, str] = dict(bundle.texts)
    for name, host in bundle.hosts.items():
        entries[f"hosts/{name}/expectation.json"] = host.expectation.to_json()
        if host.evidence is not None:
            entries[f"hosts/{name}/evidence.json"] = json.dumps(host.evidence, indent=1, sort_keys=True) + "\n"
    hosts = {
        name: {
            "error": asdict(host.trouble) if host.trouble else None,
            "waivers": [waiver.as_dict() for waiver in host.waivers],
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
    }
    entries["manifest.json"] = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
    entries["README.txt"] = README.format(
        version=__version__,
        when=bundle.when,
        fleet=bundle.fleet,
        count=f"{len(hosts)} host{'' if len(hosts) == 1 else 's'}",
        redacted="\n".join(f"  {kind}: {number}" for kind, number in taken_out.items()) or "  nothing",
    )
    return _archive({f"{FOLDER}/{name}": text.encode() for name, text in entries.items()})


def read(path: Path) -> Bundle:
    """Read a bundle, packed or not, without unpacking it to disk; raises GdsError for anything else."""
    with evidence_errors():
        manifest, files = document.bundle(str(path))
        try:
            values = {field.name: manifest.get(field.name) for field in fields(_Manifest)}
            contents = schema.load(_Manifest, values, "manifest.json", lines=True)
            hosts = {name: _host(name, host, files) for name, host in contents.hosts.items()}
            time.strptime(contents.when, "%Y-%m-%dT%H:%M:%SZ")
        except (KeyError, ValueError, DesiredError) as error:
            raise document.damaged(str(path), error) from None
        return Bundle(contents.fleet, contents.lock, contents.when, hosts)


def _host(name: str, host: _ManifestHost, files: Mapping[str, str]) -> BundleHost:
    expected, file = expectation_from(files[f"hosts/{name}/expectation.json"]), f"hosts/{name}/evidence.json"
    evidence = document.document(file, files[file]) if file in files else None
    return BundleHost(expected, evidence, host.error, tuple(host.waivers), float(host.seconds))


def _archive(entries: Mapping[str, bytes]) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(entries):
            entry = tarfile.TarInfo(name)
            entry.size = len(entries[name])
            archive.addfile(entry, io.BytesIO(entries[name]))
    return gzip.compress(plain.getvalue(), mtime=0)


def _learn_serials(redactor: Redactor, evidence: Mapping[str, Any] | None) -> None:
    """Files of the kernel that hold nothing but a serial number; it also stands in names of links and devices."""
    for path, text in ((evidence or {}).get("files") or {}).items():
        if isinstance(text, str) and path.rpartition("/")[2].endswith(("serial", "vpd_pg80", "wwid")):
            redactor.learn("serial number", text.strip())


def _digest(host: BundleHost, redactor: Redactor) -> str:
    """The digest that the host's cufile.json has to have; of the redacted one where the original has it."""
    files = (host.evidence or {}).get("files") or {}
    text = files.get(host.expectation.cufile_path)
    if isinstance(text, str) and hashlib.sha256(text.encode()).hexdigest() == host.expectation.cufile_sha256:
        return hashlib.sha256(redactor.text(text).encode()).hexdigest()
    return host.expectation.cufile_sha256


def last_log(folder: Path, pattern: str) -> dict[str, str]:
    """The end of the newest log in ``folder``, by the name that it gets in a bundle; their names sort by time."""
    newest = max(folder.glob(pattern), default=None)
    return {f"logs/{newest.name}": newest.read_bytes()[-LOG_LIMIT:].decode(errors="replace")} if newest else {}


#: A numeric address.
_NUMERIC = re.compile(r"[\d.:a-fA-F]+")
#: What provision leaves in the folder of runs.
LOGS = "provision-*.log"


def pack_fleet(
    fleet: Fleet,
    lock: Lock,
    fleet_path: Path,
    names: Sequence[str],
    *,
    hide_names: bool = False,
    timeout: float = TIMEOUT,
    progress: Callable[[str], None],
) -> tuple[bytes, Mapping[str, int]]:
    """The archive of a support bundle, and kind → how many different things of it were replaced.

    timeout: seconds for each host; one that cannot be asked is in the bundle with the reason.
    """
    when, hosts = utc_now(), dict[str, BundleHost]()
    expected = {name: expectation(Machine(fleet, lock, name)) for name in names}
    stdin = {name: expectation.to_json().encode() for name, expectation in expected.items()}
    evidence_of = partial(
        reply_schema.judge_reply, question="evidence", shape=reply_schema.Evidence, judge=dict[str, Any]
    )
    argv = (*EVIDENCE, "--trail")
    for answer, evidence in ask(
        fleet, fleet_path, names, argv, evidence_of, timeout=timeout, stdin=stdin, read_only=True
    ):
        name = answer.host
        trouble = trouble_from(evidence) if isinstance(evidence, GdsError) else None
        hosts[name] = BundleHost(
            fit_expectation(fleet, lock, expected[name], answer),
            None if isinstance(evidence, GdsError) else evidence,
            trouble,
            tuple(selection.waivers_of(fleet, name)),
            answer.seconds,
        )
        progress(f"  {name}: {'no evidence' if answer.error else 'evidence'} ({answer.seconds:.1f} s)")
    whole = Bundle(fleet_path.name, lock.digest, when, {name: hosts[name] for name in names})
    redactor = redactor_for(whole, fleet, hide_names=hide_names)
    texts = {
        "fleet.yml": mask_fleet(fleet_path.read_text(encoding="utf-8"), redactor.secret),
        "gdsdeploy.lock": lockfile.beside(fleet_path).read_text(encoding="utf-8"),
        "report.json": formats.json_text(judge(whole, progress=lambda _: None)),
        **last_log(paths.state() / "runs", LOGS),
    }
    redacted = redact_bundle(replace(whole, texts=texts), redactor)
    return pack(redacted, redactor.summary()), redactor.summary()


def judge(
    bundle: Bundle, options: ValidateOptions | None = None, *, fleet: str = "", progress: Callable[[str], None]
) -> Report:
    """The checks' verdict on a bundle's evidence, with the waivers of its day.  fleet: its name in the report."""
    options = replace(options or ValidateOptions(), day=bundle.when[:10])
    reports: list[HostReport] = []
    waivers_of = {name: [*host.waivers, *options.waivers] for name, host in bundle.hosts.items()}
    for name, host in bundle.hosts.items():
        report = _host_report(name, host, options, waivers_of[name])
        reports.append(report)
        progress(line(report))
    waiver_uses = fleet_validation.waiver_uses(waivers_of, reports, options.today())
    return Report(fleet or bundle.fleet, bundle.lock, bundle.when, tuple(reports), waiver_uses)


def _host_report(name: str, host: BundleHost, options: ValidateOptions, waivers: Sequence[Waiver]) -> HostReport:
    if host.evidence is None:
        trouble = host.trouble or trouble_from(HostUnreachable(f"{name}: the bundle has no evidence of it"))
        return HostReport(name, host.expectation.profile, trouble=trouble, seconds=host.seconds)
    try:
        with reply_schema.unexpected_errors(name):
            return host_report(host.expectation, host.evidence, options, waivers, host.seconds)
    except GdsError as error:
        return report_without_evidence(host.expectation, error, host.seconds)


def redactor_for(whole: Bundle, fleet: Fleet | None = None, *, hide_names: bool) -> Redactor:
    """The redactor for what identifies a bundle's site; it replaces the hosts' names only with ``hide_names``."""
    names = list(dict.fromkeys([*(fleet.everyone() if fleet else ()), *whole.hosts]))
    stand_ins = {name: f"host-{number}" for number, name in enumerate(names, 1)}
    versions = [text for host in whole.hosts.values() for text in _versions(host)]
    redactor = Redactor(versions=versions, names=stand_ins if hide_names else None)
    own = [str(((host.evidence or {}).get("host") or {}).get("name", "")) for host in whole.hosts.values()]
    for ssh in map(fleet.connection, fleet.everyone()) if fleet else ():
        if ssh.address and ssh.address not in names and not _NUMERIC.fullmatch(ssh.address):
            redactor.learn("address", ssh.address)
            own.append(ssh.address)
        redactor.learn(USER, ssh.user or "")
    for domain in (domain for name in (*names, *own) for domain in _domains(name)):
        redactor.learn("domain", domain)
    for word in (word for name in own for word in (name, name.partition(".")[0]) if hide_names):
        if word not in stand_ins:
            redactor.learn("host name", word)
    return redactor


def _domains(name: str) -> Iterator[str]:
    """The domains that a host's name is in, but for the topmost."""
    labels = [] if _NUMERIC.fullmatch(name) else name.split(".")
    return (".".join(labels[at:]) for at in range(1, len(labels) - 1))


def _versions(host: BundleHost) -> list[str]:
    """Texts whose dotted numbers are versions: the expectation's, and what package managers list."""
    commands = (host.evidence or {}).get("commands") or {}
    outputs = [commands[name].get("stdout", "") for name in ("dpkg-query", "rpm", "rpm-query") if name in commands]
    return [str(value) for value in [*asdict(host.expectation).values(), *outputs]]
