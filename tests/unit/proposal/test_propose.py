"""What hosts say about a fleet file: one kind shares a profile, each line says who had what, the loader accepts it."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from gdsdeploy.errors import HostUnfit
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.host.paths import SECURE_BOOT
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.platform.debian import KEYRING
from gdsdeploy.proposal.observe import (
    Observation,
    ObservedMount,
    ObservedRepository,
    Proposal,
    gpu_class,
    short_model,
)
from gdsdeploy.proposal.propose import Source, propose, yaml_text
from gdsdeploy.ssh import reply_schema
from tests.unit.host.explain.capable_host import capable, with_gpu
from tests.unit.hostile_words import WORDS
from tests.unit.proposal.observed_hosts import (
    CUDA,
    DEBIAN,
    UBUNTU,
    Document,
    bare,
    gpu,
    observed,
    of_system,
    with_files,
    with_packages,
    with_rdma,
)

H100S = [observed(f"gpu{number}", gpu()) for number in range(1, 9)]


def proposal(*hosts: Observation, source: Source | None = None, left_out: Mapping[str, str] | None = None) -> Proposal:
    return propose(hosts, left_out or {}, source or Source({}), keys="/srv/keys", day="2026-11-26")


def loaded(tmp_path: Path, proposed: Proposal) -> tuple[str, Fleet]:
    """The text, and the fleet that its loader makes of it."""
    text = yaml_text(proposed.nodes)
    path = tmp_path / "fleet.yml"
    path.write_text(text)
    return text, load_fleet(path)


def of_kind(host: Observation, name: str, **kind: Any) -> Observation:
    return replace(host, name=name, boot=name, kind=replace(host.kind, **kind))


def test_hosts_of_one_kind_share_a_profile(tmp_path: Path) -> None:
    text, fleet = loaded(tmp_path, proposal(*H100S))
    assert {host.profile for host in fleet.hosts.values()} == {"ubuntu-24.04-h100"}
    profile = fleet.profiles["ubuntu-24.04-h100"]
    assert (profile.driver.version, profile.driver.flavour) == ("580", "open")
    assert (profile.kernel.version, profile.kernel.flavour) == ("6.11", "generic")
    assert (profile.gpu, profile.mode, profile.rdma) == ("hopper", "compat", "none")
    assert profile.gpus is not None
    assert (profile.gpus.count, profile.gpus.model) == (1, "H100 80GB HBM3")
    assert "driver: {version: '580', flavour: open}  # gpu[1-8]: 580.95.05; write a whole version to stay at it" in text
    assert "  ubuntu-24.04-h100:  # gpu[1-8]" in text


def test_what_hosts_of_one_kind_do_not_share_is_a_comment(tmp_path: Path) -> None:
    one, two, three = H100S[:3]
    two = replace(two, release="6.8.0-60-generic", driver="580.82.07", gpus=2, companions=("imex",))
    three = replace(three, mounts=(ObservedMount("/data", "ext4", direct=True),), nvme=4)
    text, fleet = loaded(tmp_path, proposal(one, two, three))
    (profile,) = fleet.profiles.values()
    assert (profile.kernel.version, profile.gpus, profile.nvme) == ("newest", None, None)
    assert (profile.storage, profile.companions) == ((), ())
    assert "gpu[1,3]: 580.95.05; gpu2: 580.82.07" in text
    assert "# gpus: the hosts differ: gpu[1,3]: 1; gpu2: 2" in text
    assert "#   - {mount: /data, path: direct}  # ext4: only on gpu3" in text
    assert "# companions that only some have: gpu2: imex" in text


def test_only_mounts_with_a_direct_path_are_required(tmp_path: Path) -> None:
    mounts = (ObservedMount("/a", "xfs", direct=True), ObservedMount("/b", "nfs4", direct=False, reason="over tcp"))
    text, fleet = loaded(tmp_path, proposal(replace(H100S[0], mounts=mounts)))
    (profile,) = fleet.profiles.values()
    assert [(mount.mount, mount.path) for mount in profile.storage] == [("/a", "direct")]
    assert "      # - {mount: /b, path: direct}  # nfs4: over tcp" in text


def test_kinds_get_names_that_say_what_differs() -> None:
    host = H100S[0]
    kinds: list[dict[str, str]] = [
        {},
        {"driver": "570"},
        {"driver": "570", "flavour": "proprietary"},
        {"kernel": "aws"},
    ]
    hosts = [of_kind(host, f"gpu{number}", **kind) for number, kind in enumerate(kinds)]
    hosts.append(of_kind(host, "gpu9", repositories=("ubuntu",)))
    assert list(proposal(*hosts, observed("bare1", bare())).profiles.items()) == [
        ("ubuntu-24.04-h100-generic-580", ("gpu0",)),
        ("ubuntu-24.04-h100-generic-570-open", ("gpu1",)),
        ("ubuntu-24.04-h100-generic-570-proprietary", ("gpu2",)),
        ("ubuntu-24.04-h100-aws", ("gpu3",)),
        ("ubuntu-24.04-h100-generic-580-2", ("gpu9",)),
        ("debian-13-no-gpu", ("bare1",)),
    ]


def test_long_names_stay_different() -> None:
    """Names that are alike in all characters that a name may have: each kind keeps its hosts."""
    long = {
        "kernel": "nvidia-lowlatency",
        "driver": "580",
        "flavour": "proprietary",
        "rdma": "peermem",
        "arch": "aarch64",
    }
    others = ({}, {"rdma": "dmabuf"}, {"gpu": "turing"}, {"flavour": "open"}, {"driver": "570"}, {"arch": "x86_64"},
              {"kernel": "nvidia-64k"}, {"repositories": ("ubuntu",)})  # fmt: skip
    hosts = [of_kind(H100S[0], f"gpu{number}", **{**long, **other}) for number, other in enumerate(others)]
    profiles = proposal(*hosts).profiles
    assert len(profiles) == len(hosts)
    assert all(len(name) <= 63 for name in profiles)
    assert sorted(name for names in profiles.values() for name in names) == [f"gpu{n}" for n in range(8)]


def test_a_host_without_a_driver_gets_no_pin(tmp_path: Path) -> None:
    proposed = proposal(observed("gpu1", bare()))
    text, fleet = loaded(tmp_path, proposed)
    (profile,) = fleet.profiles.values()
    assert (profile.driver.version, profile.mode) == ("newest", "nvidia-fs")
    assert "# driver: none on gpu1" in text
    assert "# mode: not known: no driver runs" in text
    assert "gpu1: no driver: lock takes the newest that the repositories have" in proposed.checks


def test_what_to_check_first() -> None:
    host = replace(H100S[0], secure_boot=True, driver_packaged=False)
    twin = replace(H100S[1], boot=host.boot, driver_runs=False, driver_packaged=True)
    checks = proposal(host, twin).checks
    assert "gpu2: a driver is installed and doesn't run" in checks
    assert "gpu1: Secure Boot: see docs/secure-boot.md before provision" in checks
    assert "gpu1: the driver belongs to no package, as after a .run file" in checks
    assert "gpu[1-2]: the same boot of a kernel: list one name of each machine" in checks


def test_secure_boot_and_a_run_file_are_in_the_text() -> None:
    text = yaml_text(proposal(replace(H100S[0], secure_boot=True, driver_packaged=False)).nodes)
    assert "# modules: auto  # Secure Boot is on on gpu1" in text
    assert "# The driver of gpu1 belongs to no package" in text


def test_packages_that_stay_out_are_named(tmp_path: Path) -> None:
    packages = [("cuda-toolkit-13-0", "13.0.1-1"), ("doca-ofed", "3.1.0-1")]
    text, fleet = loaded(tmp_path, proposal(observed("gpu1", with_packages(gpu(), packages))))
    assert "# cuda: [cuda-toolkit-13-0]  # gpu1: cuda-toolkit-13-0; left alone unless they are listed here" in text
    assert "# doca: [doca-ofed]  # gpu1: doca-ofed 3.1.0-1" in text
    assert all(profile.cuda == profile.doca == () for profile in fleet.profiles.values())


def test_a_container_chooses_no_kernel(tmp_path: Path) -> None:
    _, fleet = loaded(tmp_path, proposal(of_kind(H100S[0], "gpu1", container=True, kernel="")))
    (profile,) = fleet.profiles.values()
    assert profile.own_kernel is False
    assert profile.kernel.flavour is None


def test_a_kernel_from_backports_is_not_pinned(tmp_path: Path) -> None:
    host = replace(observed("gpu1", bare("debian-12")), release="6.12.30+bpo-amd64")
    text, fleet = loaded(tmp_path, proposal(host))
    assert next(iter(fleet.profiles.values())).kernel.version == "newest"
    assert "from backports" in text


def test_one_name_means_one_repository(tmp_path: Path) -> None:
    debian, ubuntu = H100S[0], of_kind(H100S[1], "gpu2", os="ubuntu-22.04")
    site = {"uri": "https://mirror.example/jammy", "keyring": "/k.gpg", "fingerprints": ["A" * 40], "suites": ["jammy"]}
    other = ObservedRepository("ubuntu", {"uri": "https://mirror.example/jammy"}, site)
    _, fleet = loaded(tmp_path, proposal(debian, replace(ubuntu, repositories=(other,))))
    assert fleet.profiles["ubuntu-22.04-h100"].repositories == ("ubuntu-22.04",)
    assert fleet.repositories["ubuntu-22.04"].uri == "https://mirror.example/jammy"
    assert fleet.repositories["ubuntu"].uri == "http://archive.ubuntu.com/ubuntu"


def test_keys_are_written_once_or_asked_for(tmp_path: Path) -> None:
    whole = {"uri": "https://mirror.example/cuda/ubuntu2404/x86_64"}
    entry = {"uri": "https://mirror.example/cuda", "fingerprints": ["A" * 40]}
    host = replace(
        H100S[0],
        repositories=(
            ObservedRepository("nvidia", entry, whole, b"key"),
            ObservedRepository("ubuntu", {}, {}, b"key", "seen"),
        ),
    )
    proposed = proposal(host)
    assert proposed.keys == {"nvidia.gpg": b"key"}
    _, fleet = loaded(tmp_path, proposed)
    assert {fleet.repositories[name].keyring for name in ("nvidia", "ubuntu")} == {"/srv/keys/nvidia.gpg"}
    assert fleet.repositories["nvidia"].uri == whole["uri"], "an entry that says everything has the exact address"
    unwritten = propose([host], {}, Source({}), keys="", day="")
    assert unwritten.keys == {}
    assert (
        "repositories.ubuntu: seen; this machine lacks the keys, which the hosts have: add keyring" in unwritten.checks
    )


def test_groups_of_an_inventory_that_have_one_profile() -> None:
    web = observed("web", bare())
    groups = {
        "all": ("gpu1", "gpu2", "gpu3", "gone", "web"),
        "racks": ("gpu1", "gpu2", "web"),
        "gpu": ("gpu1", "gpu2", "gone"),
        "one": ("gpu1",),
        "unasked": ("gpu3", "stranger"),
    }
    source = Source({"gpu3": {"port": 2222}}, inventory="hosts.ini", groups=groups)
    proposed = proposal(*H100S[:3], web, source=source, left_out={"gone": "no answer"})
    data = yaml.safe_load(yaml_text(proposed.nodes))
    assert data["inventory"] == {"file": "hosts.ini", "groups": {"gpu": "ubuntu-24.04-h100"}}
    assert data["hosts"] == {"gpu3": {"profile": "ubuntu-24.04-h100", "port": 2222}, "web": "debian-13-no-gpu"}
    assert "Left out, but in these groups, and so in the fleet: gone" in yaml_text(proposed.nodes)


def test_a_fleet_of_one_kind_takes_all_hosts_of_the_inventory() -> None:
    source = Source({}, inventory="hosts.ini", groups={"all": ("gpu1", "gpu2"), "ungrouped": ("gpu1", "gpu2")})
    data = yaml.safe_load(yaml_text(proposal(*H100S[:2], source=source).nodes))
    assert data["inventory"]["groups"] == {"all": "ubuntu-24.04-h100"}
    assert "hosts" not in data


@pytest.mark.parametrize("word", WORDS)
def test_words_of_hosts_are_data(word: str, tmp_path: Path) -> None:
    """In every text of an observation: the file is read as what it says, and its comments stay comments."""
    repository = ObservedRepository("ubuntu", {"uri": "https://mirror.example/ubuntu"}, {}, b"", word)
    host = replace(
        H100S[0],
        release=word, driver=word, nvidia_fs=word, libcufile=word, models=(word,), nic_driver=word, nics=2,
        cuda=(word,), doca=(f"{word} 1",), mode_reason=word, rdma_reason=word, notes=(word,),
        repositories=(repository,),
        mounts=(
            ObservedMount(f"/{word}", word, direct=True), ObservedMount(f"/x/{word}", word, direct=False, reason=word),
        ),
    )  # fmt: skip
    text, fleet = loaded(tmp_path, proposal(host, left_out={word: word}))
    assert list(fleet.hosts) == ["gpu1"]
    assert "\x1b" not in text
    assert all(
        line.lstrip(" ").startswith("#") or re.match(r"\s*(- |'?[a-z0-9_.-]+'?:)", line) for line in text.splitlines()
    )


#: Evidence of a host of each family.
DOCUMENTS = {
    "ubuntu": with_packages(gpu(), [("cuda-toolkit-13-0", "13.0.1-1"), ("doca-ofed", "3.1.0-1")]),
    "debian": bare(),
    "rocky": gpu("rocky-9.5", "5.14.0-503.40.1.el9_5.x86_64"),
    "rdma": with_rdma(),
}
OTHER = observed("gpu2", DOCUMENTS["debian"])
_SECTIONS = ("files", "binaries", "links", "listings", "excerpts", "commands")


@settings(max_examples=60)
@given(
    family=st.sampled_from(sorted(DOCUMENTS)),
    word=st.sampled_from([*WORDS, "", "x" * 5000]),
    part=st.floats(0.02, 0.9),
    seed=st.integers(0, 1 << 30),
)
def test_whatever_a_host_says_the_loader_accepts_the_file(
    family: str, word: str, part: float, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chosen = random.Random(seed)
    document = copy.deepcopy(DOCUMENTS[family])
    for section in _SECTIONS:
        for key, value in document[section].items():
            if key != "/etc/os-release" and chosen.random() < part:
                document[section][key] = _spoiled(value, word, chosen)
    if chosen.random() < part:
        document["host"]["uname"]["release"] = word
    try:
        with reply_schema.unexpected_errors("gpu1"):
            host = observed("gpu1", document, lambda path: "ubuntu" in str(path))
    except HostUnfit:
        return
    proposed = proposal(host, OTHER)
    _, fleet = loaded(tmp_path_factory.mktemp("fleet"), proposed)
    assert set(fleet.hosts) == {"gpu1", "gpu2"}


def _spoiled(value: Any, word: str, chosen: random.Random) -> Any:
    """The value with ``word`` in place of one of its words, or of all."""
    if isinstance(value, dict):
        return {key: _spoiled(inner, word, chosen) for key, inner in value.items()}
    if isinstance(value, list):
        return [_spoiled(inner, word, chosen) for inner in value]
    if not isinstance(value, str):
        return value
    parts = re.split(r"(\s+)", value)
    parts[chosen.randrange(len(parts))] = word
    return "".join(parts) if chosen.random() < 0.7 else word


@pytest.mark.parametrize(
    ("model", "short", "kind"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", "hopper"),
        ("NVIDIA A100-SXM4-80GB", "a100", "ampere"),
        ("NVIDIA GH200 480GB", "gh200", "grace-hopper"),
        ("NVIDIA GB200", "gb200", "blackwell"),
        ("NVIDIA VR200", "vr200", "rubin"),
        ("NVIDIA L40S", "l40s", "ada"),
        ("NVIDIA RTX A6000", "rtx-a6000", "ampere"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000", "ada"),
        ("Tesla T4", "t4", "turing"),
        ("Tesla V100-SXM2-32GB", "v100", "volta"),
        ("NVIDIA A10G", "a10g", "ampere"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090", ""),
        ("something else", "", ""),
    ],
)
def test_models(model: str, short: str, kind: str) -> None:
    assert (short_model([model, model]), gpu_class([model])) == (short, kind)
    assert (short_model([model, "x"]), gpu_class([model, "Tesla P4"])) == ("", "")


# -- What a host's evidence says about a fleet file, and what it leaves open.

OPEN_580 = [("nvidia-dkms-580-open", "580.95.05-0ubuntu1"), ("nvidia-fabricmanager-580", "580.95.05-1")]


def test_an_ubuntu_host_with_nvidias_driver() -> None:
    host = observed("gpu1", with_packages(gpu(), OPEN_580))
    kind = host.kind
    assert (kind.os, kind.arch, kind.kernel, kind.container) == ("ubuntu-24.04", "x86_64", "generic", False)
    assert (kind.driver, kind.flavour, host.driver, host.driver_runs) == ("580", "open", "580.95.05", True)
    assert (kind.gpu, host.gpus, host.models) == ("hopper", 1, ("NVIDIA H100 80GB HBM3",))
    assert (kind.mode, kind.rdma) == ("compat", "none")
    assert host.driver_packaged is True
    assert host.companions == ("fabricmanager",)
    assert "cuda-toolkit-13-0-config-common" not in host.cuda


def test_a_fabric_manager_with_nvlsm_is_nvlink5() -> None:
    """As a profile with Blackwell GPUs has to say it: the file that init writes is loaded without an edit."""
    packages = [*OPEN_580, ("nvlsm", "2025.06.10-1"), ("nvidia-imex-580", "580.95.05-1")]
    assert observed("gpu1", with_packages(gpu(), packages)).companions == ("nvlink5", "imex")
    blackwell = json.loads(json.dumps(gpu()).replace("NVIDIA H100 80GB HBM3", "NVIDIA B200"))
    host = observed("gpu1", with_packages(blackwell, OPEN_580))
    assert (host.kind.gpu, host.companions) == ("blackwell", ("nvlink5",))


def test_a_companion_of_another_version_is_none() -> None:
    """Its package would have to move to the driver's version, which nobody asked for."""
    packages = [OPEN_580[0], ("nvidia-fabricmanager-580", "580.82.07-1"), ("nvidia-imex", "580.95.059-1")]
    assert observed("gpu1", with_packages(gpu(), packages)).companions == ()


