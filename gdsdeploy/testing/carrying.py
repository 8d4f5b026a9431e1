"""Validates a host through testinfra's connection: the host program is carried there, runs, and is removed again."""

from __future__ import annotations

import base64
import io
import json
import shlex
import tarfile
from typing import TYPE_CHECKING, Any

from gdsdeploy.host.model.finding import Finding, finding_from
from gdsdeploy.host.paths import EXPECTATION
from gdsdeploy.zipapp import hostapp

if TYPE_CHECKING:
    from testinfra.host import Host  # type: ignore[import-untyped]  # testinfra ships no types

#: Characters of a file in one command: Linux takes 128 KiB for one argument, and that is quoted on the way.
CHUNK = 110_000
#: Seconds for the whole of one host's evidence.
TIMEOUT = 300


class NoFindingsError(Exception):
    """A host could not be asked; the message is the reason."""


def findings(host: Host, expectation: str | None) -> list[Finding]:
    """The host's findings.  expectation: JSON; None: what provision left there.  Raises NoFindingsError."""
    try:
        return [finding_from(row) for row in _ask(host, expectation)["findings"]]
    except NoFindingsError:
        raise
    except Exception as reason:  # noqa: BLE001 - each backend has its own
        raise NoFindingsError(f"{type(reason).__name__}: {reason}") from None


def _ask(host: Host, expectation: str | None) -> dict[str, Any]:
    """Run the host program in a folder of its own, which is removed again."""
    folder = _carry({"gdsdeploy-host.pyz": hostapp.build(), "expectation.json": (expectation or "").encode()}, host)
    path = f"{folder}/expectation.json" if expectation is not None else EXPECTATION
    program = f"{folder}/gdsdeploy-host.pyz"
    words = ["timeout", str(TIMEOUT), "python3", "-I", "-S", program, "validate", "--json", "--expectation", path]
    command = f"{shlex.join(words)}; status=$?; rm -rf {shlex.quote(folder)}; exit $status"
    if host.check_output("id -u") == "0":
        done = host.run(command)
    else:
        with host.sudo():
            done = host.run(command)
    try:
        document = json.loads(done.stdout)
    except ValueError:
        raise NoFindingsError(f"the host program ended with status {done.rc}: {done.stdout}{done.stderr}") from None
    if not isinstance(document, dict):
        raise NoFindingsError(f"the host program printed {document!r}")
    return document


def _carry(contents: dict[str, bytes], host: Host) -> str:
    """Put files into a new folder on the host and return its name; few and long commands, as each is a round trip."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    text = base64.b64encode(archive.getvalue()).decode()
    first, *parts = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)]
    folder: str = host.check_output(f'd=$(mktemp -d) && printf %s {first} > "$d/text" && echo "$d"')
    where = shlex.quote(folder)
    for part in parts[:-1]:
        host.run_expect([0], f"printf %s {part} >> {where}/text")
    last = "".join(parts[-1:])
    host.run_expect([0], f"printf %s '{last}' >> {where}/text && base64 -d {where}/text | tar -xC {where}")
    return folder
