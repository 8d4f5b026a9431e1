"""kernel_changes.yml, the program that reads tags for it, and the rules that come of both."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import resources

import pytest

from docs.gen import compat_rules, kernel_changes
from docs.gen.kernel_changes import Tag
from gdsdeploy.host import data
from gdsdeploy.host.model import compat


def test_hosts_have_the_rules_as_the_tables_make_them() -> None:
    assert resources.files(data).joinpath("compat.json").read_text(encoding="utf-8") == compat_rules.table()


def test_the_tags_are_read_again_in_time() -> None:
    last = kernel_changes.table().read_again_after
    newest = kernel_changes.tags()["driver"]
    assert newest.date < last
    assert datetime.now(UTC).date() <= last, (
        f"the newest tag of tags.yml, {newest.newest}, is of {newest.date}, kernel_changes.yml has read_again_after:"
        f" {last}; follow 'Add a release of the driver' in docs/guides/extend.md"
    )


def test_releases_without_a_tag_are_like_their_neighbours_or_unknown() -> None:
    states = [("515.1", "breaks"), ("520.1", "breaks"), ("520.3", "knows"), ("535.1", "knows"), ("545.1", "breaks")]
    seen = kernel_changes.ranges([(Tag(version, day), state) for day, (version, state) in enumerate(states)])  # type: ignore[misc]
    assert seen.breaks == ("<=515.1", ">=516, <=520.1", ">=545.1, <=545.1")
    assert seen.knows == (">=520.3, <536",)
    assert seen.unknown == (">515.1, <516", ">520.1, <520.3", ">=536, <545.1", ">545.1")


#: nvidia-fs of NVIDIA → kernels on which it was compiled, as far as known, and how that ended.
COMPILED = {
    "2.14.13": {"6.1.176": False},
    "2.15.1": {"6.2.12": False},
    "2.16.1": {"6.1.176": False},
    "2.17.5": {"6.1.176": True, "6.1.192": True, "6.12.95": False},
    "2.18.3": {"6.1.176": True, "6.3.1": False, "6.5.0": False, "6.12.95": False},
    "2.19.7": {"6.1.176": True, "6.12.95": False},
    "2.24.2": {"6.1.176": True, "6.12.118": False},
    "2.25.7": {"6.1.176": True, "6.12.118": True},
    "2.26.6": {"6.12.95": True, "6.17.0": False},
    "2.28.2": {"6.12.95": True, "6.18.8": False},
    "2.28.4": {"6.12.118": True, "7.0.0": False, "7.2.12": False},
    "2.29.4": {"7.1.9": True},
    "2.30.1": {"7.2.5": True},
}


@pytest.mark.parametrize("version", COMPILED)
def test_nvidia_fs_is_judged_as_it_compiled(version: str) -> None:
    for kernel, compiles in COMPILED[version].items():
        combination = {"nvidia_fs": version, "nvidia_fs_origin": "nvidia", "kernel": kernel}
        kinds = {verdict.kind for verdict in compat.judge(combination, compat.rules_with(()))}
        assert (compat.REFUSED in kinds) is not compiles, kernel
        assert not compiles or compat.UNKNOWN not in kinds, kernel
