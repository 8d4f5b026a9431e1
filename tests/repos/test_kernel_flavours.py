"""Every supported row of system, architecture and kernel flavour resolves to that kernel and to its packages.

The packages are written from the vendors' lists: names, sources, versions and relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.errors import NoSolution
from gdsdeploy.host.kmod.flavour import flavour_of
from gdsdeploy.host.model.compat import rules_with
from gdsdeploy.lock.lockfile import build as lock_of, status
from gdsdeploy.lock.resolve import resolve
from gdsdeploy.lock.resolve.explain import explain
from gdsdeploy.lock.sources import SourceTree
from gdsdeploy.model.fleet import Fleet, Profile
from gdsdeploy.model.lock import Package, Part, Target
from gdsdeploy.platform import stack_platform_for, supported_systems
from gdsdeploy.repo import rpm
from gdsdeploy.repo.fetch import Fetcher
from gdsdeploy.repo.packages import Origin, PackageList, Universe
from gdsdeploy.repo.repository import Repository
from tests.repos import cuda, rpmstack
from tests.repos.archive import Key, serve
from tests.repos.dkmspackages import upstream
from tests.repos.rpmarchive import Rpm, RpmArchive, build
from tests.repos.stack import SURROUNDINGS, Stanza, gds, kernel, open_driver, package, proprietary_driver, text

ARCHES = ("x86_64", "aarch64")
#: (release, package version, flavour, series of its source): a 64k build has its 4k build's numbers.
JAMMY = (
    ("5.15.0-140", "5.15.0-140.150", "generic", ""), ("5.15.0-1080", "5.15.0-1080.81", "nvidia", ""),
    ("6.8.0-1027", "6.8.0-1027.34~22.04.1", "azure", "6.8"), ("6.8.0-1028", "6.8.0-1028.30", "aws", "6.8"),
)  # fmt: skip
NOBLE = (
    ("6.8.0-60", "6.8.0-60.63", "generic", ""), ("6.17.0-1026", "6.17.0-1026.26", "nvidia", "6.17"),
    ("6.8.0-1015", "6.8.0-1015.16.1", "nvidia-lowlatency", ""), ("6.8.0-1030", "6.8.0-1030.32", "aws", ""),
    ("6.8.0-1031", "6.8.0-1031.36", "azure", "6.8"), ("6.14.0-1003", "6.14.0-1003.3", "azure-nvidia", "6.14"),
    ("6.8.0-1032", "6.8.0-1032.34", "gcp", ""), ("6.8.0-1029", "6.8.0-1029.30", "oracle", ""),
    ("6.8.0-61", "6.8.0-61.63.1", "lowlatency", ""),
)  # fmt: skip
RESOLUTE = (
    ("7.0.0-12", "7.0.0-12.12", "generic", ""), ("7.0.0-2016", "7.0.0-2016.16", "nvidia-bos", ""),
    ("7.0.0-1019", "7.0.0-1019.19", "nvidia", ""), ("7.0.0-1014", "7.0.0-1014.14", "aws", ""),
)  # fmt: skip
SYSTEMS = {"ubuntu-22.04": JAMMY, "ubuntu-24.04": NOBLE, "ubuntu-26.04": RESOLUTE}
WITH_64K = ("generic", "nvidia", "nvidia-bos", "aws", "gcp", "oracle")
#: A driver and an nvidia-fs that go with every kernel here.
CUDA = [
    cuda.CUDA_DKMS, *cuda.cuda_driver("595.71.05", revision="1ubuntu1"), *cuda.cuda_nvidia_fs("2.29.4"),
    *cuda.cuda_gds("13-0", "1.15.1.6", toolkit="13.0.2", driver="580.95.05"),
]  # fmt: skip


def rows(os: str, arch: str) -> Iterator[tuple[str, str, str, str]]:
    """The kernels of an Ubuntu release for one architecture."""
    for release, version, flavour, series in SYSTEMS[os]:
        if flavour != "azure-nvidia" or arch == "aarch64":
            yield release, version, flavour, series
        if flavour in WITH_64K and arch == "aarch64":
            yield release, version, f"{flavour}-64k", series


def apt_universe(offer: dict[str, tuple[str, Iterable[Stanza]]], arch: str) -> Universe:
    own = "arm64" if arch == "aarch64" else "amd64"
    lists = []
    for name, (origin, stanzas) in offer.items():
        ours = cuda.on_arm(stanzas) if arch == "aarch64" else stanzas
        lists.append(
            PackageList(text(ours), Origin(name, "suite", "", origin, (own, "all"), f"https://m.example/{name}"))
        )
    return Universe(lists)


def unique(stanzas: Iterable[Stanza]) -> list[Stanza]:
    """Both page sizes of a kernel have one package of common headers."""
    return list({(p["Package"], p["Version"]): p for p in stanzas}.values())


@cache
def ubuntu(os: str, arch: str) -> Universe:
    kernels = [
        stanza for release, version, flavour, series in rows(os, arch)
        for stanza in cuda.ubuntu_kernel(release, version, flavour=flavour, series=series)
        if not stanza["Package"].endswith("-lowlatency") or flavour.endswith("lowlatency")
    ]  # fmt: skip
    archive = unique([*kernels, *cuda.UBUNTU_SURROUNDINGS])
    return apt_universe({"cuda": ("nvidia", CUDA), "ubuntu": ("ubuntu", archive)}, arch)


def tree(part: Part, packages: Sequence[Package]) -> SourceTree:
    """Source trees are the subject of other tests."""
    version = upstream(next(package.version for package in packages if package.part == part))
    return SourceTree(f"/usr/src/tree-{version}", "tree", version)


def locked(universe: Universe, os: str, arch: str = "x86_64", **profile: Any) -> Target:
    wish = Profile.model_validate({"os": os, "arch": arch, **profile})
    return resolve("gds", wish, stack_platform_for(os), universe, [], tree, rules=rules_with(())).target


def reasons(universe: Universe, os: str, arch: str = "x86_64", **profile: Any) -> list[str]:
    with pytest.raises(NoSolution) as error:
        locked(universe, os, arch, **profile)
    return [line[4:] for line in error.value.message.splitlines() if line.startswith("  - ")]


def kernel_parts(target: Target) -> dict[str, tuple[str, str]]:
    return {p.package: (p.version, p.part) for p in target.packages if p.part.startswith("kernel-")}


UBUNTU_ROWS = [(os, arch, *row) for os in SYSTEMS for arch in ARCHES for row in rows(os, arch)]


@pytest.mark.parametrize(
    ("os", "arch", "release", "version", "flavour", "series"), UBUNTU_ROWS, ids=lambda value: str(value) or "-"
)
def test_ubuntu(os: str, arch: str, release: str, version: str, flavour: str, series: str) -> None:
    target = locked(ubuntu(os, arch), os, arch, kernel={"flavour": flavour})
    full, plain = f"{release}-{flavour}", flavour.removesuffix("-64k")
    common = "linux" if plain == "generic" else f"linux-{plain}-{series}".rstrip("-")
    headers = f"linux-headers-{release}" if plain == "generic" else f"{common}-headers-{release}"
    image = [
        f"linux-image-{full}",
        f"linux-modules-{full}",
        *([] if plain == "nvidia" else [f"linux-modules-extra-{full}"]),
    ]
    assert target.kernel.release == full
    assert kernel_parts(target) == {
        **dict.fromkeys(image, (version, "kernel-image")),
        **dict.fromkeys((f"linux-headers-{full}", headers), (version, "kernel-headers")),
    }
    assert {p.package for p in target.packages if p.part == "nvidia-fs-source"} == {"nvidia-fs-dkms"}
    assert target.driver.version == "595.71.05"
    assert target.pins["kernel_flavour"] == flavour
    own = flavour_of(full)
    assert own is not None
    assert (own.vendor, own.name) == ("ubuntu", flavour)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("os", SYSTEMS)
def test_a_profile_without_a_flavour_gets_generic(os: str, arch: str) -> None:
    target = locked(ubuntu(os, arch), os, arch)
    assert target.kernel.release.endswith("-generic")
    assert "kernel_flavour" not in target.pins


def test_a_pin_calls_a_kernel_by_its_numbers_without_the_flavour() -> None:
    universe = ubuntu("ubuntu-24.04", "aarch64")
    for pin in ("6.17.0-1026", "==6.17.0-1026", ">=6.14", "6.17.0-1026-nvidia-64k", "==6.17.0-1026.26"):
        kernel_pin = {"version": pin, "flavour": "nvidia-64k"}
        assert locked(universe, "ubuntu-24.04", "aarch64", kernel=kernel_pin).kernel.release == "6.17.0-1026-nvidia-64k"
    assert locked(universe, "ubuntu-24.04", "aarch64", kernel="6.8").kernel.release == "6.8.0-60-generic"


def test_modules_in_a_package_of_their_own_belong_to_the_image_and_are_locked() -> None:
    """Ubuntu 26.04 has some of them in packages of another family."""
    main = "linux-main-modules-iwlwifi-7.0.0-12-generic"
    archive = [
        {**p, "Depends": main} if p["Package"] == "linux-modules-7.0.0-12-generic" else p
        for p in [*cuda.ubuntu_kernel("7.0.0-12", "7.0.0-12.12"), package(main, "7.0.0-12.12", source="linux")]
    ]
    parts = kernel_parts(locked(only(archive), "ubuntu-26.04"))
    assert parts[main] == ("7.0.0-12.12", "kernel-image")


@pytest.mark.parametrize(
    ("source", "stack"),
    [
        ("linux", True), ("linux-signed", True), ("linux-hwe-6.11", True), ("linux-signed-hwe-6.11", True),
        ("linux-nvidia-6.17", True), ("linux-signed-nvidia-6.17", True), ("linux-nvidia-bos", True),
        ("linux-azure-nvidia-6.14", True), ("linux-lowlatency-hwe-6.11", True), ("linux-oracle", True),
        ("linux-firmware", False), ("linux-meta", False), ("linux-meta-nvidia-6.17", False), ("linux-base", False),
        ("linux-restricted-modules-nvidia", True), ("linux-raspi", False),
    ],
)  # fmt: skip
def test_the_sources_of_kernels_are_of_the_stack(source: str, stack: bool) -> None:
    """So their packages are held; those of other sources follow the host's own updates."""
    where = Origin("ubuntu", "suite", "", "ubuntu", ("amd64", "all"), "https://m.example")
    (candidate,) = PackageList(text([package("a", "1", source=source)]), where).named("a")
    assert stack_platform_for("ubuntu-24.04").in_stack(candidate) is stack


