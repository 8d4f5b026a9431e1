"""What runs together, judged by the compatibility rules: forbidden, allowed, undecided."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest

from docs.gen import compat_rules
from gdsdeploy.host import data
from gdsdeploy.host.facts import HostFacts, Unknown, facts_from
from gdsdeploy.host.facts.running_set import DOCA, judge
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import Rule
from gdsdeploy.host.model.finding import FAIL, PASS, UNKNOWN, Finding
from gdsdeploy.host.model.system import family_of
from gdsdeploy.host.paths import SECURE_BOOT
from gdsdeploy.lock.compat import shipped
from gdsdeploy.platform import stack_platform_for
from tests.unit.host.checks.changes import EXPECTATION, GOOD, Change, Document, file, findings, unloaded

CHECK = "stack.compatible"


def finding(*changes: Change, **expected: str) -> Finding:
    document = copy.deepcopy(GOOD)
    for change in changes:
        change(document)
    return findings(document, replace(EXPECTATION, **expected))[CHECK]


def running(release: str, build: str = "#1 SMP") -> Change:
    """Another kernel."""
    return lambda document: document["host"]["uname"].update(release=release, version=build)


def doca(version: str) -> Change:
    def change(document: Document) -> None:
        document["commands"]["dpkg-query"]["stdout"] += f"doca-ofed\t{version}\tamd64\tii \n"

    return change


def nvidia_fs(version: str) -> Change:
    return file("/sys/module/nvidia_fs/version", version + "\n")


def driver(version: str) -> Change:
    def change(document: Document) -> None:
        path = "/proc/driver/nvidia/version"
        document["files"][path] = document["files"][path].replace("550.163.01", version)

    return change


def libcufile(version: str) -> Change:
    def change(document: Document) -> None:
        run = document["commands"]["cufile-open"]
        run["stdout"] = run["stdout"].replace("libcufile.so.1.9.1", "libcufile.so." + version)

    return change


def test_the_host_has_the_rules_of_the_controller() -> None:
    table = Path(data.__file__).with_name("compat.json").read_text()
    assert table == compat_rules.table(), "write it again with docs/gen/compat_rules.py: see the head of compat.yml"
    for packed, rule in zip(compat.shipped(), shipped(), strict=True):
        assert (packed.id, packed.when, packed.needs, packed.refuses, packed.warns, packed.fixed) == (
            rule.id, rule.when, rule.needs, rule.refuses, rule.warns, rule.fixed
        )  # fmt: skip


def test_what_provision_made_is_allowed_and_a_warning_is_no_failure() -> None:
    result = finding()
    assert result.verdict == PASS
    assert "driver 550.163.01 open, nvidia-fs 2.19.7, libcufile 1.9.1" in result.found
    assert result.found.endswith("; rules with a warning: nvidia-fs-vm-io")
    assert "kernel 6.12.94" in result.evidence[0]


FORBIDDEN = {
    "the driver of an older CUDA": ("cuda-13-driver", [libcufile("1.15.0")], "cuda 13, driver 550.163.01"),
    "an nvidia-fs that is known broken": ("nvidia-fs-2.25.6", [nvidia_fs("2.25.6")], "nvidia-fs 2.25.6"),
    "an old nvidia-fs": ("libcufile-nvidia-fs-minimum", [nvidia_fs("2.11")], "libcufile 1.9.1, nvidia-fs 2.11"),
    "DOCA before its fix": ("doca-3.3.0", [doca("3.3.0-1")], "doca 3.3.0"),
    "a new kernel with an old DOCA": (
        "doca-kernel-6.17",
        [running("6.17.3-generic"), doca("3.2.1-1")],
        "kernel 6.17.3, doca 3.2.1",
    ),
}


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_combination_fails_with_its_rule(name: str) -> None:
    rule, changes, words = FORBIDDEN[name]
    result = finding(*changes)
    assert result.verdict == FAIL
    assert f"[{rule}]" in result.found
    assert words in result.found
    (source,) = [other.source for other in compat.shipped() if other.id == rule]
    assert any(line.startswith(rule) and source[:60] in line for line in result.evidence)
    assert result.hint.startswith("Provision the host again")


def dkms(version: str) -> Change:
    def change(document: Document) -> None:
        document["commands"]["dpkg-query"]["stdout"] += f"dkms\t{version}\tall\tii \n"

    return change


def settings(name: str, text: str) -> Change:
    """A fragment of DKMS's settings."""

    def change(document: Document) -> None:
        folder = "/etc/dkms/framework.conf.d"
        listed = document["listings"].get(f"{folder}/*.conf")
        document["listings"][f"{folder}/*.conf"] = [*(listed if isinstance(listed, list) else []), name]
        document["files"][f"{folder}/{name}"] = text

    return change


