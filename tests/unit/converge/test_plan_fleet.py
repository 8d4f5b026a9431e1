"""What machines are asked: their desired state in each way in which they may come to their modules; and bad answers.

The root of an image as a host: the variables in which it differs, what is left out of it, and what is refused.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.builds.assign import by_intent
from gdsdeploy.converge import desired, image, plan_fleet
from gdsdeploy.converge.diff import BUILD, KEEP, PACKAGED, RECEIVE, HostPlan
from gdsdeploy.converge.image import Image
from gdsdeploy.converge.inventory import inventory
from gdsdeploy.converge.machine import Files, Machine, RunFiles
from gdsdeploy.errors import FleetInvalid, HostUnfit, HostUnreachable
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.model import Refusal
from gdsdeploy.host.apply.packages.managers import Key
from gdsdeploy.host.model import expectation
from gdsdeploy.image.root import ImageRoot
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror.host_sources import HOST_KEYRING
from gdsdeploy.model.fleet import Fit, Fleet, FleetWaiver, ImexNode, KernelPin, Mirror
from gdsdeploy.model.profile_parts import Boot, Signing
from gdsdeploy.ssh.endpoint import Answer
from gdsdeploy.zipapp import hostapp
from tests.pins.rendering import values_in

LAB = Path(__file__).parents[2] / "golden" / "lab"
LOCK = lockfile.read(LAB / "gdsdeploy.lock")
RELEASE = LOCK.targets["gds"].kernel.release


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        program = hostapp.keep(tmp_path_factory.mktemp("program"))
        # Packed once; it is the same for every test.
        patch.setattr(plan_fleet.hostapp, "keep", lambda *_: program)
        yield


@pytest.fixture
def fleet() -> Fleet:
    return load_fleet(LAB / "fleet.yml")


def changed(fleet: Fleet, **profile: Any) -> Fleet:
    updated = fleet.profiles["gds"].model_copy(update=profile)
    builders = {} if "builder" in profile else dict(fleet.builders)
    return fleet.model_copy(update={"profiles": {"gds": updated}, "builders": builders})


def document_of(documents: plan_fleet.Documents, name: str) -> plan_fleet.Document:
    """A machine's desired state in every variant that it can be asked for."""
    receive = [KEEP, RECEIVE]
    possible = {"build": [BUILD], "receive": receive, "auto": [BUILD, *receive], "packaged": [PACKAGED]}
    return documents.of(name, possible[documents.fleet.modules(name)])


def ways(fleet: Fleet, name: str) -> dict[str, dict[str, Any]]:
    """Variant → name of a resource → its desired state; each is read as the host program reads it."""
    document = document_of(plan_fleet.Documents(fleet, LOCK, RunFiles(LAB)), name)
    variants = {}
    for way, resources in document["variants"].items():
        entries = engine.read_resources({"version": document["version"], "resources": resources})
        variants[way] = {entry.name: entry.desired for entry in entries}
        assert len(entries) == len(variants[way]), "each resource stands once"
    return variants


@pytest.mark.parametrize(
    ("profile", "kernel"),
    [({}, RELEASE), ({"kernel": KernelPin(flavour="amd64")}, ""), ({"own_kernel": False}, "")],
)
def test_preflight_watches_the_flavour_where_the_profile_names_none(
    fleet: Fleet, profile: dict[str, Any], kernel: str
) -> None:
    variants = ways(changed(fleet, **profile), "gpu1")
    assert {resources["preflight"].unasked_kernel for resources in variants.values()} == {kernel}


def test_machines_of_a_kind_share_all_but_their_names(fleet: Fleet) -> None:
    """Each document is what it is alone, whatever tells the machines apart."""
    own = fleet.hosts["gpu1"]
    others = {
        "gpu9": own,
        "waived": own,
        "builds": own.model_copy(update={"modules": "build"}),
        "imex": own.model_copy(update={"imex": ImexNode(domain="rack", address="192.0.2.1")}),
        "imex2": own.model_copy(update={"imex": ImexNode(domain="rack2", address="192.0.2.2")}),
    }
    waiver = FleetWaiver(check="system.iommu", until=dt.date(2099, 1, 1), reason="tried", hosts=["waived"])
    fleet = fleet.model_copy(update={"hosts": {**fleet.hosts, **others}, "waivers": [*fleet.waivers, waiver]})
    names = list(fleet.everyone())
    documents = plan_fleet.Documents(fleet, LOCK, RunFiles(LAB))
    together = {name: document_of(documents, name) for name in names}
    assert len({json.dumps(together[name]) for name in names}) == len(names)
    for name in names:
        assert together[name] == document_of(plan_fleet.Documents(fleet, LOCK, RunFiles(LAB)), name), name