# ── what an error names ──────────────────────────────────────────────────────────────────────────────────────────


def only(*kernels: list[Stanza]) -> Universe:
    archive = [*(stanza for each in kernels for stanza in each), *cuda.UBUNTU_SURROUNDINGS]
    return apt_universe({"cuda": ("nvidia", CUDA), "ubuntu": ("ubuntu", archive)}, "x86_64")


def test_a_repository_with_another_flavour_alone_is_described() -> None:
    spark = cuda.ubuntu_kernel("6.14.0-1015", "6.14.0-1015.15", flavour="nvidia", series="6.14")
    older = cuda.ubuntu_kernel("6.14.0-1013", "6.14.0-1013.13", flavour="nvidia", series="6.14")
    (line,) = reasons(only(older, spark), "ubuntu-24.04")
    assert line == (
        "[kernel] the repositories have no kernel image of flavour generic with headers of its version. Other kernel "
        "flavours on offer, with their newest: nvidia (6.14.0-1015-nvidia); to lock one, write "
        "`kernel: {flavour: nvidia}` in the profile"
    )
    assert (
        locked(only(older, spark), "ubuntu-24.04", kernel={"flavour": "nvidia"}).kernel.release == "6.14.0-1015-nvidia"
    )


def test_a_pin_that_another_flavour_meets_names_that_flavour() -> None:
    generic = [p for p in cuda.ubuntu_kernel("6.8.0-60", "6.8.0-60.63") if "lowlatency" not in p["Package"]]
    aws = cuda.ubuntu_kernel("6.8.0-1030", "6.8.0-1030.32", flavour="aws")
    (line,) = reasons(only(generic, aws), "ubuntu-24.04", kernel="6.8.0-1030-aws")
    assert line.startswith("[pin] the pin kernel: '6.8.0-1030-aws' admits nothing that is on offer: 6.8.0-60-generic")
    assert line.endswith(
        "newest: aws (6.8.0-1030-aws); to lock one, write "
        '`kernel: {version: "6.8.0-1030-aws", flavour: aws}` in the profile'
    )


