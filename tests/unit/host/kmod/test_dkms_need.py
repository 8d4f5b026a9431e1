"""What DKMS builds again, and what it doesn't try again: the audit's findings and one list decide."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.build import dkms
from gdsdeploy.host.build.dkms import DkmsRequest, Package, provide
from gdsdeploy.host.errors import BuildError, UnbuildableError
from gdsdeploy.host.kmod.files import Tree
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.kmod.module import REBUILT
from tests.unit.host.kmod.kmod_elf import write_module
from tests.unit.host.kmod.kmod_root import RELEASE, VERSION, Root

OTHER = "6.12.86+deb13-amd64"
DRIVER = Package("nvidia", VERSION, "driver")
FINDINGS = json.loads((Path(__file__).parents[4] / "docs/gen/audit_findings.json").read_text())


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DkmsRequest:
    """A driver that DKMS has installed for the target; nothing of it for an older kernel."""
    Root(tmp_path), Root(tmp_path, OTHER)
    place(tmp_path)
    monkeypatch.setattr(dkms, "LOGS", "/var/log/kmod")
    monkeypatch.setattr(dkms, "_log", lambda release, package: f"{tmp_path}/log/{release}/{package.name}.log")
    monkeypatch.setattr(dkms, "read_text", lambda _root, path: Path(path).read_text() if Path(path).exists() else "")
    for release in (RELEASE, OTHER):
        (tmp_path / "log" / release).mkdir(parents=True)
    tree = tmp_path / f"usr/src/nvidia-{VERSION}"
    (tree / "nvidia").mkdir(parents=True)
    (tree / "nvidia/nv-p2p.h").touch()
    return DkmsRequest(RELEASE, [DRIVER], Tree(str(tree), VERSION, "open", "nvidia"), root=str(tmp_path))


def place(root: Path, release: str = RELEASE, name: str = "nvidia", **changed: Any) -> None:
    """Write a module of the driver where DKMS installs it, and DKMS's own copy and link."""
    built = {"info": [("version", VERSION)], "license": "Dual MIT/GPL", "imports": {"kfree": 0xAAAA0001}, **changed}
    write_module(root / f"lib/modules/{release}/updates/dkms/{name}.ko", name.replace("-", "_"), **built)
    own = root / f"var/lib/dkms/nvidia/{VERSION}/{release}/x86_64/module/{name}.ko"
    write_module(own, name.replace("-", "_"), **built)
    link = root / f"var/lib/dkms/nvidia/kernel-{release}-x86_64"
    if not link.is_symlink():
        link.symlink_to(f"{VERSION}/{release}/x86_64")


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("nvidia", {}, ""),
        ("nvidia", {"imports": {"kfree": 0xAAAA0009}}, "other versions"),
        ("nvidia", {"imports": {"gone": 0xAAAA0001}}, "nothing on this host exports gone"),
        ("nvidia", {"imports": {"kfree": None}}, "no symbol version"),
        ("nvidia", {"info": [("version", "550.9")]}, "is driver 550.9"),
        ("nvidia", {"license": "NVIDIA"}, "proprietary flavour"),
        ("nvidia", {"machine": 183}, "is for aarch64"),
        ("nvidia-uvm", {"info": [("version", "550.9")]}, "is of driver 550.9"),
    ],
)
def test_what_the_audit_says_to_build_is_built(
    name: str, changed: dict[str, Any], words: str, plan: DkmsRequest
) -> None:
    place(Path(plan.root), name=name, **changed)
    action, why = dkms.need(Kernel(RELEASE, plan.root), DRIVER, plan)
    assert (action, words in why) == ("rebuild" if words else "", True)


#: Pages that name a build which isn't DKMS's: of storage drivers, or a signature made again.
NOT_DKMS = ("hook-", "signature-", "dependency-missing")


def test_the_list_has_every_finding_whose_page_says_to_build() -> None:
    built = {row["id"] for row in FINDINGS if "uild" in row["fix"] and not row["id"].startswith(NOT_DKMS)}
    assert built <= REBUILT <= {row["id"] for row in FINDINGS}


def runs(monkeypatch: pytest.MonkeyPatch, build: Callable[[str], object]) -> list[str]:
    """The kernels that DKMS is asked to build for, each by ``build``."""
    tried: list[str] = []

    def run(kernel: Kernel, *_: object) -> None:
        tried.append(kernel.release)
        build(kernel.release)

    monkeypatch.setattr(dkms, "_run", run)
    return tried


@pytest.mark.parametrize(("kind", "again"), [(BuildError, [OTHER]), (UnbuildableError, [])])
def test_only_what_the_sources_are_refused_for_is_not_tried_again(
    kind: type[BuildError], again: list[str], plan: DkmsRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_release: str) -> None:
        raise kind("it doesn't build: gcc-14: not found", "the log has more")

    tried = runs(monkeypatch, fail)
    assert "gcc-14: not found" in provide(plan)["notes"][0]
    assert provide(plan)["changed"] is False
    assert tried == [OTHER, *again]


@pytest.mark.parametrize("path", ["usr/bin/x86_64-linux-gnu-gcc-14", f"lib/modules/{OTHER}/kernel/extra/new.ko"])
def test_with_other_inputs_it_is_tried_again(path: str, plan: DkmsRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_release: str) -> None:
        raise UnbuildableError("it doesn't build", "")

    tried = runs(monkeypatch, fail)
    provide(plan)
    (Path(plan.root) / path).parent.mkdir(parents=True, exist_ok=True)
    (Path(plan.root) / path).touch()
    provide(plan)
    assert tried == [OTHER, OTHER]


def test_a_build_that_takes_nothing_away_is_not_repeated(plan: DkmsRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another file has precedence, for instance; the audit goes on to say so."""
    place(Path(plan.root), OTHER)
    place(Path(plan.root), info=[("version", "550.9")])
    tried = runs(monkeypatch, lambda _: None)
    assert provide(plan)["changed"]
    result = provide(plan)
    assert (tried, result["changed"]) == ([RELEASE], False)
    assert "not tried again" in result["notes"][0]
    place(Path(plan.root), info=[("version", "550.8")])
    assert provide(plan)["changed"], "something else is wrong now"