def secure_boot(document: Document) -> None:
    document["listings"]["/sys/firmware/efi"] = ["efivars"]
    document["binaries"][SECURE_BOOT] = "0600000001"


SIGNS = 'try_sign_modules="true"\n'


@pytest.mark.parametrize(
    ("changes", "warns"),
    [
        ([dkms("3.4.3-1")], True),
        ([dkms("3.4.3-1"), settings("10-site.conf", '# try_sign_modules="true"\n')], True),
        ([dkms("3.4.3-1"), settings("10-site.conf", SIGNS)], False),
        ([dkms("3.4.3-1"), settings("20.conf", "try_sign_modules=not_in_chroot\n"), settings("10.conf", SIGNS)], True),
        ([dkms("3.3.0-1")], False),
    ],
)
def test_a_dkms_that_may_sign_nothing_is_a_warning_under_secure_boot(changes: list[Change], warns: bool) -> None:
    result = finding(secure_boot, *changes)
    assert any(line.startswith("dkms-unsigned: ") for line in result.evidence) is warns
    assert not any(line.startswith("dkms-unsigned: ") for line in finding(*changes).evidence)


def test_settings_that_cannot_be_read_are_no_answer() -> None:
    document = copy.deepcopy(GOOD)
    settings("10-site.conf", SIGNS)(document)
    document["files"]["/etc/dkms/framework.conf.d/10-site.conf"] = {"error": "EACCES"}
    assert isinstance(facts_from(document).packages.dkms_signs, Unknown)


def test_one_kernel_of_ubuntu_is_judged_by_its_release() -> None:
    ubuntu = file("/etc/os-release", 'ID="ubuntu"\nVERSION_ID="24.04"\n')
    for release, warns in (("7.0.0-1019-nvidia", True), ("7.0.0-1020-nvidia", False), ("7.0.0-1019-aws", False)):
        verdict = judge(changed(ubuntu, running(release)), "nvidia-fs", "dmabuf")
        assert ("kernel-7.0.0-1019-nvidia" in verdict.warnings) is warns


def changed(*changes: Change) -> HostFacts:
    document = copy.deepcopy(GOOD)
    for change in changes:
        change(document)
    return facts_from(document)


def test_the_mode_decides_which_rules_speak() -> None:
    result = finding(mode="p2pdma", nvidia_fs_version="")
    assert result.verdict == FAIL
    assert "[p2pdma-driver]" in result.found
    assert "[p2pdma-debian-kernel]" in result.found
    assert finding(unloaded("nvidia_fs"), mode="compat", nvidia_fs_version="").verdict == PASS


def test_a_kernel_of_rhel_is_judged_by_its_package() -> None:
    rhel = file("/etc/os-release", 'ID="rocky"\nVERSION_ID="9.5"\n')
    result = finding(rhel, running("5.14.0-503.11.1.el9_5.x86_64"), mode="p2pdma", nvidia_fs_version="")
    assert "[p2pdma-rhel-9.5]" in result.found
    result = finding(rhel, running("5.14.0-570.12.1.el9_6.x86_64"), mode="p2pdma", nvidia_fs_version="")
    assert "p2pdma-rhel-9.5" not in result.found


@pytest.mark.parametrize(
    ("kernel", "nvme", "verdict"),
    [("6.14.0-1015-nvidia", False, PASS), ("6.14.0-1015-nvidia", True, FAIL), ("6.14.0-33-generic", False, FAIL)],
)
def test_a_kernel_with_hooks_of_its_own_is_not_asked_for_docas(kernel: str, nvme: bool, verdict: str) -> None:
    """DOCA's own nvme, where it is installed, takes the place of the kernel's."""

    def packages(document: Document) -> None:
        doca("3.3.0-1")(document)
        if nvme:
            document["commands"]["dpkg-query"]["stdout"] += "mlnx-nvme-dkms\t3.3.0-1\tamd64\tii \n"

    result = finding(running(kernel), packages, nvidia_fs("2.26.6"))
    assert (result.verdict, "[doca-3.3.0]" in result.found) == (verdict, verdict == FAIL), result.found


