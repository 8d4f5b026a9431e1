"""Every rule of compat.yml refuses, warns and admits what it is there for."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any

import pytest
import yaml

from docs.gen.compat_rules import load, of_debian, of_kernel_changes, of_rhel
from gdsdeploy import lock
from gdsdeploy.errors import RepositoryUntrusted
from gdsdeploy.files import yamlfile
from gdsdeploy.host.model import compat
from gdsdeploy.host.model.compat import FITS, SUBJECTS, Combination, Rule, Verdict
from gdsdeploy.lock.compat import OLD_INDEX, judge_ages
from gdsdeploy.model.fleet import Repository
from gdsdeploy.model.lock import Index
from tests.unit.host import cases

SHIPPED = compat.rules_with(())


def judge(combination: Combination, rules: Iterable[Rule] = SHIPPED) -> list[Verdict]:
    return compat.judge(combination, rules)


#: Debian 13 as it is measured to work; each case below changes some of it.
GOOD: dict[str, str | None] = {
    "driver": "550.163.01", "driver_package": "550.163.01-2", "driver_origin": "debian", "flavour": "open",
    "kernel": "6.12.94", "kernel_package": "6.12.94-1", "kernel_flavour": "amd64", "nvme_hooks": "ofed",
    "nvidia_fs": "2.19.7", "nvidia_fs_package": "2.19.7~12.4.1-2", "nvidia_fs_origin": "debian",
    "libcufile": "1.9.1.3", "cuda": "12.4.1", "doca": None, "dkms": "3.2.2",
    "dkms_signs": "not_in_chroot", "secure_boot": "off", "gpu": None, "mode": "nvidia-fs", "rdma": "none",
    "arch": "x86_64", "os": "debian-13", "family": "debian",
}  # fmt: skip

#: rule → what it speaks against, and what it admits though it looks alike; each is laid over GOOD
CASES = cases.load("lock/compat")


def changes(rows: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Each row with one value for each of its keys."""
    for row in rows:
        values = [value if isinstance(value, list) else [value] for value in row.values()]
        yield from (dict(zip(row, chosen, strict=True)) for chosen in itertools.product(*values))


def against(rule: str, change: dict[str, str]) -> bool:
    """Whether the rule refuses the changed combination, or warns of it."""
    verdicts = {v.rule: v for v in judge({**GOOD, **change})}
    return rule in verdicts and (not verdicts[rule].allowed or verdicts[rule].warning)


def test_every_rule_has_its_cases() -> None:
    """Those that programs wrote have theirs in test_kernel_changes.py, too; those of debian.yml and rhel.yml below."""
    ids = {rule.id for rule in SHIPPED}
    made = {rule["id"] for rule in (*of_kernel_changes(), *of_debian(DEBIAN), *of_rhel(**RHEL))}
    assert ids - made <= set(CASES) <= ids


#: What the changelogs of Debian's packages say, and what is known of RHEL's kernels.
DEBIAN, RHEL = (
    yamlfile.shipped(resources.files(lock).joinpath(f"{name}.yml").read_text(encoding="utf-8"))
    for name in ("debian", "rhel")
)


@pytest.mark.parametrize("row", RHEL["builds"], ids=lambda row: row["id"])
def test_a_build_for_rhel_speaks_for_each_of_its_releases_and_leaves_no_doubt(row: dict[str, Any]) -> None:
    module = "driver" if "driver" in row else "nvidia_fs"
    versions = [row[module]] if isinstance(row[module], str) else row[module]
    for version, release in itertools.product(versions, row["releases"]):
        first = re.findall("[0-9.]+", version)[0]
        about = {module: first, f"{module}_origin": "nvidia", "flavour": row.get("flavour", "open")}
        facts: Combination = {"kernel": f"{RHEL['kernels'][release]}.9.1", "kernel_flavour": "kernel", **about}
        verdicts = {v.rule: v.kind for v in judge(facts) if v.subjects >= {module, "kernel"}}
        assert any(rule.endswith(f"-rhel-{row['id']}") for rule in verdicts), (first, release)
        assert compat.UNKNOWN not in verdicts.values(), (first, release)


