"""A cufile.json fitted to hosts: real evidence, with RDMA devices put in as sysfs and ip(8) show them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.cufile.check import check
from gdsdeploy.cufile.model import get
from gdsdeploy.cufile.render import FitTarget, fit, render_profile
from gdsdeploy.errors import FleetInvalid, HostUnfit
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.subjects.path import MountPath, Path as Taken
from gdsdeploy.host.subjects.proof import Proof
from gdsdeploy.host.subjects.rdma import Address
from gdsdeploy.model.fleet import Profile
from tests.cufile import libraries
from tests.cufile.effective import effective
from tests.unit.host import hosts
from tests.unit.host.checks.changes import EXPECTATION, verdicts
from tests.unit.rdma_host import CARDS, PCI, Document, host

TESTS = Path(__file__).parents[2]
GOLDEN = TESTS / "golden" / "cufile-fit"
ADDRESSES = "properties.rdma_dev_addr_list"


def profile(**keys: Any) -> Profile:
    return Profile.model_validate({"os": "debian-13", "fit": {}, **keys})


def fitted(document: Document, intent: Profile, **about: Any) -> dict[str, Any]:
    values = fit(intent, FitTarget("gpu1", facts_from(document), **about), (1, 20))
    return {key: value for key, (value, _) in values.items()}


def notes(document: Document, intent: Profile) -> tuple[str, ...]:
    return render_profile("gds", intent, "1.20.0.107", FitTarget("gpu1", facts_from(document))).notes


def test_interfaces_are_read_in_the_order_of_their_numbers() -> None:
    devices = facts_from(host()).network.rdma
    assert [device.device for device in devices] == ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_10"]
    assert devices[0].addresses == (Address("192.0.2.1", 25), Address("2001:db8:1::1", 64))
    assert devices[3].addresses == (Address("2001:db8:1::2", 64),), "link-local ones are of no use"
    assert str(devices[0].addresses[0].parsed.network) == "192.0.2.0/25"
    assert (devices[0].pci, devices[0].active) == ("0000:12:00.0", True)


def test_a_device_in_software_names_its_interface_in_the_table_of_its_port() -> None:
    document = host(CARDS[:1])
    document["listings"]["/sys/class/infiniband/mlx5_0/device/net"] = {"error": "ENOENT"}
    table = "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs"
    document["excerpts"][table] = {"pattern": "", "lines": ["ens1"]}
    devices = facts_from(document).network.rdma
    assert [device.interface for device in devices] == ["ens1"]


@pytest.mark.parametrize(
    ("fit_keys", "expected"),
    [
        ({"addresses": "all"}, ["192.0.2.1", "192.0.2.129", "192.0.2.2", "2001:db8:1::2"]),
        ({"addresses": "all", "family": "ipv4"}, ["192.0.2.1", "192.0.2.129", "192.0.2.2"]),
        ({"addresses": "all", "family": "ipv6"}, ["2001:db8:1::1", "2001:db8:2::1", "2001:db8:1::2"]),
        ({"addresses": "rail", "family": "ipv4"}, ["192.0.2.1", "192.0.2.129"]),
        ({"addresses": "rail"}, ["192.0.2.1", "192.0.2.129"]),
        ({"addresses": "rail", "family": "ipv6"}, ["2001:db8:1::1", "2001:db8:2::1"]),
        ({"addresses": "none"}, None),
    ],
)
def test_addresses_of_the_interfaces(fit_keys: dict[str, str], expected: list[str] | None) -> None:
    result = fitted(host(), profile(fit=fit_keys))
    assert result.get(ADDRESSES) == expected


@pytest.mark.parametrize(
    ("name", "release", "expected"),
    [
        ("RoCE on a bond", (1, 20), ["192.0.2.1"]),
        ("RoCE LAG", (1, 9), ["192.0.2.1"]),
        ("one adapter with two ports", (1, 9), ["192.0.2.1", "192.0.2.129"]),
        ("InfiniBand without IPoIB", (1, 16), ["mlx5_0", "mlx5_1"]),
    ],
)
def test_what_is_fitted_passes_its_check(name: str, release: tuple[int, int], expected: list[str]) -> None:
    document = hosts.fresh(name)
    opened = document["commands"]["cufile-open"]
    opened["stdout"] = opened["stdout"].replace("libcufile.so.1.9.1", "libcufile.so.{}.{}.0".format(*release))
    values = fit(profile(fit={"addresses": "all"}), FitTarget("gpu1", facts_from(document)), release)
    assert values[ADDRESSES][0] == expected
    document["files"]["/etc/cufile.json"] = json.dumps({"properties": {"rdma_dev_addr_list": expected}})
    assert verdicts(document, replace(EXPECTATION, rdma="dmabuf"))["rdma.addresses"] == "pass"


def test_older_libraries_are_given_no_names_and_no_ipv6() -> None:
    document, intent = hosts.fresh("InfiniBand without IPoIB"), profile(fit={"addresses": "all"})
    with pytest.raises(HostUnfit, match=r"\(any\): mlx5_0 has no network interface; mlx5_1 has no network interface"):
        fit(intent, FitTarget("gpu1", facts_from(document)), (1, 15))
    with pytest.raises(HostUnfit, match=r"\(ipv6\): ens1 \(mlx5_0\) is active, 2 addresses"):
        fit(profile(fit={"addresses": "all", "family": "ipv6"}), FitTarget("gpu1", facts_from(host())), (1, 17))


def test_addresses_near_a_gpu() -> None:
    """Of a GPU with a card below the same switch, that one; of one without, the cards of its NUMA node."""
    near = profile(fit={"addresses": "near"})
    close = ("mlx5_5", "ens5", "0000:10:00.0/0000:11:02.0/0000:15:00.0", ("192.0.2.5/25",))
    document = host((*CARDS[:3], close))
    assert fitted(document, near)[ADDRESSES] == ["192.0.2.2", "192.0.2.5"]
    document = host(CARDS[:2])
    for name, node in (("0000:12:00.0", "0"), ("0000:13:00.0", "1"), ("0000:14:00.0", "1"), ("0000:24:00.0", "1")):
        document["files"][f"{PCI}/{name}/numa_node"] = node
    for name in ("0000:12:00.0", "0000:13:00.0"):
        document["links"][f"{PCI}/{name}"] = f"../../../devices/pci0000:00/{name}"
    assert fitted(document, near)[ADDRESSES] == ["192.0.2.129"]


def test_a_host_that_lacks_what_is_asked_for_is_refused() -> None:
    intent = profile(fit={"addresses": "all"})
    with pytest.raises(HostUnfit, match="it has no RDMA device"):
        fitted(host(()), intent)
    document = host(CARDS[:1])
    document["files"]["/sys/class/infiniband/mlx5_0/ports/1/state"] = "1: DOWN\n"
    with pytest.raises(HostUnfit, match=r"gpu1: no RDMA interface is active .*ens1 \(mlx5_0\) is down, 2 addresses"):
        fitted(document, intent)
    document["commands"]["ip-address"].update(status=127, stdout="")
    with pytest.raises(HostUnfit, match="its RDMA interfaces are unknown") as caught:
        fitted(document, intent)
    assert "iproute2" in str(caught.value.hint)


def test_pools_fit_the_memory() -> None:
    sizes, counts = "properties.posix_pool_slab_size_kb", "properties.posix_pool_slab_count"
    assert counts not in fitted(host(memory=1024), profile()), "the library's own fit"
    small = fitted(host(memory=4), profile())
    total = sum(size * count for size, count in zip(small[sizes], small[counts], strict=True))
    assert total <= (4 << 20) // 8 // 2, "an eighth of it, for a process for each of two GPUs"
    assert small[counts][0] == 128, "the large ones give way first"
    assert min(fitted(host(memory=0), profile())[counts]) == 1
    assert sizes not in fitted(host(memory=4), profile(cufile={"properties": {sizes[11:]: [4]}}))
    assert sizes not in fitted(host(memory=4), profile(fit={"pools": False}))


def test_pools_fit_bar1() -> None:
    values = fitted(host(bar1=256), profile())
    assert values["properties.max_device_pinned_mem_size_kb"] == 256 << 10
    assert values["properties.max_device_cache_size_kb"] == 64 << 10
    assert values["properties.per_buffer_cache_size_kb"] == 512, "the cache holds a batch of 128 requests"
    nested = {"properties": {name.partition(".")[2]: value for name, value in values.items() if "cache" in name}}
    assert [finding.id for finding in check(json.dumps(nested).encode(), (1, 20)).findings] == []
    assert fitted(host(bar1=2), profile())["properties.per_buffer_cache_size_kb"] == 64
    requests = profile(cufile={"properties": {"max_direct_io_size_kb": 256}})
    rendering = render_profile("gds", requests, "1.20.0.107", FitTarget("gpu1", facts_from(host(bar1=256))))
    assert get(rendering.document, "properties.per_buffer_cache_size_kb") == 256, "no buffer is larger than a request"
    slabs = {"properties": {"gpu_bounce_buffer_slab_config": {"slab_size_kb": [64, 1024], "slab_count": [64, 64]}}}
    assert fitted(host(bar1=256), profile(cufile=slabs)).keys() == {"properties.max_device_pinned_mem_size_kb"}
    words = (
        "properties.gpu_bounce_buffer_slab_config takes 68 MiB of each GPU, and a quarter of the BAR1 of gpu1 is 64 MiB"
    )
    assert notes(host(bar1=256), profile(cufile=slabs)) == (words,)
    assert notes(host(bar1=512), profile(cufile=slabs)) == ()
    large = fitted(host(), profile())
    assert large["properties.max_device_pinned_mem_size_kb"] == 128 << 20
    assert "properties.max_device_cache_size_kb" not in large


def test_compat_mode_is_forbidden_once_every_path_is_proven() -> None:
    key = "properties.allow_compat_mode"
    intent = profile(storage=[{"mount": "/"}])
    first = fitted(host(), intent)
    assert first[key] is True
    assert notes(host(), intent)[0].startswith(f"{key} stays true on gpu1 until its paths are proven: / takes ")
    document = host()
    document["files"]["/etc/cufile.json"] = '{"properties": {"allow_compat_mode": false}}'
    later = fitted(document, intent)
    assert later[key] is False
    assert "not every path works" in notes(document, intent)[0], "a path that broke does not make it allowed again"
    assert key not in fitted(host(), profile(storage=[{"mount": "/", "path": "compat"}]))


def test_a_proven_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of the check storage.path see a path proven by evidence; here it is given."""
    key = "properties.allow_compat_mode"
    intent = profile(storage=[{"mount": "/"}])
    path = Taken("nvidia-fs", (), gpu=True, proofs=(Proof("/", "", "nvidia-fs"),))
    proven = MountPath("/", "direct", None, path)
    monkeypatch.setattr("gdsdeploy.cufile.render.storage_paths", lambda *_: (proven,))
    assert fitted(host(), intent)[key] is False
    document = host()
    document["files"]["/etc/cufile.json"] = '{"properties": {"allow_compat_mode": true}}'
    assert fitted(document, intent)[key] is False
    assert fitted(document, intent, settled=True)[key] is True, "validation judges the file that is there"