def test_a_driver_without_a_package_is_a_run_files() -> None:
    document = gpu(driver="570.172.08", flavour="proprietary")
    host = observed("gpu1", document)
    assert (host.kind.driver, host.kind.flavour, host.driver_packaged) == ("570", "proprietary", False)
    no_list = gpu()
    no_list["commands"]["dpkg-query"]["status"] = 2
    unclear = observed("gpu1", no_list)
    assert unclear.driver_packaged is None
    assert any(note.startswith("packages: ") for note in unclear.notes)


def test_a_bare_host_has_no_driver_and_no_mode() -> None:
    host = observed("gpu1", bare())
    assert (host.kind.driver, host.kind.mode, host.kind.rdma, host.driver_runs) == ("", "", "", False)
    assert host.mode_reason == "no driver runs"
    assert host.secure_boot is False
    assert host.gpus == 0
    (mount,) = host.mounts
    assert (mount.mount, mount.filesystem, mount.direct) == ("/mnt/nvme", "ext4", False)
    assert "not loaded" in mount.reason


def test_a_driver_that_is_installed_and_does_not_run() -> None:
    document = gpu()
    del document["files"]["/proc/driver/nvidia/version"]
    document["files"]["/proc/driver/nvidia/version"] = {"error": "ENOENT"}
    path = "/lib/modules/6.11.0-26-generic/updates/dkms/nvidia.ko"
    record = {
        "name": "nvidia", "version": "580.95.05", "srcversion": "", "build_id": "", "vermagic": "6.11.0-26-generic",
        "depends": [], "provenance": {}, "imports": {}, "exports": {},
    }  # fmt: skip
    document["commands"]["modprobe:nvidia"] = {"argv": [], "status": 0, "stderr": "", "stdout": f"insmod {path}\n"}
    for license_text, flavour in (("Dual MIT/GPL", "open"), ("NVIDIA", "proprietary"), ("?", "")):
        document["modules"][path] = {**record, "license": license_text}
        host = observed("gpu1", document)
        assert (host.kind.driver, host.kind.flavour, host.driver_runs, host.kind.mode) == ("580", flavour, False, "")