def test_what_settles_a_build_outweighs_doubts_about_it_and_nothing_else() -> None:
    def rule(ident: str, when: str, **effect: Any) -> Rule:
        return Rule(ident, "Says.", "measured", "", when={when: ("1",)}, **effect)

    any_driver = {"driver": (">=0",)}
    rules = [
        rule("build", "kernel", doubts=any_driver),
        rule("refused", "kernel", refuses=any_driver),
        rule("warned", "kernel", warns=any_driver),
        rule("driver-alone", "driver_origin", doubts=any_driver),
        rule("nvidia-fs", "nvidia_fs", doubts=any_driver),
        rule("settles", "kernel", needs=any_driver, settles=True),
    ]
    facts: Combination = {"driver": "1", "driver_origin": "1", "kernel": "1", "nvidia_fs": "1"}
    assert {v.rule for v in judge(facts, rules)} == {rule.id for rule in rules} - {"build"}
    assert "build" in {v.rule for v in judge({**facts, "kernel": "1", "driver": "1"}, rules[:-1])}
    broken = rule("settles", "kernel", needs={"driver": (">=2",)}, settles=True)
    assert {"build", "settles"} <= {v.rule for v in judge(facts, [*rules[:-1], broken])}


@pytest.mark.parametrize(
    ("package", "kernel", "kind"),
    [
        ("550.163.01-2", "6.12.94", compat.FITS),
        ("550.163.01-2", "6.15.9", compat.FITS),
        ("550.163.01-2", "6.16", compat.UNKNOWN),
        ("550.163.01-4~bpo13+1", "6.17.13", compat.FITS),
        ("550.163.01-4~bpo13+1", "6.18.1", compat.UNKNOWN),
        ("550.163.01-5.1", "7.0.9", compat.FITS),
        ("550.163.01-5.1", "7.2.13", compat.UNKNOWN),
        ("550.163.01-6", "6.12.94", compat.UNKNOWN),
        ("555.58.02-4", "7.2.13", compat.FITS),
        ("555.58.02-4", "7.3.4", compat.UNKNOWN),
        ("535.309.01-0+deb12u1", "6.1.192", compat.FITS),
        ("535.274.02-1~deb13u1", "6.17.1", compat.FITS),
        ("525.147.05-15~deb12u1", "6.14.1", compat.FITS),
        ("470.256.02-10", "6.1.192", compat.UNKNOWN),
    ],
)
def test_a_driver_that_debian_patches_is_known_up_to_the_kernel_of_its_changelog(
    package: str, kernel: str, kind: str
) -> None:
    driver = {"driver": package.partition("-")[0], "driver_package": package, "flavour": "proprietary"}
    facts: Combination = {**GOOD, **driver, "kernel": kernel, "kernel_package": f"{kernel}-1", "nvidia_fs": None}
    verdicts = judge(facts)
    about = [v for v in (*verdicts, *compat.unknown_pairs(facts, verdicts)) if v.subjects >= {"driver", "kernel"}]
    assert {v.kind for v in about} == {kind}


@pytest.mark.parametrize(
    ("package", "kernel", "kind"),
    [
        ("2.13.5~11.8.0-5~deb12u1", "6.1.192", compat.FITS),
        ("2.13.5~11.8.0-5~deb12u1", "6.5.1", compat.UNKNOWN),
        ("2.13.5~11.8.0-5~deb12u1", "6.12.95", compat.REFUSED),
        ("2.19.7~12.4.1-2", "6.14.1", compat.FITS),
        ("2.19.7~12.4.1-2", "6.15.1", compat.UNKNOWN),
        ("2.19.7~12.4.1-2", "6.16", compat.REFUSED),
        ("2.19.7~12.4.1-8.2+b1", "6.19.2", compat.FITS),
        ("2.19.7~12.4.1-8.2+b1", "7.3.4", compat.FITS),
        ("2.19.7~12.4.1-8.2+b1", "7.4.1", compat.UNKNOWN),
        ("2.20.5~12.5.0-2+b1", "6.16.1", compat.FITS),
        ("2.20.5~12.5.0-2+b1", "7.2.13", compat.REFUSED),
    ],
)
def test_an_nvidia_fs_that_debian_patches_is_known_up_to_the_kernel_of_its_changelog(
    package: str, kernel: str, kind: str
) -> None:
    source = {"nvidia_fs": package.partition("~")[0], "nvidia_fs_package": package}
    facts: Combination = {**GOOD, **source, "kernel": kernel, "kernel_package": f"{kernel}-1"}
    verdicts = judge(facts)
    about = [v for v in (*verdicts, *compat.unknown_pairs(facts, verdicts)) if v.subjects >= {"nvidia_fs", "kernel"}]
    kinds = {v.kind for v in about if v.kind != compat.WARNED and v.rule != "nvidia-fs-kernel-4.15"}
    assert min(kinds, key=compat.KINDS.index) == kind


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_speaks_against_what_it_is_for_and_nothing_else(rule: str) -> None:
    assert set(CASES[rule]) == {"against", "admits"}
    assert [change for change in changes(CASES[rule]["against"]) if not against(rule, change)] == []
    assert [change for change in changes(CASES[rule]["admits"]) if against(rule, change)] == []