def test_another_flavour_in_the_fleet_file_makes_the_lock_stale_and_moves_the_kernel() -> None:
    universe = ubuntu("ubuntu-24.04", "x86_64")
    platform = stack_platform_for("ubuntu-24.04")
    profile = {"os": "ubuntu-24.04", "repositories": [], "kernel": {"flavour": "aws"}}
    fleet = Fleet.model_validate({"version": 1, "profiles": {"gds": profile}, "hosts": {"gpu1": "gds"}})
    target = locked(universe, "ubuntu-24.04")
    (reason,) = status(fleet, lock_of({"gds": target}))
    assert str(reason) == "profile gds: pin kernel_flavour: the fleet file says aws, the lock has nothing"
    target = locked(universe, "ubuntu-24.04", kernel={"flavour": "aws"})
    assert status(fleet, lock_of({"gds": target})) == []
    index = {"repository": "ubuntu", "uri": "https://m.example", "suite": "suite", "components": (), "date": "x"}
    signed = {**index, "signed_by": "F", "host_keyring": "/k"}
    target = Target.model_validate({**target.model_dump(), "indices": [signed]})
    answer = explain("gds", fleet.profiles["gds"], platform, universe, target, "kernel", rules_with(()))
    assert (answer.package.package, answer.newer) == ("linux-image-6.8.0-1030-aws", ())