def test_direct_paths_that_the_evidence_shows() -> None:
    host = observed("gpu1", of_system(with_gpu(capable()), "debian-13", "6.12.94+deb13-amd64"))
    assert host.kind.mode == "nvidia-fs"
    assert host.mounts == (ObservedMount("/mnt/nvme", "ext4", direct=True),)


def test_mounts_of_the_system_and_of_other_storage_are_left_out() -> None:
    document = of_system(with_gpu(capable()), "debian-13", "6.12.94+deb13-amd64")
    lines = document["files"]["/proc/self/mountinfo"].splitlines(keepends=True)
    nvme = next(line for line in lines if " /mnt/nvme " in line)
    lines = [nvme.replace("48 29", "29 1").replace("/mnt/nvme", "/") if " / / " in line else line for line in lines]
    points = ("/boot/efi", "/var/lib/docker", "/home", "/opt/data")
    lines += [nvme.replace("48 ", f"{80 + at} ").replace("/mnt/nvme", point) for at, point in enumerate(points)]
    lines.append("90 29 0:50 / /tcp rw - nfs4 10.0.0.1:/x rw,proto=tcp\n")
    lines.append("91 29 0:51 / /usb rw - ext4 /dev/sdb1 rw\n")
    document["files"]["/proc/self/mountinfo"] = "".join(lines)
    mounts = {mount.mount: mount for mount in observed("gpu1", document).mounts}
    assert list(mounts) == ["/mnt/nvme", "/opt/data", "/tcp"]
    assert mounts["/tcp"].reason == "/tcp is mounted with proto=tcp"