HOST = [
    "preflight", "repositories", "pins", "removals", "program", "expectation", "guard", "driver_options",
    "packages.driver", "imex", "packages.kernel", "module_options", "boot_arguments", "packages.cufile", "cufile",
    "modules",
    "boot_default", "peermem", "gate", "watch", "loaded", "reboot",
]  # fmt: skip
BUILDER = [
    "preflight", "repositories", "pins", "removals", "program", "expectation", "recipes", "packages.kernel",
    "packages.modules", "modules",
]  # fmt: skip


def test_a_host_is_asked_in_each_way_that_it_may_go(fleet: Fleet) -> None:
    variants = ways(fleet, "gpu1")
    assert list(variants) == ["build", "keep", "receive"]
    assert list(variants["keep"]) == list(variants["receive"]) == HOST
    assert list(variants["build"]) == [*HOST[:6], "recipes", *HOST[6:15], "packages.modules", *HOST[15:]]
    sources = {way: (entry["modules"].source, entry["modules"].archive_sha256) for way, entry in variants.items()}
    assert sources == {"build": ("build", ""), "keep": ("receive", ""), "receive": ("receive", "none")}
    assert variants["build"]["modules"].hand_over
    packages = {entry.package for entry in variants["keep"]["packages.kernel"].packages}
    building = {entry.package for entry in variants["build"]["packages.kernel"].packages}
    assert packages < building, "headers are for builds"


def test_a_builder_builds(fleet: Fleet) -> None:
    variants = ways(fleet, "build1")
    assert list(variants) == ["build"]
    assert list(variants["build"]) == BUILDER
    assert variants["build"]["expectation"].expectation == ""


@pytest.mark.parametrize(("wish", "expected"), [("build", ["build"]), ("receive", ["keep", "receive"])])
def test_the_fleet_file_has_the_last_word(fleet: Fleet, wish: str, expected: list[str]) -> None:
    host = fleet.hosts["gpu1"].model_copy(update={"modules": wish})
    assert list(ways(fleet.model_copy(update={"hosts": {"gpu1": host}}), "gpu1")) == expected


def test_a_host_without_a_kernel_of_its_own_is_neither_booted_nor_loaded(fleet: Fleet) -> None:
    entries = ways(changed(fleet, own_kernel=False), "gpu1")["keep"]
    assert set(HOST) - set(entries) == {"guard", "module_options", "boot_arguments", "boot_default", "loaded", "reboot"}


def test_modules_that_are_signed_bring_their_certificate(fleet: Fleet, tmp_path: Path) -> None:
    signed = changed(fleet, signing=Signing(certificate="/etc/keys/modules.der"))
    variants = ways(signed, "gpu1")
    assert list(variants["keep"]).index("signing") == list(variants["keep"]).index("modules") - 1
    assert list(variants["build"]).index("signing") == list(variants["build"]).index("packages.modules") - 1
    assert (variants["build"]["signing"].signs, variants["build"]["signing"].certificate_content) == (True, "")
    assert variants["keep"]["signing"].certificate_content == "", "the builder hasn't delivered it"
    machine = Machine(signed, LOCK, "gpu1", RunFiles(LAB, certificates=tmp_path), Files())
    Path(machine.certificate_path).write_bytes(b"certificate")
    delivered = desired.desired_states(machine)["signing"].certificate_content
    assert delivered == base64.b64encode(b"certificate").decode()


