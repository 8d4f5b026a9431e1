"""Packages that leave: their reasons, what a profile allows, the record, and the way back; apt is imitated."""

from __future__ import annotations

import pytest

from gdsdeploy.host.apply import removal
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import left
from gdsdeploy.host.errors import ApplyError
from gdsdeploy.host.process import Output
from tests.unit.host.apply.apt_host import SHA, AptHost, apt, packages

__all__ = ["apt"]


def moved(apt: AptHost, *lines: str) -> None:
    """What apt resolves."""
    apt.simulated = "".join(f"{line}\n" for line in lines)


def removals(apt: AptHost, **desired: str) -> dict[str, tuple[str, str]]:
    (result,) = apt.check(packages(**desired))
    return {change.subject: (change.reason, change.by) for change in result.changes if change.kind == "remove"}


def test_each_removal_has_the_package_by_which_it_happens(apt: AptHost) -> None:
    names = ("driver", "decode", "library1", "old-smi", "rival", "loose")
    apt.packages = dict.fromkeys(names, ("1", "ii"))
    moved(
        apt, *(f"Remv {name} [1]" for name in names[1:]), "Inst driver [1] (2 x [all])", "Inst library2 (2 x [all])"
    )  # fmt: skip
    apt.offered = {"driver=2": SHA, "library2=2": SHA}
    apt.stanzas = {
        "driver=2": "Replaces: old-smi (<< 2), older\nBreaks: rival (<< 2)\nConflicts: other\n",
        "library2=2": "Provides: library\n",
        "library1": "Provides: library\n",
        "decode": "Depends: libc6, driver (= 1) | none\n",
    }
    assert removals(apt, packages="driver=2") == {
        "decode": ("needs", "driver"),
        "library1": ("replaced-by", "library2"),
        "old-smi": ("replaced-by", "driver"),
        "rival": ("conflicts", "driver"),
        "loose": ("dependency", ""),
    }
    (refusal,) = apt.check(packages(packages="driver=2"))[0].refusals
    assert refusal.message.endswith("doesn't replace: decode 1, rival 1, loose 1")


def test_only_what_the_profile_names_may_leave(apt: AptHost) -> None:
    apt.packages = dict.fromkeys(("driver", "libnvidia-decode-580", "libnvidia-gl-580"), ("1", "ii"))
    moves = ("Remv libnvidia-decode-580 [1]", "Remv libnvidia-gl-580 [1]", "Inst driver [1] (2 x [all])")
    moved(apt, *moves)
    (refusal,) = apt.check(packages(packages="driver=2", removes="libnvidia-decode-*"))[0].refusals
    assert refusal.message.endswith("doesn't replace: libnvidia-gl-580 1")
    assert "removes: [libnvidia-gl-580]" in refusal.hint
    with pytest.raises(ApplyError, match="doesn't replace: libnvidia-gl-580 1"):
        apt.apply(packages(packages="driver=2", removes="libnvidia-decode-*"))
    assert apt.changed == []
    both = {"packages": "driver=2", "removes": "libnvidia-decode-* libnvidia-gl-580"}
    assert {reason for reason, _ in removals(apt, **both).values()} == {"allowed"}
    apt.apply(packages(**both))
    assert apt.packages["driver"][0] == "2"


def test_a_package_on_hold_leaves_only_if_the_profile_names_it(apt: AptHost) -> None:
    apt.packages = {"driver": ("1", "ii"), "libnvidia-decode-580": ("1", "hi")}
    moved(apt, "Remv libnvidia-decode-580 [1]", "Inst driver [1] (2 x [all])")
    refusals = apt.check(packages(packages="driver=2"))[0].refusals
    assert [refusal.id for refusal in refusals] == ["held", "removals"]
    assert "apt-mark unhold libnvidia-decode-580" in refusals[0].hint
    assert apt.check(packages(packages="driver=2", removes="libnvidia-decode-*"))[0].refusals == []


def provision(apt: AptHost) -> None:
    """The driver moves, a library is replaced, a piece may leave."""
    apt.packages = {"driver": ("1", "ii"), "decode": ("1", "hi"), "library1": ("1", "ii")}
    apt.automatic = {"library1"}

    def change(words: list[str]) -> None:
        # apt removes what is held only by its name.
        if "driver=2" in words:
            apt.packages.pop("library1", None)
        AptHost._change(apt, words)

    apt._change = change  # type: ignore[method-assign]
    moved(apt, "Remv decode [1]", "Remv library1 [1]", "Inst driver [1] (2 x [all])", "Inst library2 (2 x [all])")
    apt.apply(packages(packages="driver=2 library2=2", removes="*"))
    apt.simulated = None


def test_the_record_has_marks_holds_and_the_first_version(apt: AptHost) -> None:
    provision(apt)
    first = "decode=1 manual held\ndriver=1 manual moved\nlibrary1=1 automatic\n"
    assert apt.text(left.RECORD) == first
    moved(apt, "Inst driver [2] (3 x [all])")
    apt.apply(packages(packages="driver=3 library2=2"))
    assert apt.text(left.RECORD) == first
    apt.packages["decode"] = ("9", "ii")
    moved(apt, "Inst driver [3] (4 x [all])")
    apt.apply(packages(packages="driver=4 library2=2"))
    assert "decode" not in apt.text(left.RECORD), "an administrator has installed it again"