def test_adapters_count_where_they_have_rdma() -> None:
    document = with_rdma()
    host = observed("gpu1", document)
    assert (host.nics, host.nic_driver) == (4, "mlx5_core")


def test_no_host_makes_the_file_too_large_for_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gdsdeploy.proposal.observe._MOST_DEVICES", 1)
    monkeypatch.setattr("gdsdeploy.proposal.observe._MOST_MOUNTS", 2)
    document = with_rdma()
    document["files"]["/proc/self/mountinfo"] += "".join(
        f"{number} 27 0:50 / /tcp{number} rw - nfs4 10.0.0.1:/x rw,proto=tcp\n" for number in range(90, 93)
    )
    host = observed("gpu1", document)
    assert (host.gpus, host.nics) == (None, None)
    assert "GPUs: 2, more than a fleet file can count" in host.notes
    assert len(host.mounts) == 2
    assert "mounts: 3, of which 2 are shown" in host.notes


def test_secure_boot_and_a_container() -> None:
    document = gpu()
    document["listings"]["/sys/firmware/efi"] = ["efivars"]
    document["binaries"][SECURE_BOOT] = "0600000001"
    document["files"]["/run/systemd/container"] = "systemd-nspawn"
    mounts = document["files"]["/proc/self/mountinfo"]
    document["files"]["/proc/self/mountinfo"] = mounts.replace("254:0 / / rw", "0:99 / / rw")
    host = observed("gpu1", document)
    assert (host.secure_boot, host.kind.container, host.kind.kernel) == (True, True, "")


