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
import tarfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Optional

from gdsdeploy import __version__
from gdsdeploy.host.errors import DesiredError
from gdsdeploy.host.facts import evidence_file
from gdsdeploy.host.facts.evidence_file import FOLDER, VERSION
from gdsdeploy.host.model import schema
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.model.expectation import from_json as expectation_from
from gdsdeploy.host.model.waiver import Waiver, waiver_from
from gdsdeploy.report.model import Trouble
from gdsdeploy.ssh.evidence_file import evidence_errors
from gdsdeploy.validate.redact import Redactor

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
        manifest, files = evidence_file.bundle(str(path))
        try:
            values = {field.name: manifest.get(field.name) for field in fields(_Manifest)}
            contents = schema.load(_Manifest, values, "manifest.json", lines=True)
            hosts = {name: _host(name, host, files) for name, host in contents.hosts.items()}
            time.strptime(contents.when, "%Y-%m-%dT%H:%M:%SZ")
        except (KeyError, ValueError, DesiredError) as error:
            raise evidence_file.damaged(str(path), error) from None
        return Bundle(contents.fleet, contents.lock, contents.when, hosts)


def _host(name: str, host: _ManifestHost, files: Mapping[str, str]) -> BundleHost:
    expected, file = expectation_from(files[f"hosts/{name}/expectation.json"]), f"hosts/{name}/evidence.json"
    evidence = evidence_file.document(file, files[file]) if file in files else None
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