# ── whose nvme lets nvidia-fs in ─────────────────────────────────────────────────────────────────────────────────


def with_doca(flavour: str) -> Universe:
    archive = [*cuda.ubuntu_kernel("6.17.0-1026", "6.17.0-1026.26", flavour=flavour), *cuda.UBUNTU_SURROUNDINGS]
    old = [p for p in cuda.DOCA if not p["Version"].startswith("3.3")]
    return apt_universe(
        {"cuda": ("nvidia", CUDA), "ubuntu": ("ubuntu", archive), "doca": ("mellanox technologies", old)}, "x86_64"
    )


def test_canonicals_nvidia_kernel_needs_no_nvme_of_doca() -> None:
    pin = {"flavour": "nvidia"}
    target = locked(with_doca("nvidia"), "ubuntu-24.04", kernel=pin, doca=["doca-ofed"])
    assert (target.kernel.release, "doca-kernel-6.17" in target.rules) == ("6.17.0-1026-nvidia", False)
    # DOCA's own nvme takes its place, and has to know this kernel; so it has to on any other kernel.
    for flavour, doca in (("nvidia", ["doca-ofed", "mlnx-nvme-dkms"]), ("generic", ["doca-ofed"])):
        lines = reasons(with_doca(flavour), "ubuntu-24.04", kernel={"flavour": flavour}, doca=doca)
        assert any(line.startswith("[doca-kernel-6.17] ") for line in lines), lines


# ── Debian ───────────────────────────────────────────────────────────────────────────────────────────────────────


def debian_kernel(release: str, version: str, flavour: str) -> list[Stanza]:
    """A kernel of another flavour, with the names that the plain one has."""
    return [
        {
            **p,
            **{key: p[key].replace("-amd64", f"-{flavour}") for key in ("Package", "Depends", "Filename") if key in p},
        }
        for p in kernel(release, version)
        if p["Package"].endswith("-amd64") and not p["Package"].endswith(("-cloud-amd64", "-rt-amd64"))
    ] + [p for p in kernel(release, version) if not p["Package"].endswith(("amd64", "-dbg"))]


@pytest.mark.parametrize(
    ("arch", "flavour"),
    [("x86_64", "amd64"), ("x86_64", "cloud-amd64"), ("x86_64", "rt-amd64"),
     ("aarch64", "arm64"), ("aarch64", "cloud-arm64"), ("aarch64", "arm64-16k")],
)  # fmt: skip
def test_debian(arch: str, flavour: str) -> None:
    own = "arm64" if arch == "aarch64" else "amd64"
    kernels = [p for name in {own, flavour} for p in debian_kernel("6.12.94+deb13", "6.12.94-1", name)]
    stack = [*open_driver("550.163.01", "2"), *proprietary_driver("550.163.01", "2")]
    archive = unique([*kernels, *stack, *gds("2.19.7", "1.9.1.3", "12.4.1", "2"), *SURROUNDINGS])
    universe = apt_universe({"debian": ("debian", archive)}, arch)
    release = f"6.12.94+deb13-{flavour}"
    target = locked(universe, "debian-13", arch, kernel={"flavour": flavour})
    assert target.kernel.release == release
    assert kernel_parts(target).keys() >= {f"linux-image-{release}", f"linux-headers-{release}"}
    assert locked(universe, "debian-13", arch).kernel.release == f"6.12.94+deb13-{own}"
    assert flavour_of(release) == ("debian", flavour)