def test_a_rocky_host() -> None:
    document = with_packages(
        gpu("rocky-9.5", "5.14.0-503.40.1.el9_5.x86_64"), [("kmod-nvidia-open-dkms", "3:580.95.05-1.el9")]
    )
    host = observed("gpu1", document)
    assert (host.kind.os, host.kind.kernel, host.driver_packaged) == ("rocky-9", "kernel", True)
    assert host.kind.repositories == ("rocky", "epel", "nvidia")


def test_a_kernel_that_is_none_of_the_systems() -> None:
    host = observed("gpu1", gpu(release="6.18.44-fc-v657-gpu"))
    assert host.kind.kernel == ""
    assert "its kernel 6.18.44-fc-v657-gpu has no flavour that ubuntu-24.04 offers" in host.notes


@pytest.mark.parametrize(
    ("os_release", "machine", "words"),
    [
        ('ID=plan9\nVERSION_ID="4"\n', "x86_64", "'plan9-4' is not known"),
        ('ID="rocky"\nVERSION_ID="8.10"\n', "x86_64", "rocky-8 isn't supported: its Python is 3.6"),
        ("", "x86_64", "its operating system isn't known: /etc/os-release has no ID"),
        ('ID=debian\nVERSION_ID="13"\n', "riscv64", "the machine is 'riscv64'"),
    ],
)
def test_a_system_that_no_profile_can_name(os_release: str, machine: str, words: str) -> None:
    document = with_files(gpu(), {"/etc/os-release": os_release})
    document["host"]["uname"]["machine"] = machine
    with pytest.raises(HostUnfit) as error:
        observed("gpu1", document)
    assert error.value.message.startswith("gpu1: ")
    assert words in error.value.message


