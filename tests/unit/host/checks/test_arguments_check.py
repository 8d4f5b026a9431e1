"""boot.arguments: what this boot has, what the next one has, and what can't be told."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, Finding
from tests.unit.host.checks.changes import EXPECTATION, GOOD, Document, findings
from tests.unit.host.checks.faults_arguments import (
    ARGUMENT,
    GRUB,
    MULTIPATH,
    last_value,
    not_booted_with,
    not_configured,
)

ENTRIES = "/boot/loader/entries"
RELEASE = EXPECTATION.kernel_release


def finding(
    document: Document, arguments: list[str] | None = None, parameters: dict[str, str] | None = None
) -> Finding:
    expectation = replace(
        EXPECTATION,
        boot_arguments=EXPECTATION.boot_arguments if arguments is None else arguments,
        module_parameters=EXPECTATION.module_parameters if parameters is None else parameters,
    )
    return findings(document, expectation)["boot.arguments"]


@pytest.fixture
def good() -> Document:
    return copy.deepcopy(GOOD)


def rhel(document: Document, **options: str) -> None:
    """Entries in the place of grub.cfg's: file → its options."""
    document["excerpts"][GRUB] = {"error": "ENOENT"}
    document["listings"][ENTRIES] = list(options)
    for name, words in options.items():
        lines = [f"version {name}", "linux /vmlinuz", f"options {words}"]
        document["excerpts"][f"{ENTRIES}/{name}"] = {"pattern": "", "lines": lines}
    for folder in ("/efi/loader/entries", "/boot/efi/loader/entries"):
        document["listings"][folder] = {"error": "ENOENT"}


def test_it_passes_where_this_boot_has_both(good: Document) -> None:
    answer = finding(good)
    assert answer.verdict == PASS
    assert answer.evidence == [f"/proc/cmdline: {ARGUMENT}", f"{MULTIPATH}: Y"]
    assert answer.expected == f"{ARGUMENT}, nvme_core.multipath=Y"


def test_a_profile_that_sets_nothing(good: Document) -> None:
    assert finding(good, [], {}).verdict == NOT_APPLICABLE


def test_a_reboot_that_is_pending_is_told_from_arguments_that_are_not_set(good: Document) -> None:
    not_booted_with(good)
    pending = finding(good)
    assert (pending.verdict, pending.found) == (
        FAIL,
        f"reboot pending: this boot is without {ARGUMENT}, which the next boot has",
    )
    not_configured(good)
    missing = finding(good)
    assert (missing.verdict, missing.found) == (FAIL, f"this boot is without {ARGUMENT}")
    assert missing.hint.startswith("Provision the host again")


@pytest.mark.parametrize(("options", "is_pending"), [(f"ro {ARGUMENT}", True), ("ro", False)])
def test_entries_of_the_boot_loader_specification(good: Document, options: str, is_pending: bool) -> None:
    not_booted_with(good)
    rhel(good, **{f"x-{RELEASE}.conf": options, "older.conf": "ro"})
    assert finding(good).found.startswith("reboot pending") is is_pending
    # Of no entry of this kernel, all of them count.
    rhel(good, **{"a.conf": options, "b.conf": f"ro {ARGUMENT}"})
    assert finding(good).found.startswith("reboot pending") is is_pending


def test_without_entries_in_the_evidence_it_fails_all_the_same(good: Document) -> None:
    not_booted_with(good)
    del good["excerpts"][GRUB]
    assert (finding(good).verdict, finding(good).found) == (FAIL, f"this boot is without {ARGUMENT}")


def test_the_last_value_counts(good: Document) -> None:
    last_value(good)
    assert finding(good).verdict == FAIL


@pytest.mark.parametrize("value", [None, {"error": "EACCES"}])
def test_a_command_line_that_was_not_read(good: Document, value: object) -> None:
    good["files"]["/proc/cmdline"] = value
    assert finding(good).verdict == UNKNOWN


def test_a_parameter_that_was_not_read_or_that_a_loaded_module_does_not_show(good: Document) -> None:
    assert finding(good, parameters={"nvme_core.io_timeout": "30"}).verdict == UNKNOWN
    good["files"]["/sys/module/nvme_core/parameters/hidden"] = {"error": "ENOENT"}
    assert finding(good, parameters={"nvme_core.hidden": "1"}).verdict == UNKNOWN
    assert finding(good, parameters={"../../etc": "1"}).verdict == UNKNOWN


def test_a_module_that_is_not_loaded_has_no_parameters(good: Document) -> None:
    good["files"]["/sys/module/nvme_tcp/parameters/wq_unbound"] = {"error": "ENOENT"}
    assert finding(good, parameters={"nvme_tcp.wq_unbound": "Y"}).verdict == PASS


def test_a_module_that_is_built_into_the_kernel_needs_an_argument(good: Document) -> None:
    parameters = {"nvme_core.multipath": "N"}
    assert finding(good, parameters=parameters).hint.startswith("Reboot the host if it was provisioned")
    lines = good["files"]["/proc/modules"].splitlines(keepends=True)
    good["files"]["/proc/modules"] = "".join(line for line in lines if not line.startswith("nvme_core "))
    hint = 'It is built into the kernel: write boot: {arguments: {nvme_core.multipath: "N"}} in the profile'
    assert finding(good, parameters=parameters).hint == hint


def test_a_kernel_without_nvme_multipath(good: Document) -> None:
    good["files"][MULTIPATH] = {"error": "ENOENT"}
    assert finding(good, parameters={"nvme_core.multipath": "N"}).verdict == UNKNOWN
    path = next(path for path in good["excerpts"] if path.startswith("/boot/config-"))
    lines = good["excerpts"][path]["lines"]
    good["excerpts"][path]["lines"] = [line for line in lines if "NVME_MULTIPATH" not in line]
    assert finding(good, parameters={"nvme_core.multipath": "N"}).verdict == PASS