@pytest.mark.parametrize(
    ("driver", "flavour", "kind"),
    [
        ("550.142", "open", compat.REFUSED),
        ("550.142", "proprietary", compat.FITS),
        ("565.77", "open", compat.REFUSED),
        ("565.77", "proprietary", compat.UNKNOWN),
        ("570.133.07", "proprietary", compat.FITS),
    ],
)
def test_what_only_open_modules_use_refuses_no_proprietary_ones(driver: str, flavour: str, kind: str) -> None:
    """Kernel 6.13 changed what only these use; whether newer proprietary ones do, nobody told."""
    facts: Combination = {"driver": driver, "driver_origin": "nvidia", "flavour": flavour, "kernel": "6.13.2"}
    verdicts = judge(facts)
    about = {v.kind for v in (*verdicts, *compat.unknown_pairs(facts, verdicts)) if v.subjects >= {"driver", "kernel"}}
    assert min(about, key=compat.KINDS.index) == kind


def test_the_measured_combinations_are_admitted() -> None:
    bookworm = {
        "driver": "535.261.03", "driver_package": "535.261.03-1", "kernel": "6.1.176", "kernel_package": "6.1.176-1",
        "nvidia_fs": "2.13.5", "nvidia_fs_package": "2.13.5~11.8.0-5~deb12u1", "libcufile": "1.4.0.31",
        "cuda": "11.8.0", "os": "debian-12",
    }  # fmt: skip
    assert [v.rule for v in judge(GOOD) if not v.allowed] == []
    assert [v.rule for v in judge({**GOOD, **bookworm}) if not v.allowed] == []


def test_what_came_out_together_fits() -> None:
    rows = yaml.safe_load(resources.files(lock).joinpath("cuda.yml").read_text())
    assert rows[-1].keys() >= {"cuda", "driver", "libcufile", "nvidia_fs"}
    for row in rows:
        one = {subject: row[subject] for subject in ("cuda", "driver", "libcufile", "nvidia_fs") if subject in row}
        verdicts = [v for v in judge(one) if v.subjects & {"cuda", "libcufile"}]
        assert {v.kind for v in verdicts} <= {FITS}, one
        unknown = {v.rule for v in compat.unknown_pairs(one, verdicts)}
        assert not unknown & {"cuda-driver-unknown", "libcufile-nvidia-fs-unknown"}, one


def test_only_warnings_are_warnings() -> None:
    newer = {"driver": "580.65.06", "driver_origin": "nvidia", "nvidia_fs_origin": "nvidia", "kernel": "6.17"}
    kinds = {v.rule: v for change in ({}, {**newer, "nvidia_fs": "2.28.2"}) for v in judge({**GOOD, **change})}
    assert {name for name, v in kinds.items() if v.warning} == {
        "nvidia-fs-no-io",
        "nvidia-fs-vm-io",
        "nvidia-fs-sgl-hang",
    }
    assert all(v.allowed for v in kinds.values() if v.warning)


def test_what_is_not_decided_yet_is_not_judged() -> None:
    assert judge({"driver": "550.163.01", "driver_package": "550.163.01-2"}) == []
    decided = {"driver": "550.163.01", "driver_package": "550.163.01-2", "kernel": "6.12.107", "flavour": "open"}
    (verdict,) = judge(decided, [rule for rule in SHIPPED if rule.id == "driver-550-pci-resize"])
    assert not verdict.allowed