# ── RHEL's family ────────────────────────────────────────────────────────────────────────────────────────────────

#: (system, flavour) → its metapackage, the package's version, and the architectures that have it.
EL: dict[tuple[str, str], tuple[str, str, tuple[str, ...]]] = {
    ("rhel-9", "kernel"): ("kernel", "5.14.0-687.42.1.el9_8", ARCHES),
    ("rhel-9", "64k"): ("kernel-64k", "5.14.0-687.42.1.el9_8", ("aarch64",)),
    ("rhel-9", "rt"): ("kernel-rt", "5.14.0-687.42.1.el9_8", ("x86_64",)),
    ("rhel-10", "kernel"): ("kernel", "6.12.0-211.4.1.el10_2", ARCHES),
    ("rhel-10", "64k"): ("kernel-64k", "6.12.0-211.4.el10nv", ("aarch64",)),
    ("rocky-9", "kernel"): ("kernel", "5.14.0-687.5.1.el9_8.0.1", ARCHES),
    ("almalinux-9", "kernel"): ("kernel", "5.14.0-570.73.1.el9_6", ARCHES),
    ("almalinux-9", "64k"): ("kernel-64k", "5.14.0-570.73.1.el9_6", ("aarch64",)),
    ("rocky-10", "kernel"): ("kernel", "6.12.0-124.20.1.el10_1", ARCHES),
    ("almalinux-10", "kernel"): ("kernel", "6.12.0-124.21.1.el10_1", ARCHES),
    ("oracle-9", "kernel"): ("kernel", "5.14.0-570.12.1.0.1.el9_6", ARCHES),
    ("oracle-9", "uek"): ("kernel-uek", "5.15.0-310.184.5.2.el9uek", ARCHES),
    ("oracle-10", "kernel"): ("kernel", "6.12.0-55.9.1.0.1.el10_0", ("x86_64",)),
    ("oracle-10", "uek"): ("kernel-uek", "6.12.0-100.28.2.el10uek", ARCHES),
    ("amazon-2023", "kernel"): ("kernel", "6.1.141-155.222.amzn2023", ARCHES),
    ("amazon-2023", "kernel6.12"): ("kernel6.12", "6.12.37-61.105.amzn2023", ARCHES),
    ("amazon-2023", "kernel6.18"): ("kernel6.18", "1:6.18.35-68.127.amzn2023", ARCHES),
}
EL_ROWS = [(os, arch, flavour) for (os, flavour), (*_, arches) in EL.items() for arch in arches]
#: A vendor's build has the stock name: GCP's image of Rocky runs CIQ's.
CIQ = "5.14.0-687.42.1+2.1.el9_8_ciq"


def el_kernels(os: str, arch: str) -> Iterator[Rpm]:
    for (system, _), (stem, version, arches) in EL.items():
        if system == os and arch in arches:
            one = rpmstack.amazon_kernel if os.startswith("amazon") else rpmstack.flavoured_kernel
            yield from one(stem, version, arch=arch)
    if os == "rocky-9":
        yield from rpmstack.flavoured_kernel("kernel", CIQ, arch=arch)


Universes = dict[tuple[str, str], Universe]