def test_mounts_that_the_library_would_miss_are_named() -> None:
    said = notes(host(), profile(cufile={"denylist": {"mounts": ["/nowhere", "/"]}}))
    assert [note for note in said if "/nowhere is not mounted on gpu1" in note]
    assert not [note for note in said if ": / is" in note]
    with pytest.raises(FleetInvalid, match=r"denylist\.mounts: expected a list of texts"):
        notes(host(), profile(cufile={"denylist": {"mounts": 5}}))


def test_without_a_host_it_cannot_be_fitted() -> None:
    with pytest.raises(FleetInvalid, match=r"profiles\.gds\.fit"):
        render_profile("gds", profile(), "1.20.0.107")


#: name → release, memory in GiB, MiB of BAR1, profile
FITTED = {
    "1.15.1.6-small": (
        {"fit": {"addresses": "near"}, "rdma": "peermem", "storage": [{"mount": "/"}]}, {"memory": 4, "bar1": 256},
    ),
    "1.20.0.107-rails": (
        {"fit": {"addresses": "rail"}, "rdma": "dmabuf", "cufile": {"logging": {"level": "INFO"}}}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FITTED)
def test_golden_and_the_real_library_agree(name: str) -> None:
    version = name.split("-")[0]
    keys, machine = FITTED[name]
    rendering = render_profile("gds", profile(**keys), version, FitTarget("gpu1", facts_from(host(**machine))))
    again = render_profile("gds", profile(**keys), version, FitTarget("gpu1", facts_from(host(**machine))))
    assert rendering.text == again.text == (GOLDEN / f"{name}.json").read_text()
    (result,) = effective(libraries.library(version), {name: rendering.text.encode()}, folders=["/var/log/cufile"])
    assert result.problem is None
    assert get(rendering.document, ADDRESSES)


def test_what_a_host_says_stays_in_its_comment() -> None:
    """Names of that kind are refused where evidence is read; this is the wall behind."""
    evil = 'x\n"force_compat_mode": true, //'
    facts = facts_from(host(CARDS[:1]))
    network = facts.network.but(rdma=tuple(device._replace(interface=evil) for device in facts.network.rdma))
    rendering = render_profile(
        "gds", profile(fit={"addresses": "all"}), "1.20.0.107", FitTarget("gpu1", facts.but(network=network))
    )
    answer = libraries.library("1.20.0.107").ask(rendering.text, folders=["/var/log/cufile"])
    assert answer.effective["properties.force_compat_mode"] == "false"


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("evil", ["{{ 1/0 }}", "ens1\n", "a b", "\x1b[2J", "x" * 33, "é", "../x", "²"])
def test_a_device_and_an_interface_have_names(evil: str, place: int) -> None:
    card = (*CARDS[0][:place], evil, *CARDS[0][place + 1 :])
    with pytest.raises(HostUnfit, match="isn't a name of a device or interface") as caught:
        render_profile(
            "gds", profile(fit={"addresses": "all"}), "1.20.0.107", FitTarget("gpu1", facts_from(host([card])))
        )
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("variant", ["container", "user"])
def test_variants_are_for_the_variable(variant: Any) -> None:
    intent = profile(fit=None, rdma="peermem", storage=[{"mount": "/mnt/nvme"}])
    rendering = render_profile("gds", intent, "1.20.0.107", variant=variant)
    assert "CUFILE_ENV_PATH_JSON" in rendering.text
    container = variant == "container"
    for word in ("--device /dev/nvidia-fs15", "--volume /run/udev:/run/udev:ro", "/dev/infiniband", "/mnt/nvme"):
        assert (word in rendering.text) is container
    assert get(rendering.document, "logging.dir") == ("/tmp" if container else "/var/log/cufile")
    assert libraries.library("1.20.0.107").ask(rendering.text, folders=["/var/log/cufile"]).accepted is True
