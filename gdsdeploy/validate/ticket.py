"""A ticket for a vendor's support: one host's evidence, explain's answer, and the logs, in one file.

It is a support bundle without a fleet: ``gdsdeploy explain --evidence`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdsdeploy import __version__
from gdsdeploy.host.explain.text import render
from gdsdeploy.host.facts import HostFacts, Unknown
from gdsdeploy.host.logs import files, text
from gdsdeploy.host.logs.redact import learn
from gdsdeploy.host.model.expectation import Expectation
from gdsdeploy.host.paths import CUFILE_OPEN, GDSCHECK
from gdsdeploy.validate import bundle as bundles
from gdsdeploy.validate.bundle import Bundle, BundleHost
from gdsdeploy.validate.explain import explain_facts
from gdsdeploy.validate.fleet_validation import utc_now
from gdsdeploy.validate.support_bundle import redactor_for

#: The file in the archive that people read first.
REPORT = "ticket.txt"


def pack_ticket(
    facts: HostFacts, mount: str, logs: Sequence[tuple[str, bytes]], *, redact: bool
) -> tuple[bytes, Mapping[str, int]]:
    """The archive, and kind → how many different things of it were replaced.

    logs: (name, content) of what the user adds, as ``files.read`` gives it.
    """
    name = facts.name if isinstance(facts.name, str) and facts.name else "host"
    own = [(source, printed.encode()) for source, printed in _printed(facts).items()]
    contents = [*own, *logs]
    report = {
        f"gdsdeploy {__version__}": f"{name}, {facts.collected_at}",
        "What the host shows": render(explain_facts(facts, mount)),
        "What the logs show": text.render(files.answer_to(contents)) if contents else "there is no log",
        **{source: files.plain(data) for source, data in contents},
    }
    texts = {REPORT: "\n\n".join(f"===== {title}\n{body.strip()}" for title, body in report.items()) + "\n"}
    whole = Bundle("no fleet", "", utc_now(), {name: BundleHost(_running(facts, name), facts.document.value)}, texts)
    if not redact:
        return bundles.pack(whole, {}), {}
    redactor = redactor_for(whole, hide_names=True)
    for _, data in contents:
        learn(redactor, files.plain(data))
    redacted = bundles.redact_bundle(whole, redactor)
    return bundles.pack(redacted, redactor.summary()), redactor.summary()


def _printed(facts: HostFacts) -> dict[str, str]:
    """What the host's own programs print of what people paste, without what is empty."""
    check, opened = facts.document.attempted(GDSCHECK), facts.document.attempted(CUFILE_OPEN)
    printed = {
        "gdscheck -p": "" if isinstance(check, Unknown) else f"{check.stdout}\n{check.stderr}",
        "dmesg": "\n".join(facts.kernel.log.lines),
        "cufile.log": "" if isinstance(opened, Unknown) else opened.log,
    }
    return {source: words for source, words in printed.items() if words.strip()}


def _running(facts: HostFacts, name: str) -> Expectation:
    """What runs, in the form of what a fleet expects: nothing else is expected of a host without one."""
    kernel, driver, flavour, library = (
        value if isinstance(value, str) else ""
        for value in (facts.kernel.release, facts.driver.version, facts.driver.flavour, facts.cufile.library)
    )
    system, machine = (value if isinstance(value, str) else "" for value in (facts.os.name, facts.os.machine))
    return Expectation(
        name, "ticket", system, machine, kernel, driver, flavour, "", "compat", "none", "", library, "", ""
    )