@pytest.fixture(scope="module")
def el(tmp_path_factory: pytest.TempPathFactory, key: Key) -> Iterator[Universes]:
    """What each system's repositories offer, by system and architecture: built, signed, served and read."""
    root = tmp_path_factory.mktemp("matrix")
    base = [rpm for rpm in rpmstack.BASEOS if not rpm.name.startswith("kernel")]
    others = [rpm for rpm in rpmstack.CUDA if rpm not in rpmstack.D590 and rpm.name != "dkms"]
    cuda_rpms = [
        replace(rpm, requires=tuple(words for words in rpm.requires if words != "kernel-devel"))
        for rpm in (*others, *rpmstack.driver("595.71.05"), *rpmstack.nvidia_fs("2.29.4"), rpmstack.EPEL_DKMS)
    ]
    for arch in ARCHES:
        own = rpmstack.on_arm if arch == "aarch64" else tuple
        RpmArchive(build(own(base), root / arch / "base", arch)).publish(key)
        RpmArchive(build(own(cuda_rpms), root / arch / "cuda", arch)).publish(key)
        for os in {os for os, _ in EL}:
            RpmArchive(build(el_kernels(os, arch), root / arch / os, arch)).publish(key)
    with serve(root) as server, Fetcher() as fetcher, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDSDEPLOY_CACHE_DIR", str(root / "cache"))
        yield {
            (os, arch): rpm.read(
                fetcher,
                [repository(f"{server.uri}/{arch}/{name}", name, key) for name in (os, "base", "cuda")],
                arch,
            )[0]
            for os in {os for os, _ in EL}
            for arch in ARCHES
        }


def repository(uri: str, name: str, key: Key) -> Repository:
    return Repository(name, uri, Path(key.keyring), (key.fingerprint,), "/etc/pki/rpm-gpg/KEY")


@pytest.mark.parametrize(("os", "arch", "flavour"), EL_ROWS)
def test_rhels_family(os: str, arch: str, flavour: str, el: Universes) -> None:
    stem, version, _ = EL[os, flavour]
    pin = {"flavour": flavour} if os != "rocky-9" else {"version": version}
    target = locked(el[os, arch], os, arch, kernel=pin)
    suffix = {"64k": "+64k", "rt": "+rt"}.get(flavour, "")
    release = f"{version.split(':')[-1]}.{arch}{suffix}"
    assert (target.kernel.release, target.kernel.version) == (release, version)
    parts = [""] if os.startswith("amazon") else ["", "-core", "-modules", "-modules-core"]
    # dkms wants the headers of each kernel that is there in its own version, where there is a package for that.
    headers = [f"{stem}-devel", *([f"{stem}-devel-matched"] if flavour in ("kernel", "64k") and parts[1:] else [])]
    assert kernel_parts(target) == {
        **{f"{stem}{part}": (version, "kernel-image") for part in parts},
        **dict.fromkeys(headers, (version, "kernel-headers")),
    }
    assert target.driver.version == "595.71.05"
    own = flavour_of(release)
    assert own is not None
    assert own.name == flavour
    assert stack_platform_for(os).kernel_packages(release) == (stem, f"{stem}-devel")


def test_the_default_of_rhels_family_is_kernel(el: Universes) -> None:
    for os, arch in el:
        release = locked(el[os, arch], os, arch).kernel.release if (os, arch) != ("oracle-10", "aarch64") else ""
        assert not release or flavour_of(release) == ("amazon" if os == "amazon-2023" else "rhel", "kernel")


def test_a_vendors_kernel_may_have_a_plus_in_its_release(el: Universes) -> None:
    for pin in ("newest", "5.14.0-687.42.1+2.1", f"{CIQ}.x86_64", ">=5.14.0-687.42"):
        assert locked(el["rocky-9", "x86_64"], "rocky-9", kernel=pin).kernel.release == f"{CIQ}.x86_64"
    assert flavour_of(f"{CIQ}.x86_64") == ("rhel", "kernel")


def test_without_rhck_the_error_names_uek(el: Universes) -> None:
    lines = reasons(el["oracle-10", "aarch64"], "oracle-10", "aarch64")
    assert lines[0].endswith(
        "uek (6.12.0-100.28.2.el10uek.aarch64); to lock one, write `kernel: {flavour: uek}` in the profile"
    )


def test_the_rules_know_that_uek_is_not_rhels_kernel(el: Universes) -> None:
    pin = {"flavour": "uek"}
    assert any("[p2pdma-uek]" in r for r in reasons(el["oracle-9", "x86_64"], "oracle-9", kernel=pin, mode="p2pdma"))
    assert locked(el["oracle-10", "x86_64"], "oracle-10", kernel=pin, mode="p2pdma").nvidia_fs is None


def test_every_supported_system_has_a_row() -> None:
    assert {*SYSTEMS, *(os for os, _ in EL), "debian-12", "debian-13"} == set(supported_systems())