# -- The repositories of a host: those that presets know, at which address, and with whose keys.

DEBIANS = KEYRING.read_bytes()
UBUNTU_KEYRING = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
#: Debian's keys, which stand for those of a site.
SITE = {UBUNTU_KEYRING: DEBIANS}
APT = "/etc/apt/sources.list.d"


def names(document: Document) -> tuple[str, ...]:
    return observed("gpu1", document).kind.repositories


def one(document: Document, name: str, *, present: bool = True) -> ObservedRepository:
    """The repository of that name; present: whether the controller has each keyring."""
    return {each.name: each for each in observed("gpu1", document, lambda _: present).repositories}[name]


def test_what_a_host_lacks_is_left_out_or_added() -> None:
    document = with_files(bare(), {f"{APT}/debian.sources": DEBIAN.split("\n\n")[0]})
    assert names(document) == ("debian",)
    assert "it has no repository debian-security" in observed("gpu1", document).notes
    assert names(gpu()) == ("nvidia", "ubuntu", "ubuntu-security")
    assert one(gpu(), "nvidia").remark == "not on these hosts, but the stack needs it"


def test_whose_driver_a_host_has_decides_the_order() -> None:
    cuda = {f"{APT}/cuda.list": CUDA}
    nvidias = with_packages(with_files(gpu(), cuda), [("nvidia-utils-580", "580.95.05-0ubuntu1")])
    assert names(nvidias) == ("nvidia", "ubuntu", "ubuntu-security")
    ubuntus = with_packages(with_files(gpu(), cuda), [("nvidia-utils-580", "580.95.05-0ubuntu0.24.04.1")])
    assert names(ubuntus) == ("ubuntu", "ubuntu-security", "nvidia")
    source = CUDA.replace("ubuntu2404", "debian13")
    debians = with_packages(with_files(bare(), {f"{APT}/cuda.list": source}), [("nvidia-kernel-dkms", "550.163.01-2")])
    assert names(debians) == ("debian", "debian-security", "nvidia")
    assert one(with_files(gpu(), cuda), "nvidia").entry == {}, "the vendor's own address is the preset's"