def test_a_pair_that_no_rule_is_about_is_unknown() -> None:
    rules = load(
        yaml.safe_dump(
            {
                "rules": [
                    {"id": "x-1", "says": "X.", "known": "source", "source": "here",
                     "when": {"driver": ">=1"}, "needs": {"kernel": ">=5"}},
                    {"id": "x-2", "says": "New.", "known": "source", "source": "here", "when": {"driver": ">=1"},
                     "doubts": {"kernel": ">=7"}},
                ]
            }
        )
    )  # fmt: skip
    combination = {"driver": "580.95.05", "kernel": "6.8.0", "nvidia_fs": "2.26.6", "libcufile": None}
    verdicts = judge(combination, rules)
    assert [(v.rule, v.kind) for v in verdicts] == [("x-1", compat.FITS)]
    pairs = compat.unknown_pairs(combination, verdicts)
    assert [v.rule for v in pairs] == ["nvidia-fs-kernel-unknown", "nvidia-fs-driver-unknown"]
    here = "Here: nvidia-fs 2.26.6, kernel 6.8.0."
    assert pairs[0].words == f"No source tells whether this nvidia-fs and this kernel go together. {here}"
    assert compat.without_builds(pairs) == [pairs[1]]
    newer = judge({**combination, "kernel": "7.0"}, rules)
    assert {v.rule: v.kind for v in newer} == {"x-1": compat.FITS, "x-2": compat.UNKNOWN}
    assert newer[1].allowed
    assert newer[1].warning


def test_an_absent_part_breaks_no_rule() -> None:
    compat = dict.fromkeys(("nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin"))
    verdicts = judge({**GOOD, **compat, "mode": "compat", "flavour": "proprietary"})
    assert all(v.allowed for v in verdicts)
    assert not {v.rule for v in verdicts if "nvidia-fs" in v.rule}


@pytest.mark.parametrize("rule", SHIPPED, ids=lambda rule: rule.id)
def test_every_rule_is_one_sentence_with_a_source(rule: Rule) -> None:
    assert re.fullmatch(r"[A-Za-z][^\n]*\.", rule.says)
    assert "\n" not in rule.source.strip()
    assert len(rule.source) > 15
    assert rule.looks_at <= set(SUBJECTS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"needs": {"drivr": ">=1"}}, "there is no subject 'drivr'"),
        ({"needs": {"driver": ">=x"}}, "driver: not a version expression"),
        ({"needs": {"driver": ">=580.95.05-0ubuntu1"}}, "580.95.05; driver_package has the package's"),
        ({"needs": {"nvidia_fs_package": ">=1:2.26"}}, "nvidia_fs_package: no version is written like '1:2.26' here"),
        ({"when": {"gpu": "h100"}}, "gpu: there is no 'h100'; there are maxwell, pascal,"),
        ({"when": {"gpu": "hoper"}}, "gpu: there is no 'hoper'; did you mean 'hopper'?"),
        ({"when": {"family": "redhat"}}, "family: there is no 'redhat'; there are amazon, debian, rhel, ubuntu"),
        ({"when": {"os": "ubuntu-2404"}}, "os: there is no 'ubuntu-2404'; did you mean 'ubuntu-24.04'?"),
        ({"when": {"mode": "nvidia_fs"}}, "mode: there is no 'nvidia_fs'; did you mean 'nvidia-fs'?"),
        ({"when": {"arch": "amd64"}}, "arch: there is no 'amd64'; there are x86_64, aarch64"),
        ({"when": {"rdma": "!=none, !=gdr"}}, "rdma: there is no 'gdr'; there are none, peermem, dmabuf"),
        ({"when": {"flavour": "Open"}}, "flavour: there is no 'Open'; did you mean 'open'?"),
        ({"when": {"nvme_hooks": "doca"}}, "nvme_hooks: there is no 'doca'; there are kernel, ofed"),
        ({"when": {"secure_boot": True}}, "YAML reads on, off, yes and no as booleans"),
        ({"when": {"kernel_flavour": ">=generic"}}, "kernel_flavour: words are compared, so '>=generic' is none"),
        ({"when": {"driver_origin": "==nvidia"}}, "driver_origin: words are compared, so '==nvidia' is none"),
        ({"needs": {}}, "exactly one of needs, refuses, warns and doubts"),
        ({"needs": {}, "doubts": {"driver": "1"}, "settles": True}, "settles goes with needs only"),
        ({"refuses": {"driver": "1"}}, "exactly one of needs, refuses, warns and doubts"),
        ({"because": "x"}, "Extra inputs"),
        ({"known": "heard"}, "measured"),
    ],
)
def test_a_malformed_rule_is_refused(change: dict[str, object], words: str) -> None:
    rule = {"id": "x-1", "says": "X.", "known": "measured", "source": "here", "needs": {"driver": ">=1"}, **change}
    with pytest.raises(ValueError, match=re.escape(words)):
        load(yaml.safe_dump({"rules": [rule]}))