def test_a_damaged_line_is_no_package() -> None:
    class Host(ManagedHost):
        def text(self, path: str) -> str:
            assert path == left.RECORD
            return "--force=1\nname\na=1 manual\nb=2\nc=3 automatic held stranger\nd=4 automatic held\n"

    assert [line.line for line in left.read(Host())] == ["a=1 manual", "b=2 manual", "d=4 automatic held"]


def test_everything_comes_back_as_it_was(apt: AptHost) -> None:
    provision(apt)
    apt.offered = {"decode=1": SHA, "library1=1": SHA, "driver=1": SHA}
    host = ManagedHost(root=str(apt.root))
    changes = removal.remove(host)
    assert {(c.kind, c.subject, c.after) for c in changes if c.reason == left.REASON} == {
        ("install", "decode", "1"),
        ("install", "library1", "1"),
        ("downgrade", "driver", "1"),
    }
    assert apt.packages == {"driver": ("1", "ii"), "decode": ("1", "hi"), "library1": ("1", "ii")}
    assert (host.notes, apt.automatic) == ([], {"library1"})
    assert not (apt.root / "var/lib/gdsdeploy").exists()


def test_a_package_that_needs_one_of_the_locks_comes_back_in_its_version(apt: AptHost) -> None:
    """The driver moved, and its new version leaves with a package that came for it."""
    apt.packages = {"driver": ("1", "hi")}
    moved(apt, "Inst driver [1] (2 x [all])", "Inst helper (1 x [all])")
    apt.apply(packages(packages="driver=2 helper=1"))
    apt.simulated = None
    assert apt.text(left.RECORD) == "driver=1 manual held moved\n"
    apt.offered = {"driver=1": SHA}
    change, simulate = apt._change, apt._simulate

    def purge(words: list[str]) -> None:
        change(words)
        if "purge" in words:
            apt.packages.pop("driver")

    def resolve(words: list[str]) -> str:
        dependent = "Remv driver [2]\n" if words[-1] == "helper" else ""
        return simulate(words) + dependent

    apt._change, apt._simulate = purge, resolve  # type: ignore[method-assign]
    checked = removal.remove(ManagedHost(root=str(apt.root), check=True))
    host = ManagedHost(root=str(apt.root))
    done = removal.remove(host)
    for changes in (checked, done):
        packaged = [(one.kind, one.subject, one.after) for one in changes if one.subject in ("driver", "helper")]
        assert ("remove", "driver", "") in packaged
        assert packaged[-1] == ("install", "driver", "1")
    assert (apt.packages, host.notes) == ({"driver": ("1", "hi")}, [])


def test_what_no_repository_offers_is_said_and_the_rest_comes(apt: AptHost) -> None:
    provision(apt)
    apt.offered = {"library1=1": SHA}
    host = ManagedHost(root=str(apt.root))
    removal.remove(host)
    assert "library1" in apt.packages
    assert "decode" not in apt.packages
    assert host.notes == [
        f"{name}=1 {did} and can't come back: no repository of this host offers this version;"
        f" to try it: apt-get install {name}=1"
        for name, did in {"decode": "left for the lock", "driver": "was there before"}.items()
    ]
    assert apt.text(left.RECORD) == "decode=1 manual held\n"
    apt.offered["decode=1"] = SHA
    removal.remove(ManagedHost(root=str(apt.root)))
    assert apt.packages["decode"] == ("1", "hi")
    assert not (apt.root / "var/lib/gdsdeploy").exists()


def test_nothing_that_stays_moves_for_what_left(apt: AptHost) -> None:
    """apt would take another package away, or move one that isn't on record."""
    provision(apt)
    apt.offered = {"decode=1": SHA, "library1=1": SHA, "driver=1": SHA}
    simulate = apt._simulate

    def resolve(words: list[str]) -> str:
        more = "Remv slurm [1]\nInst libc6 [2] (1 x [all])\n" if "decode=1" in words else ""
        return more + simulate(words)

    apt._simulate = resolve  # type: ignore[method-assign]
    apt.packages["slurm"] = ("1", "ii")
    host = ManagedHost(root=str(apt.root))
    removal.remove(host)
    assert ("library1" in apt.packages, "decode" in apt.packages) == (True, False)
    (note,) = host.notes
    assert "with what stays on this host it would also remove slurm, downgrade libc6;" in note


def test_a_transaction_that_fails_stops_the_removal_with_a_way_out(apt: AptHost) -> None:
    provision(apt)
    apt.offered = {"decode=1": SHA, "library1=1": SHA}
    apt.failing["apt-get --quiet --assume-yes --option=DPkg::Lock::Timeout=300 --option=Dpkg"] = Output(
        100, "", "E: 404"
    )
    with pytest.raises(ApplyError, match=r"what left for the lock doesn't come back: [^\0]*404") as caught:
        removal.remove(ManagedHost(root=str(apt.root)))
    assert caught.value.hint == f"run this again; or delete {left.RECORD}, so that nothing comes back"
    assert apt.text(left.RECORD).startswith("decode=1 manual held\n")
