"""Which stacks are tried: what the lock has, what is named, and what is not on offer."""

from __future__ import annotations

import pytest

from gdsdeploy.errors import GdsError, NoSolution
from gdsdeploy.model.fleet import Profile
from gdsdeploy.model.lock import Target
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.preflight import trial
from gdsdeploy.preflight.trial import StackCandidate, StackChoices, candidates
from tests.repos.dkmspackages import sources
from tests.repos.stack import TRIXIE, package, without
from tests.unit.lock.test_resolve import TWO_DRIVERS, target, universe

DEBIAN = stack_platform_for("debian-13")
BASE = ("bash", "binutils", "coreutils", "dash", "diffutils", "findutils", "gcc", "grep", "libpython3-stdlib", "mawk")
TOOLS = [package(name, "1") for name in (*BASE, "python3-minimal", "sed", "xz-utils", "zstd")]


def stacks(
    choices: StackChoices, locked: Target | None = None, stanzas: object = TWO_DRIVERS, **wish: object
) -> list[StackCandidate]:
    profile = Profile.model_validate({"os": "debian-13", **wish})
    return candidates("gds", profile, DEBIAN, universe(stanzas), [], sources, locked, choices)  # type: ignore[arg-type]


def test_every_combination_is_tried_also_what_a_rule_forbids() -> None:
    stack = stacks(StackChoices(("6.12.94", "6.12.107"), ("550", "570")))
    assert [(c.kernel, c.driver) for c in stack] == [
        ("6.12.94+deb13-amd64", "550.163.01"),
        ("6.12.94+deb13-amd64", "570.133.07"),
        ("6.12.107+deb13-amd64", "550.163.01"),
        ("6.12.107+deb13-amd64", "570.133.07"),
    ]
    forbidden = {(c.kernel, c.driver): [v.rule for v in c.against] for c in stack if c.against}
    assert forbidden[("6.12.107+deb13-amd64", "550.163.01")] == ["driver-550-pci-resize"]
    assert all(c.target is not None for c in stack)


def test_what_is_not_named_is_as_it_is_locked() -> None:
    locked = target(TRIXIE)
    (same,) = stacks(StackChoices(), locked)
    assert same.target is locked
    (other,) = stacks(StackChoices(kernels=("newest",)), locked)
    assert (other.kernel, other.driver) == ("6.12.107+deb13-amd64", locked.driver.version)
    assert other.target is not None
    assert {p.package for p in other.target.packages} >= {"linux-headers-6.12.107+deb13-amd64"}


def test_without_a_lock_the_pins_decide() -> None:
    (stack,) = stacks(StackChoices(), driver="550", kernel="6.12.94")
    assert (stack.kernel, stack.driver) == ("6.12.94+deb13-amd64", "550.163.01")


def test_without_nvidia_fs_there_is_none_to_try() -> None:
    (stack,) = stacks(StackChoices(), mode="p2pdma", kernel="6.12.94", driver="550")
    assert stack.nvidia_fs == ""
    assert stack.target is not None
    assert stack.target.nvidia_fs is None


def test_a_kernel_without_headers_is_refused_by_name() -> None:
    with pytest.raises(NoSolution) as error:
        stacks(StackChoices(("6.12.100+deb13-amd64",)))
    assert "no linux-headers-6.12.100+deb13-amd64" in error.value.message
    assert "6.12.107+deb13-amd64, 6.12.99+deb13-amd64, 6.12.94+deb13-amd64" in str(error.value.hint)


def test_a_driver_that_is_not_on_offer_is_refused_with_those_that_are() -> None:
    with pytest.raises(NoSolution) as error:
        stacks(StackChoices(drivers=("580",)))
    assert "the repositories have no driver 580" in error.value.message
    assert error.value.hint == "They have 570.133.07-1, 550.163.01-2"


def test_what_is_no_version_is_a_mistake_of_the_users() -> None:
    with pytest.raises(GdsError, match="not a version expression"):
        stacks(StackChoices(kernels=("the new one",)))


def test_packages_that_do_not_go_together_are_a_row_of_the_table() -> None:
    (stack,) = stacks(StackChoices(("6.12.94",), ("550",)), stanzas=without(TRIXIE, "firmware-nvidia-gsp"))
    assert stack.target is None
    assert "firmware-nvidia-gsp" in stack.problem


def test_the_compiler_comes_with_what_it_needs_and_without_the_kernel_itself() -> None:
    stanzas = [*without(TRIXIE, "gcc-14", "libc6"), package("gcc-14", "14", depends="libgcc"), package("libgcc", "14"),
               package("libc6", "2.41-12", depends="libgcc"), *TOOLS]  # fmt: skip
    locked = target(stanzas)
    names = [c.package for c in trial.toolchain(locked, DEBIAN, universe(stanzas))]
    assert {"gcc-14", "libgcc", "libc6", "pahole", "kmod", "python3-minimal"} <= set(names)
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith("linux-") and name != "linux-base"]
    # An image needs this only to boot.
    assert "initramfs-tools" not in names


def test_a_repository_without_a_compiler_is_refused() -> None:
    with pytest.raises(NoSolution, match="the repositories have no bash, which building modules needs"):
        trial.toolchain(target(TRIXIE), DEBIAN, universe(TRIXIE))