def test_a_key_that_the_controller_has_is_not_copied() -> None:
    document = with_files(bare(), {}, {str(KEYRING): DEBIANS})
    assert one(document, "debian").key == b""
    copied = one(document, "debian", present=False)
    assert copied.key == DEBIANS
    assert "fingerprints" not in copied.entry, "the preset pins the vendor's keys, whatever the host sent"
    assert copied.remark == ""
    assert "this machine needs its keys" in one(bare(), "debian", present=False).remark


def test_a_sites_own_key_is_pinned_and_named() -> None:
    mirror = one(with_files(gpu(), {}, SITE), "ubuntu")
    assert mirror.key == DEBIANS
    assert "B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8" in mirror.entry["fingerprints"]
    assert mirror.entry["signed_by"] == UBUNTU_KEYRING
    assert "isn't the vendor's published one" in mirror.remark


def test_another_vendors_repository_with_the_same_suite_is_not_the_archive() -> None:
    other = "deb [signed-by=/usr/share/keyrings/microsoft.gpg] https://packages.example/ubuntu/24.04/prod noble main\n"
    document = with_files(gpu(), {f"{APT}/a.list": other})
    assert one(document, "ubuntu").entry == {"uri": "http://archive.ubuntu.com/ubuntu"}
    document["files"][f"{APT}/ubuntu.sources"] = "# empty\n"
    assert "uri" not in one(document, "ubuntu").entry


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("https://user:secret@mirror.example/ubuntu", "has a login in it"),
        ("cdrom://Ubuntu", "none that a fleet file can have"),
        ("https://mirror.example/\x1b[31m", "none that a fleet file can have"),
        ("http://[::1/ubuntu", "none that a fleet file can have"),
    ],
)
def test_an_address_that_no_fleet_file_may_have(uri: str, words: str) -> None:
    text = UBUNTU.replace("http://archive.ubuntu.com/ubuntu/", uri)
    repository = one(with_files(gpu(), {f"{APT}/ubuntu.sources": text}), "ubuntu")
    assert "uri" not in repository.entry
    assert words in repository.remark
    assert "secret" not in repository.remark


