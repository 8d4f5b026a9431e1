"""The desired state of an image: that of a host, without what needs the kernel that will run."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.builds.assign import CachedBuild
from gdsdeploy.converge import desired, image, plan_fleet
from gdsdeploy.converge.image import Image
from gdsdeploy.converge.inventory import inventory
from gdsdeploy.errors import Busy, ConvergeFailed, FleetInvalid, GdsError, HostUnfit, ModuleBuildFailed, NotProvisioned
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply import engine
from gdsdeploy.host.archive.provenance import Origin
from gdsdeploy.host.model import expectation
from gdsdeploy.image.ask import Parcel
from gdsdeploy.image.root import ImageRoot
from gdsdeploy.lock import lockfile
from gdsdeploy.model.fleet import Fit, Fleet, FleetWaiver
from gdsdeploy.model.profile_parts import Boot, Signing

LAB = Path(__file__).parents[2] / "golden" / "lab"
LOCK = lockfile.read(LAB / "gdsdeploy.lock")
TARGET = LOCK.targets["gds"]


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("GDSDEPLOY_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        program = plan_fleet.write_run_files(load_fleet(LAB / "fleet.yml"), LOCK, LAB).program
        patch.setattr(plan_fleet.hostapp, "keep", lambda *_: program)
        patch.setattr(image.hostapp, "build", lambda *_: b"program")
        yield


@pytest.fixture
def fleet() -> Fleet:
    return load_fleet(LAB / "fleet.yml")


def changed(fleet: Fleet, **profile: Any) -> Fleet:
    return fleet.model_copy(update={"profiles": {"gds": fleet.profiles["gds"].model_copy(update=profile)}})


def host_and_image(fleet: Fleet) -> tuple[dict[str, Any], dict[str, Any]]:
    """Name → desired state, of a host and of an image; the host program reads both."""
    run_files = plan_fleet.write_run_files(fleet, LOCK, LAB)
    resources = desired.resources_of(
        plan_fleet.variables(inventory(fleet, LOCK, run_files))["gpu1"][1], desired.Files()
    )
    pair = []
    for listed in (resources, image.of_image(resources)):
        entries = engine.read_resources({"version": 1, "resources": listed})
        pair.append({entry.name: entry.desired for entry in entries})
    return pair[0], pair[1]


def test_only_what_needs_the_running_kernel_differs(fleet: Fleet) -> None:
    host, of_image = host_and_image(changed(fleet, signing=Signing(), rdma="peermem"))
    assert [*of_image] == [name for name in host if name != "reboot"] + ["image"]
    different = {name for name in host if name != "reboot" and host[name] != of_image[name]}
    assert different == {"preflight", "expectation", "signing", "loaded"}
    assert (host["preflight"].unasked_kernel, of_image["preflight"].unasked_kernel) == (TARGET.kernel.release, "")
    assert (host["signing"].enrols, of_image["signing"].enrols) == (True, False)
    assert host["loaded"].modules == ["nvidia", "nvidia-fs", "nvidia-peermem"]
    assert (of_image["loaded"].modules, of_image["loaded"].units) == ([], {})
    assert of_image["loaded"].services == host["loaded"].services


def test_the_expectation_fits_whichever_host_boots(fleet: Fleet) -> None:
    host, of_image = (expectation.from_json(each["expectation"].content) for each in host_and_image(fleet))
    assert (host.host, of_image.host) == ("gpu1", "")
    assert {**vars(host), "host": ""} == vars(of_image)
    assert of_image.own_kernel, "the first boot has to be of the locked kernel"


def test_an_image_without_a_boot_loader(fleet: Fleet) -> None:
    entries = [{"resource": name} for name in ("guard", "boot_arguments", "modules", "boot_default", "image")]
    names = [entry["resource"] for entry in image.without_loader(entries)]
    assert names == ["guard", "modules", "image"]


def words(fleet: Fleet, *, has_loader: bool = True, waivers: tuple[str, ...] = ()) -> dict[str, str]:
    listed = image.left_out(fleet.profiles["gds"], TARGET, waivers, has_loader=has_loader)
    return {entry.kind: entry.words for entry in listed}


def test_what_is_left_is_named(fleet: Fleet) -> None:
    release = TARGET.kernel.release
    assert words(fleet) == {
        "load": "the first boot loads nvidia, nvidia-fs",
        "reboot": f"the first boot has to be of kernel {release}",
        "gate": "the gate judges the first boot",
    }
    more = changed(fleet, boot=Boot(arguments={"iommu": "pt"}), signing=Signing(), rdma="peermem")
    listed = words(more, has_loader=False, waivers=("storage.path:/mnt/nvme",))
    assert listed["load"].endswith("nvidia-peermem")
    assert listed["reboot"] == f"the first boot has to be of kernel {release}: no boot loader is set up in the image"
    assert listed["arguments"] == "what boots the hosts has to pass the kernel's arguments: iommu=pt"
    assert "enrols the key /etc/gdsdeploy-keys/modules.der" in listed["enrol"]
    assert listed["waiver"] == "waivers of single hosts aren't part of it: storage.path:/mnt/nvme"
    assert "arguments" not in words(more), "the boot loader of the image has them"


def test_a_profile_without_a_kernel_of_its_own_leaves_nothing_but_the_gate(fleet: Fleet) -> None:
    assert list(words(changed(fleet, own_kernel=False), has_loader=False)) == ["gate"]


def test_images_are_for_hosts_whose_cufile_is_the_same(fleet: Fleet) -> None:
    with pytest.raises(FleetInvalid, match="build1 is a builder"):
        image.fleet_of_image(fleet, "build1")
    with pytest.raises(FleetInvalid, match="an image has one for all of them"):
        image.fleet_of_image(changed(fleet, fit=Fit()), "gpu1")


def test_waivers_of_single_hosts_stay_out(fleet: Fleet) -> None:
    def waiver(check: str, *hosts: str) -> FleetWaiver:
        return FleetWaiver(check=check, hosts=hosts, until=dt.date(2030, 1, 1), reason="a test")

    every, one, other = waiver("os.release", "gpu*"), waiver("driver.version", "gpu1"), waiver("boot.kernel", "gpu2")
    hosts = dict.fromkeys(("gpu1", "gpu2"), fleet.hosts["gpu1"])
    both = fleet.model_copy(update={"hosts": hosts, "waivers": (every, one, other)})
    shared, single = image.fleet_of_image(both, "gpu1")
    assert (shared.waivers, single) == ((every,), ["driver.version"])


class Keys:
    """The public key of each builder."""

    folder = Path("builders")

    def origin(self, name: str) -> Origin:
        return Origin(name, "the key of " + name)


class Shelf:
    """A run's archives: none, or one build that serves every want."""

    def __init__(self, folder: Path, *, is_cached: bool) -> None:
        self.folder, self.keys, self.is_cached = folder, Keys(), is_cached

    def look(self, want: str, _: Any) -> Any:
        if not self.is_cached:
            return None
        (self.folder / f"{want}.tar").write_bytes(b"archive")
        return CachedBuild("build1", {})


