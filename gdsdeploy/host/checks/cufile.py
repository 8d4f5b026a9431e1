"""libcufile and its configuration."""

from __future__ import annotations

from ..facts import HostFacts, UndecidedError, Unknown, known
from ..facts.cufile import ACCEPTED, refusal
from ..facts.effective import differences
from ..model.expectation import Expectation
from .registry import Answer, Answers, check, failed, passed, subject

subject("cufile", after="boot")


@check(
    "cufile.library",
    "the libcufile that programs load is the locked release",
    expects="libcufile {libcufile_version}",
    prevents="a second libcufile, of a CUDA toolkit or a Python package, that reads the configuration by other rules",
)
def library(facts: HostFacts, expectation: Expectation) -> Answer:
    found = known(facts.cufile.library)
    if found is None:
        return failed("no libcufile is installed", "Provision the host again")
    if found == expectation.libcufile_version or expectation.libcufile_version.startswith(found + "."):
        return passed("libcufile " + found)
    return failed(
        "libcufile " + found, "Provision again; 'ldconfig -p | grep libcufile' shows which one the loader takes"
    )


@check(
    "cufile.rendered",
    "the configuration of libcufile is the rendered one",
    expects="{cufile_path} with sha256 {cufile_sha256}",
    prevents="forgotten edits by hand, and a file that was left behind for another release",
)
def rendered(facts: HostFacts, expectation: Expectation) -> Answer:
    path = expectation.cufile_path
    if not expectation.cufile_sha256:
        raise UndecidedError("the file is fitted to this host, whose facts do not say what it has to be")
    digest = known(facts.cufile.digests.get(path, Unknown(f"{path} was not looked at")))
    if digest is None:
        return failed(f"{path} does not exist", "Provision the host again")
    if digest == expectation.cufile_sha256:
        return passed(f"{path} as rendered")
    hint = "See what differs and put it into the fleet file: gdsdeploy provision --check --diff; then provision"
    return failed(f"{path} with sha256 {digest}", hint)


@check(
    "cufile.accepted",
    "the installed libcufile accepts its configuration",
    expects="{cufile_path} accepted by libcufile {libcufile_version}",
    prevents="a configuration that was valid for the release before and now makes every program that opens cuFile fail",
)
def accepted(facts: HostFacts, _expectation: Expectation) -> Answer:
    acceptance, opened = known(facts.cufile.acceptance), known(facts.cufile.opened)
    if acceptance == ACCEPTED:
        if opened.error is None:
            return passed("accepted (cuFileDriverOpen did not return afterwards)", opened.lines[-3:])
        if opened.error != 0:
            words = f"accepted (cuFileDriverOpen then returned {opened.error}: see the path of each mount)"
            return passed(words, opened.lines[:3])
        return passed("accepted")
    lines = refusal(opened)
    return failed(
        "refused: {}".format(lines[0] if lines else "no reason given"),
        "Repair the value in the fleet file (profile, cufile) and provision again",
        lines,
    )


@check(
    "cufile.effective",
    "libcufile works with the values that its configuration intends",
    expects="every value of {cufile_path} that libcufile {libcufile_version} logs is the one in the file",
    prevents="a value that the library takes without a word, and then works with another one",
    unknown_hint="libcufile's words say what it lacks; with allow_compat_mode false that is often nvidia-fs",
)
def effective(facts: HostFacts, _expectation: Expectation) -> Answers:
    config, values = known(facts.cufile.config), known(facts.cufile.effective)
    if config is None or known(facts.cufile.acceptance) != ACCEPTED:
        return ()  # cufile.rendered and cufile.accepted say so
    if values is None:
        return _silent(facts)
    found, compared = differences(config, values)
    if not found:
        return passed(f"{compared} values as intended, of {len(values)} that libcufile logs")
    lines = [f"{item.key}: {item.effective} (the file has {item.intended})" for item in found]
    hint = "Put into the fleet file (profile, cufile) what the library can work with, and provision again"
    return failed("; ".join(lines), hint, lines)


def _silent(facts: HostFacts) -> Answer:
    """Without a GPU no release comes as far as its values, and no program can use cuFile: nothing is lost by that."""
    opened = known(facts.cufile.opened)
    end = "did not return" if opened.error is None else f"returned {opened.error}"
    if known(facts.driver.gpus):
        said = "; ".join(opened.lines[:2]) or "it gave no reason"
        raise UndecidedError(f"cuFileDriverOpen {end} before libcufile logged its values: {said}")
    words = "none to compare: this host has no GPU, so cuFileDriverOpen {} before libcufile named any"
    return passed(words.format(end))