@pytest.mark.parametrize(
    ("release", "forbidden"), [("5.15.0-310.184.5.2.el9uek", True), ("6.12.0-0.20.20.el9uek", False)]
)
def test_uek_is_no_kernel_of_rhel(release: str, forbidden: bool) -> None:
    oracle = file("/etc/os-release", 'ID="ol"\nVERSION_ID="9.6"\n')
    result = finding(oracle, running(f"{release}.x86_64"), mode="p2pdma", nvidia_fs_version="")
    assert ("[p2pdma-uek]" in result.found) is forbidden
    result = finding(oracle, running("5.14.0-503.15.1.el9_5.x86_64"), mode="p2pdma", nvidia_fs_version="")
    assert "[p2pdma-rhel-9.5]" in result.found, "Oracle's other kernel is"


@pytest.mark.parametrize(
    ("ident", "version", "name", "family"),
    [
        ("ol", "9.6", "oracle-9", "rhel"),
        ("rocky", "10.1", "rocky-10", "rhel"),
        ("amzn", "2023", "amazon-2023", "amazon"),
        ("ubuntu", "24.04", "ubuntu-24.04", "ubuntu"),
    ],
)
def test_a_system_has_the_name_and_the_family_that_the_controller_knows(
    ident: str, version: str, name: str, family: str
) -> None:
    document = copy.deepcopy(GOOD)
    file("/etc/os-release", f'ID="{ident}"\nVERSION_ID="{version}"\n')(document)
    assert facts_from(document).os.name == name
    assert (family_of(name), stack_platform_for(name).family) == (family, family)


def test_an_unknown_part_leaves_open_only_rules_that_it_could_break() -> None:
    def no_driver_version(document: Document) -> None:
        document["files"]["/proc/driver/nvidia/version"] = {"error": "EACCES"}

    result = finding(no_driver_version)
    assert result.verdict == UNKNOWN
    assert "[cuda-12-driver] /proc/driver/nvidia/version" in result.found
    # Rules about CUDA 13 ask about the driver too, but can't apply to this libcufile.
    assert "cuda-13" not in result.found

    def no_packages(document: Document) -> None:
        del document["commands"]["dpkg-query"]

    assert "[doca-3.3.0]" in finding(no_packages).found
    assert finding(no_packages, running("5.15.0"), mode="compat").verdict == PASS


def test_a_known_violation_counts_whatever_else_is_unknown() -> None:
    def no_packages(document: Document) -> None:
        del document["commands"]["dpkg-query"]

    assert finding(no_packages, nvidia_fs("2.25.6")).verdict == FAIL


A_RULE = Rule("a", "", "source", "", when={"driver": ("550",)}, needs={"kernel": (">=6",)})
A_REFUSAL = Rule("b", "", "source", "", when={"driver": ("550",)}, refuses={"kernel": (">=6",), "libcufile": ("1.9",)})
A_WARNING = Rule("c", "", "source", "", when={"driver": ("550",)}, warns={"kernel": (">=6",)})
OPEN = [
    (A_WARNING, {"driver": "550.1"}, {"kernel"}, False),
    (A_RULE, {"driver": "550.1"}, {"kernel"}, True),
    (A_RULE, {"driver": "535.1"}, {"kernel"}, False),
    (A_RULE, {"kernel": "6.1"}, {"driver"}, False),
    (A_RULE, {"kernel": "5.1"}, {"driver"}, True),
    (A_RULE, {"kernel": None}, {"driver"}, False),
    (A_RULE, {"driver": "550.1"}, {"arch"}, False),
    (A_REFUSAL, {"driver": "550.1", "libcufile": "1.9.1"}, {"kernel"}, True),
    (A_REFUSAL, {"driver": "550.1", "libcufile": "1.10"}, {"kernel"}, False),
    (A_REFUSAL, {"kernel": "6.1", "libcufile": "1.9.1"}, {"driver"}, True),
    (A_REFUSAL, {"kernel": "6.1", "libcufile": "1.10"}, {"driver"}, False),
]


@pytest.mark.parametrize(("rule", "combination", "unknown", "is_open"), OPEN)
def test_which_rules_an_unknown_part_leaves_open(
    rule: Rule, combination: dict[str, str | None], unknown: set[str], is_open: bool
) -> None:
    assert bool(list(compat.undecided(combination, unknown, [rule]))) is is_open


def test_every_rule_can_be_judged_or_is_left_out_on_purpose() -> None:
    facts = facts_from(copy.deepcopy(GOOD))
    verdict = judge(facts, "nvidia-fs", "none")
    assert verdict.undecided == {}
    assert set(verdict.rules) == {rule.id for rule in shipped()}
    assert not isinstance(facts.packages.installed, Unknown)
    assert not set(DOCA) & set(facts.packages.installed)