class Host:
    """Stands for the host program: answers, and keeps what it was asked."""

    def __init__(self, **answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[tuple[str, ...], Any, Parcel | None, bool]] = []

    def __call__(
        self, _: ImageRoot, argv: Any, stdin: bytes = b"", *, changes: bool, parcel: Parcel | None = None, **__: Any
    ) -> dict[str, Any]:
        document = json.loads(stdin or "{}")
        self.calls.append((tuple(argv), document, parcel, changes))
        if "variants" not in document:
            return {"error": None, "resources": [], "notes": [], **self.answer}
        variants = {name: [_result(entry) for entry in listed] for name, listed in document["variants"].items()}
        return {"variants": variants}


def _result(entry: Any) -> dict[str, Any]:
    name = ".".join(filter(None, (entry["resource"], entry["instance"])))
    change = {"kind": "write", "subject": f"/{name}", "resource": name, "disruption": "none"}
    report = {"loader": "grub"} if name == "image" else {"key": {"arch": "x86_64"}} if name == "modules" else {}
    return {"name": name, "changes": [change], "refusals": [], "unknown": [], "report": report}


def opened(fleet: Fleet, folder: Path, *, is_cached: bool = True) -> Image:
    return Image(
        ImageRoot(Path("/image")), fleet, LOCK, LAB / "fleet.yml", "gpu1", Shelf(folder, is_cached=is_cached), ()
    )  # type: ignore[arg-type]