def test_a_maker_is_compared_in_lower_case() -> None:
    rule = {"id": "x-1", "says": "X.", "known": "measured", "source": "here", "refuses": {"driver_origin": "NVIDIA"}}
    (verdict,) = judge({"driver_origin": "nvidia"}, load(yaml.safe_dump({"rules": [rule]})))
    assert not verdict.allowed


def test_an_id_is_given_once() -> None:
    rule = {"id": "x-1", "says": "X.", "known": "measured", "source": "here", "needs": {"driver": ">=1"}}
    with pytest.raises(ValueError, match="another rule has the id x-1"):
        load(yaml.safe_dump({"rules": [rule, rule]}))


# -- How old an index may be.

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def index(age: timedelta, *, valid_until: str | None = None, suite: str = "trixie") -> Index:
    return Index(
        repository="debian",
        uri="http://mirror.example/debian",
        suite=suite,
        components=("main",),
        date=f"{NOW - age:%Y-%m-%dT%H:%M:%SZ}",
        valid_until=valid_until,
        signed_by="A" * 40,
        host_keyring="/k.gpg",
    )


def wish(max_age: object) -> dict[str, Repository]:
    return {"debian": Repository.model_validate({"max_age": max_age})}


@pytest.mark.parametrize(
    "other",
    [index(OLD_INDEX - DAY), index(OLD_INDEX - DAY, valid_until="2036-12-01T00:00:00Z"), index(-DAY)],
    ids=["young", "young and valid for long", "ahead"],
)
def test_other_indices_are_none(other: Index) -> None:
    assert judge_ages([other], {}, NOW) == []
    assert judge_ages([index(2 * OLD_INDEX)], wish("400d"), NOW) == []


@pytest.mark.parametrize(
    ("valid_until", "words"),
    [(None, "has no Valid-Until"), ("2036-12-01T00:00:00Z", "is valid until 2036-12-01T00:00:00Z")],
)
def test_an_old_index_is_a_warning_where_it_is_valid_for_years(valid_until: str | None, words: str) -> None:
    (finding,) = judge_ages([index(OLD_INDEX + DAY, valid_until=valid_until)], {}, NOW)
    assert (finding.rule, finding.warning) == ("index-age", True)
    dated = "http://mirror.example/debian: the index of debian trixie is dated 2026-05-26T12:00:00Z, 181 days ago"
    assert finding.words.startswith(f"{dated}, and {words}: is that mirror up to date?")


@pytest.mark.parametrize("valid_until", [None, "2026-12-01T00:00:00Z"])
@pytest.mark.parametrize("max_age", ["30d", "720h", 30 * 86400])
def test_max_age_refuses_whatever_valid_until_says(max_age: object, valid_until: str | None) -> None:
    assert judge_ages([index(29 * DAY, valid_until=valid_until)], wish(max_age), NOW) == []
    with pytest.raises(
        RepositoryUntrusted, match=r"31 days ago, and max_age of repositories\.debian is 30 days"
    ) as caught:
        judge_ages([index(31 * DAY, valid_until=valid_until), index(DAY, suite="young")], wish(max_age), NOW)
    assert "young" not in caught.value.message
    assert "clock" in str(caught.value.hint)


def test_the_date_of_an_rpm_index_without_timestamps_is_too_old() -> None:
    stands = index(DAY, suite="").model_copy(update={"kind": "rpm", "date": "1970-01-01T00:00:00Z"})
    assert len(judge_ages([stands], {}, NOW)) == 1
    with pytest.raises(RepositoryUntrusted, match="the index of debian is dated 1970"):
        judge_ages([stands], wish("1d"), NOW)


@pytest.mark.parametrize("value", ["30", "1 day", "5m", "20000d", -1, True, 1.5])
def test_what_is_no_age(value: object) -> None:
    with pytest.raises(ValueError, match="max_age"):
        wish(value)