def test_keyrings_travel_in_the_desired_state(fleet: Fleet, tmp_path: Path) -> None:
    key = tmp_path / "key.gpg"
    key.write_bytes(b"\x99key")
    mirrored = fleet.model_copy(update={"mirror": Mirror(uri="http://mirror.example", keyring=str(key))})

    def keys() -> list[Key]:
        machine = Machine(mirrored, LOCK, "gpu1", RunFiles(LAB), Files())
        return list(desired.desired_states(machine)["repositories"].keys)

    assert keys() == [Key(HOST_KEYRING, base64.b64encode(b"\x99key").decode())]
    for content in (b"-----BEGIN OPENSSH PRIVATE KEY-----", b"root:x:0:0", b"\x95private", b""):
        key.write_bytes(content)
        with pytest.raises(FleetInvalid, match=r"key\.gpg: not a keyring"):
            keys()
    key.write_bytes(b"The key of a maker:\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    assert keys()
    key.unlink()
    with pytest.raises(FleetInvalid, match=r"key\.gpg: the keyring is missing"):
        keys()
    with pytest.raises(FleetInvalid, match="Is a directory"):
        Files().content(str(tmp_path))


def test_the_files_that_a_host_has_by_its_lock(fleet: Fleet) -> None:
    assert desired.paths(desired.desired_states(Machine(fleet, LOCK, "gpu1"))) >= {
        "/etc/cufile.json",
        "/etc/gdsdeploy/cufile.json",
        "/etc/gdsdeploy/expectation.json",
        "/etc/gdsdeploy/gate.json",
        "/etc/apt/preferences.d/00-gdsdeploy.pref",
        "/etc/apt/sources.list.d/gdsdeploy.sources",
        "/etc/modprobe.d/gdsdeploy.conf",
        "/etc/modules-load.d/gdsdeploy.conf",
        "/etc/kernel/postinst.d/zzz-gdsdeploy-guard",
        "/etc/systemd/system/gds-gate.service",
        "/usr/lib/gdsdeploy/gdsdeploy-host.pyz",
    }


DOCUMENT = {"version": 1, "variants": {"build": [{"resource": "x"}, {"resource": "x", "instance": "y"}]}}
RESULT = {"name": "x", "changes": [], "refusals": [], "unknown": [], "report": {}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"error": {"kind": "desired", "message": "unknown key", "hint": "update"}}, "gpu1: unknown key"),
        ({}, "gpu1: its answer is malformed: Input should be a valid dictionary"),
        ({"variants": {"build": [RESULT]}}, "not every resource was checked"),
        ({"variants": {"keep": [RESULT, RESULT]}}, "not every resource was checked"),
        ({"variants": {"build": [RESULT, RESULT]}}, "not every resource was checked"),
        (
            {"variants": {"build": [RESULT, {**RESULT, "name": "x.y", "changes": 7}]}},
            "build.1.changes: Input should be a valid tuple",
        ),
    ],
)
def test_a_bad_answer_is_that_hosts_error(document: dict[str, Any], words: str) -> None:
    with pytest.raises(HostUnfit, match=words):
        plan_fleet.require_variants(Answer("gpu1", document, None, 0.0), DOCUMENT)


def test_a_machine_that_gave_no_answer_has_its_error() -> None:
    error = HostUnreachable("gone")
    with pytest.raises(HostUnreachable) as caught:
        plan_fleet.require_variants(Answer("gpu1", None, error, 0.0), DOCUMENT)
    assert caught.value is error


DRIVER, NVIDIA_FS = LOCK.targets["gds"].driver, LOCK.targets["gds"].nvidia_fs
assert NVIDIA_FS is not None
#: What a host reports of modules that it has received and that the lock has.
IN_PLACE = {
    "key": {},
    "received": {
        "driver": {"version": DRIVER.version, "flavour": DRIVER.flavour},
        "nvidia_fs": {"version": NVIDIA_FS.version},
    },
}
KEEPING, RECEIVING, BUILDING = [KEEP], [RECEIVE], [BUILD]


@pytest.mark.parametrize(
    ("builder", "names", "report", "expected"),
    [
        # Its profile's builder builds in this run, or it waits for that.
        ("own", ["build1", "gpu1"], {}, [KEEPING, RECEIVING]),
        ("own", ["gpu1"], {}, [KEEPING, RECEIVING]),
        ("own", ["gpu1"], IN_PLACE, [KEEPING]),
        # A builder may supply it, which isn't in this run.
        ("any", ["gpu1"], {}, [KEEPING, BUILDING]),
        ("any", ["gpu1"], IN_PLACE, [KEEPING]),
        # No machine may supply it.
        ("none", ["gpu1"], {}, [BUILDING]),
        ("none", ["gpu1"], IN_PLACE, [BUILDING, [KEEP, RECEIVE]]),
    ],
)
def test_a_host_looks_only_at_what_it_may_have_to_do(
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    builder: str,
    names: list[str],
    report: dict[str, Any],
    expected: list[list[str]],
) -> None:
    looks: list[list[str]] = []

    def ask(_: Fleet, __: Path, hosts: list[str], ___: Any, judge: Any, *, stdin: dict[str, bytes], **____: Any) -> Any:
        for number, name in enumerate(hosts):
            variants = json.loads(stdin[name])["variants"]
            looks.extend([sorted(variants)] if name == "gpu1" else [])
            replies = {way: [reply(resource) for resource in resources] for way, resources in variants.items()}
            machine = {"boot_id": f"{number:08x}-0000-4000-8000-000000000000", "machine_id": f"{number:064x}"}
            answer = Answer(name, {"machine": machine, "variants": replies}, None, 1.0)
            yield answer, judge(answer)

    def reply(resource: dict[str, Any]) -> dict[str, Any]:
        name = ".".join(filter(None, (resource["resource"], resource.get("instance"))))
        return {**RESULT, "name": name, "report": report if name == "modules" else {}}

    monkeypatch.setattr(plan_fleet, "ask", ask)
    fleets = {"own": fleet, "none": changed(fleet, builder=None)}
    fleets["any"] = fleets["none"].model_copy(update={"builders": fleet.builders})
    planned = plan_fleet.plan_fleet(fleets[builder], LOCK, LAB / "fleet.yml", names)
    assert looks == expected
    assert isinstance(planned.hosts["gpu1"], HostPlan)
    assert planned.seconds["gpu1"] == len(expected)