def test_one_call_applies_everything(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {"kind": "write", "subject": "/etc/x", "disruption": "none"}
    host = Host(resources=[{"name": "x", "changes": [written]}], notes=["a note"])
    monkeypatch.setattr(image, "ask", host)
    lines: list[str] = []
    opening = opened(fleet, tmp_path)
    planned = image.plan_image(opening)
    assert {"/boot_default", "/boot_arguments", "/image"} <= {change.subject for change in planned.plan.changes}
    changes = image.provision_image(opening, planned, lines.append)
    assert ([change.subject for change in changes], lines) == (["/etc/x"], ["note: a note"])
    (check, question, nothing, _), (argv, document, parcel, changing) = host.calls
    assert (check[:2], nothing) == (("apply", "--check"), None)
    assert (argv, changing) == (("apply", "--json", "--desired", "-"), True)
    assert {entry["resource"] for entry in document["resources"]} == {
        entry["resource"] for entry in question["variants"]["keep"]
    }
    (modules,) = [entry["desired"] for entry in document["resources"] if entry["resource"] == "modules"]
    assert parcel is not None
    assert parcel.place == f"/var/lib/gdsdeploy/modules-{TARGET.kernel.release}.tar"
    assert modules["archive_sha256"] == plan_fleet.sha256(parcel.source)
    assert (modules["builder"], modules["builder_key"]) == ("build1", "the key of build1")
    engine.read_resources(document)


def test_without_a_boot_loader_nothing_of_it_is_planned(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host()
    monkeypatch.setattr(image, "ask", host)
    monkeypatch.setitem(globals(), "_result", lambda entry, real=_result: {**real(entry), "report": {}})
    opening = opened(fleet, tmp_path)
    planned = image.plan_image(opening)
    assert not {"/boot_default", "/boot_arguments"} & {change.subject for change in planned.plan.changes}
    image.provision_image(opening, planned)
    names = {entry["resource"] for entry in host.calls[-1][1]["resources"]}
    assert not names & {"boot_default", "boot_arguments", "reboot"}


def test_an_image_hands_nothing_over(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    monkeypatch.setattr(image, "ask", host)
    # Such a host hands its modules over for the cache.
    build = fleet.hosts["gpu1"].model_copy(update={"modules": "build"})
    alone = changed(fleet, builder=None).model_copy(update={"hosts": {"gpu1": build}, "builders": {}})
    opening = opened(alone, tmp_path, is_cached=False)
    image.provision_image(opening, image.plan_image(opening))
    (modules,) = [entry["desired"] for entry in host.calls[-1][1]["resources"] if entry["resource"] == "modules"]
    assert (modules["source"], modules["hand_over"], host.calls[-1][2]) == ("build", False, None)
    signed = changed(opening.fleet, signing=Signing())
    opening = opened(signed, tmp_path, is_cached=False)
    with pytest.raises(HostUnfit, match="the key must not be in an image"):
        image.provision_image(opening, image.plan_image(opening))


def test_without_a_build_nothing_is_changed(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host()
    monkeypatch.setattr(image, "ask", host)
    opening = opened(fleet, tmp_path, is_cached=False)
    planned = image.plan_image(opening)
    with pytest.raises(NotProvisioned, match="no machine builds its modules: build1"):
        image.provision_image(opening, planned)
    assert len(host.calls) == 1


@pytest.mark.parametrize(
    ("kind", "error"),
    [("refused", HostUnfit), ("modules", ModuleBuildFailed), ("busy", Busy), ("failed", ConvergeFailed)],
)
def test_a_failure_names_the_image(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[GdsError]
) -> None:
    monkeypatch.setattr(image, "ask", Host(error={"kind": kind, "message": "no room", "hint": "make room"}))
    opening = opened(fleet, tmp_path)
    with pytest.raises(error, match="/image: no room") as caught:
        image.remove_image(opening)
    assert caught.value.hint == "make room"


@pytest.mark.parametrize("resources", [7, [{}], [{"changes": [{"kind": "explode"}]}]])
def test_a_malformed_answer_is_an_error(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resources: Any
) -> None:
    monkeypatch.setattr(image, "ask", Host(resources=resources))
    with pytest.raises(HostUnfit, match="its answer is malformed"):
        image.remove_image(opened(fleet, tmp_path))
