"""The root of an image as a host: the variables in which it differs, what is left out of it, and what is refused."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.builds.assign import by_intent
from gdsdeploy.converge import desired, image, plan_fleet
from gdsdeploy.converge.diff import HostPlan
from gdsdeploy.converge.image import Image
from gdsdeploy.converge.inventory import inventory
from gdsdeploy.errors import FleetInvalid, HostUnfit
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.model import Refusal
from gdsdeploy.host.model import expectation
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
        program = plan_fleet.write_run_files(load_fleet(LAB / "fleet.yml"), LOCK, LAB).program
        patch.setattr(plan_fleet.hostapp, "keep", lambda *_: program)
        yield


@pytest.fixture
def fleet() -> Fleet:
    return load_fleet(LAB / "fleet.yml")


def changed(fleet: Fleet, **profile: Any) -> Fleet:
    return fleet.model_copy(update={"profiles": {"gds": fleet.profiles["gds"].model_copy(update=profile)}})


def image_of(fleet: Fleet, *, has_loader: bool = True, waivers: tuple[str, ...] = ()) -> Image:
    return Image(ImageRoot(Path("/image"), has_loader=has_loader), ("enter",), "gpu1", fleet, waivers)


def state(fleet: Fleet, of: Image | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The variables of gpu1, and its desired state by the name of the resource; the host program reads it."""
    run_files = replace(plan_fleet.write_run_files(fleet, LOCK, LAB), image=of)
    values = plan_fleet.variables(inventory(fleet, LOCK, run_files))["gpu1"][1]
    listed = desired.resources_of(values, desired.Files())
    return values, {entry.name: entry.desired for entry in engine.read_resources({"version": 1, "resources": listed})}


def test_only_what_needs_the_running_kernel_differs(fleet: Fleet) -> None:
    fleet = changed(fleet, signing=Signing(), rdma="peermem")
    (_, host), (_, of_image) = state(fleet, None), state(fleet, image_of(fleet))
    assert [*of_image] == [name for name in host if name != "reboot"] + ["image"]
    different = {name for name in host if name != "reboot" and host[name] != of_image[name]}
    assert different == {"preflight", "expectation", "signing", "loaded"}
    assert (host["preflight"].unasked_kernel, of_image["preflight"].unasked_kernel) == (TARGET.kernel.release, "")
    assert (host["signing"].enrols, of_image["signing"].enrols) == (True, False)
    assert host["loaded"].modules == ["nvidia", "nvidia-fs", "nvidia-peermem"]
    assert (of_image["loaded"].modules, of_image["loaded"].units) == ([], {})
    assert of_image["loaded"].services == host["loaded"].services


def test_the_expectation_fits_whichever_host_boots(fleet: Fleet) -> None:
    states = state(fleet, None)[1], state(fleet, image_of(fleet))[1]
    host, of_image = (expectation.from_json(each["expectation"].content) for each in states)
    assert (host.host, of_image.host) == ("gpu1", "")
    assert {**vars(host), "host": ""} == vars(of_image)
    assert of_image.own_kernel, "the first boot has to be of the locked kernel"


def test_an_image_without_a_boot_loader(fleet: Fleet) -> None:
    fleet = changed(fleet, boot=Boot(arguments={"iommu": "pt"}))
    whole, without = (state(fleet, image_of(fleet, has_loader=loads))[1] for loads in (True, False))
    assert set(whole) - set(without) == {"boot_default"}
    assert (whole["boot_arguments"].arguments, without["boot_arguments"].arguments) == (["iommu=pt"], [])


def test_only_its_own_host_is_an_image_and_none_is_reached(fleet: Fleet) -> None:
    run_files = replace(plan_fleet.write_run_files(fleet, LOCK, LAB), image=image_of(fleet))
    values = {name: pair[1] for name, pair in plan_fleet.variables(inventory(fleet, LOCK, run_files)).items()}
    assert (values["gpu1"]["ansible_connection"], values["gpu1"]["ansible_become"]) == ("gdsdeploy.gds.root", False)
    assert values["gpu1"]["ansible_root_enter"] == ["enter"]
    assert (values["build1"]["ansible_connection"], values["build1"]["gds_host_image"]) == ("ssh", "")


def words(fleet: Fleet, **of: Any) -> dict[str, str]:
    return {entry.kind: entry.words for entry in image_of(fleet, **of).left(LOCK)}


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


def test_a_refused_image_is_not_begun(fleet: Fleet) -> None:
    full = Refusal("space", "100 MiB are free in /usr, and 800 are needed", "make room")
    error = image_of(fleet).refusal(HostPlan("gpu1", refusals=(full,)))
    assert isinstance(error, HostUnfit)
    assert (error.message, error.hint) == ("/image: 100 MiB are free in /usr, and 800 are needed", "make room")


def test_no_key_comes_into_an_image(fleet: Fleet) -> None:
    supply = by_intent(fleet, LOCK, "gpu1")
    builds, receives = (HostPlan("gpu1", supply=replace(supply, mode=mode)) for mode in ("build", "receive"))
    assert image_of(fleet).refusal(builds) is None
    signed = image_of(changed(fleet, signing=Signing()))
    assert signed.refusal(receives) is None
    error = signed.refusal(builds)
    assert error is not None
    assert "the key must not be in an image" in error.message