TARGET = LOCK.targets["gds"]


def image_of(fleet: Fleet, *, has_loader: bool = True, waivers: tuple[str, ...] = ()) -> Image:
    return Image(ImageRoot(Path("/image"), has_loader=has_loader), ("enter",), "gpu1", fleet, waivers)


def state(fleet: Fleet, of: Image | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The variables of gpu1, and its desired state by the name of the resource; the host program reads it."""
    machine = Machine(fleet, LOCK, "gpu1", RunFiles(LAB, image=of))
    values = values_in(inventory(fleet, LOCK, machine.files))["gpu1"]
    listed = desired.listed(machine, {})
    return values, {entry.name: entry.desired for entry in engine.read_resources({"version": 1, "resources": listed})}


def test_only_what_needs_the_running_kernel_differs(fleet: Fleet) -> None:
    fleet = changed(fleet, signing=Signing(), rdma="peermem")
    (_, host), (_, of_image) = state(fleet, None), state(fleet, image_of(fleet))
    assert [*of_image] == [name for name in host if name != "reboot"] + ["image"]
    different = {name for name in host if name != "reboot" and host[name] != of_image[name]}
    assert different == {"preflight", "expectation", "signing", "loaded"}
    assert (host["preflight"].unasked_kernel, of_image["preflight"].unasked_kernel) == (TARGET.kernel.release, "")
    assert (host["signing"].enrols, of_image["signing"].enrols) == (True, False)
    assert host["loaded"].loaded == ["nvidia", "nvidia-fs", "nvidia-peermem"]
    assert (of_image["loaded"].loaded, of_image["loaded"].units) == ([], {})
    assert of_image["loaded"].services == host["loaded"].services


def test_the_expectation_fits_whichever_host_boots(fleet: Fleet) -> None:
    states = state(fleet, None)[1], state(fleet, image_of(fleet))[1]
    host, of_image = (expectation.from_json(each["expectation"].expectation) for each in states)
    assert (host.host, of_image.host) == ("gpu1", "")
    assert {**vars(host), "host": ""} == vars(of_image)
    assert of_image.own_kernel, "the first boot has to be of the locked kernel"


def test_an_image_without_a_boot_loader(fleet: Fleet) -> None:
    fleet = changed(fleet, boot=Boot(arguments={"iommu": "pt"}))
    whole, without = (state(fleet, image_of(fleet, has_loader=loads))[1] for loads in (True, False))
    assert set(whole) - set(without) == {"boot_default"}
    assert (whole["boot_arguments"].arguments, without["boot_arguments"].arguments) == (["iommu=pt"], [])


def test_only_its_own_host_is_an_image_and_none_is_reached(fleet: Fleet) -> None:
    run_files = RunFiles(LAB, image=image_of(fleet))
    values = values_in(inventory(fleet, LOCK, run_files))
    assert (values["gpu1"]["ansible_connection"], values["gpu1"]["ansible_become"]) == ("gdsdeploy.gds.root", False)
    assert values["gpu1"]["ansible_root_enter"] == ["enter"]
    assert (values["build1"]["ansible_connection"], values["build1"]["gds_host_image"]) == ("ssh", "")
    groups = inventory(fleet, LOCK, run_files, ["gpu1"])["all"]["children"]
    assert {name: list(group["hosts"]) for name, group in groups.items()} == {"hosts": ["gpu1"], "builders": []}


def words(fleet: Fleet, **of: Any) -> dict[str, str]:
    return {entry.kind: entry.words for entry in image_of(fleet, **of).left(Machine(fleet, LOCK, "gpu1"))}


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