def test_a_path_of_keys_that_no_fleet_file_may_have() -> None:
    path = "/keys/\x1b[31m.gpg"
    text = UBUNTU.replace(UBUNTU_KEYRING, path)
    repository = one(with_files(gpu(), {f"{APT}/ubuntu.sources": text}, {path: DEBIANS}), "ubuntu")
    assert repository.key == DEBIANS
    assert "signed_by" not in repository.entry


def test_sources_that_apt_would_not_take_either_are_a_note() -> None:
    host = observed("gpu1", with_files(gpu(), {f"{APT}/broken.list": "deb\n"}))
    assert any("broken.list:1: not an apt source" in note for note in host.notes)


def test_dnfs_variables_and_repositories_that_are_off() -> None:
    mirror = (
        "[baseos]\nbaseurl=https://$site/rocky/$releasever/BaseOS/$basearch/os/\n"
        "gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-Rocky-$releasever\n"
        "[appstream]\nbaseurl=https://$site/rocky/$releasever/AppStream/$basearch/os/\n"
        "[cuda]\nbaseurl=https://old.example/rhel9/x86_64\nenabled=0\n"
    )
    files = {"/etc/yum.repos.d/rocky.repo": mirror, "/etc/dnf/vars/site": "mirror.example\n"}
    document = with_files(gpu("rocky-9.5", "5.14.0-503.40.1.el9_5.x86_64"), files)
    assert names(document) == ("rocky-baseos", "rocky-appstream", "epel", "nvidia")
    assert one(document, "rocky-baseos").entry == {"uri": "https://mirror.example/rocky"}
    assert one(document, "nvidia").entry == {}
    broken = with_files(document, {"/etc/yum.repos.d/bad.repo": "baseurl=x\n"})
    assert any("bad.repo can't be read" in note for note in observed("gpu1", broken).notes)


def test_a_system_without_presets_says_so() -> None:
    host = observed("gpu1", gpu("rhel-9.5", "5.14.0-503.40.1.el9_5.x86_64"))
    assert host.kind.repositories == ("epel", "nvidia")
    assert "rhel-9 has no presets: add its repositories (docs/repositories.md)" in host.notes


def test_evidence_without_sources_is_told_from_a_host_without_them() -> None:
    document = bare()
    del document["files"][f"{APT}/debian.sources"]
    host = observed("gpu1", document)
    assert host.kind.repositories == ("debian", "debian-security")
    assert "its package repositories were not looked at" in host.notes
