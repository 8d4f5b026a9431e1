"""What runs together, judged by the compatibility rules: forbidden, allowed, undecided."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from docs.gen import compat_rules
from gdsdeploy.host import checks, data
from gdsdeploy.host.explain.explanation import as_document, explain
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.facts.host_facts import DOCA, judge, running_kernel
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import Rule, kernel_version
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.host.model.system import family_of
from gdsdeploy.platform import stack_platform_for
from tests.unit.host import hosts
from tests.unit.host.checks.changes import EXPECTATION, GOOD
from tests.unit.host.patches import patched


def test_the_host_has_the_rules_of_the_controller() -> None:
    table = Path(data.__file__).with_name("compat.json").read_text()
    assert table == compat_rules.table(), "write it again with docs/gen/compat_rules.py: see the head of compat.yml"


def test_one_kernel_of_ubuntu_is_judged_by_its_release() -> None:
    for release, warns in (("7.0.0-1019-nvidia", True), ("7.0.0-1020-nvidia", False), ("7.0.0-1019-aws", False)):
        ubuntu = patched(
            GOOD,
            {
                "files": {"/etc/os-release": 'ID="ubuntu"\nVERSION_ID="24.04"\n'},
                "host": {"uname": {"release": release, "version": "#1 SMP"}},
            },
        )
        verdict = judge(facts_from(ubuntu), "nvidia-fs", "dmabuf", ())
        assert ("kernel-7.0.0-1019-nvidia" in verdict.warnings) is warns


@pytest.mark.parametrize(
    ("release", "build", "package"),
    [
        ("6.8.0-90-generic", "#91-Ubuntu SMP PREEMPT_DYNAMIC", "6.8.0-90.91"),
        ("6.14.0-37-generic", "#37~24.04.1-Ubuntu SMP", "6.14.0-37.37~24.04.1"),
        ("6.17.0-1026-nvidia-64k", "#26-Ubuntu SMP", "6.17.0-1026.26"),
        ("6.1.0-50-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-07-20)", "6.1.176-1"),
        ("6.12.94+deb13-cloud-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.12.94-1~x (2026-07-20)", "6.12.94-1~x"),
        ("5.14.0-570.12.1.el9_6.x86_64", "#1 SMP", "5.14.0-570.12.1.el9_6"),
        ("5.14.0-570.12.1.el9_6.aarch64+64k", "#1 SMP", "5.14.0-570.12.1.el9_6"),
        ("6.18.35-68.127.amzn2023.x86_64", "#1 SMP", "1:6.18.35-68.127.amzn2023"),
        ("6.18.3", "#1 SMP", ""),
    ],
)
def test_a_kernel_has_the_same_names_on_the_host_and_in_the_lock(release: str, build: str, package: str) -> None:
    host = facts_from(patched(GOOD, {"host": {"uname": {"release": release, "version": build}}}))
    assert running_kernel(host) == kernel_version(release, package)


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
    document = patched(GOOD, {"files": {"/etc/os-release": f'ID="{ident}"\nVERSION_ID="{version}"\n'}})
    assert facts_from(document).os.name == name
    assert (family_of(name), stack_platform_for(name).family) == (family, family)


def test_the_fleets_own_rules_come_with_the_expectation() -> None:
    own = Rule("ours", "Ours crash.", "measured", "here", refuses={"driver": ("550",), "kernel": (">=6.12.94-1",)})
    expected = from_json(replace(EXPECTATION, rules=[own]).to_json())
    assert judge(facts_from(GOOD), "nvidia-fs", "none", ()).forbidden == {}
    answers = {one.check: one.as_dict() for one in checks.run(facts_from(GOOD), expected)}
    assert answers["stack.compatible"]["found"].startswith("[ours] Ours crash. Here: driver 550.163.01, kernel 6.12.94")
    for conditions in ({"drivr": ["1"]}, {"driver": [">=x"]}):
        wrong = {**json.loads(expected.to_json()), "rules": [{**asdict(own), "refuses": conditions}]}
        with pytest.raises(ValueError, match=r"there is no subject 'drivr'|not a version expression"):
            from_json(json.dumps(wrong))


def test_explain_names_a_rule_of_the_fleet() -> None:
    own = Rule("ours", "Ours crash.", "measured", "here", refuses={"nvidia_fs": (">=2",)})
    facts = facts_from(hosts.named("capable")).but(rules=(own,))
    (mount,) = as_document(explain(facts, (), "/mnt/nvme"))["mounts"]
    assert [note["evidence"] for note in mount["notes"] if note["id"] == "stack.forbidden"] == [
        ["compatibility rule ours: here"]
    ]


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
    facts = facts_from(GOOD)
    verdict = judge(facts, "nvidia-fs", "none", ())
    assert verdict.undecided == {}
    assert set(verdict.rules) == {rule.id for rule in compat.rules_with(())}
    assert not set(DOCA) & set(facts.packages.installed)
