"""Each kind of foreign install: found with its evidence, and a near miss of it that isn't."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.host.foreign import (
    ADOPT,
    NOTE,
    REFUSE,
    TAKE_OVER,
    ForeignInstall,
    Locked,
    Trace,
    findings,
    install_from,
    kinds,
    words,
)
from gdsdeploy.host.foreign.registry import RECOGNIZERS
from tests.unit.host.foreign.foreign_hosts import (
    ADDRESS,
    CLEAN,
    MULTIARCH,
    RELEASE,
    VERSION,
    Host,
    debian_builds,
    rocky_builds,
    ubuntu_receives,
)

Make = Callable[[Path], Host]
Change = Callable[[Host], None]
OTHER = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64/"


@pytest.mark.parametrize("name", CLEAN)
def test_a_host_that_gdsdeploy_has_provisioned_has_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = CLEAN[name](tmp_path)
    assert host.installs(monkeypatch) == {}
    assert set(host.runs) <= {"dpkg-query", "rpm", "ldconfig"}, "programs that evidence runs anyway"


def test_a_host_without_anything_of_the_stack_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path, "dpkg")
    for path in ("/proc/modules", "/proc/self/mountinfo"):
        host.write(path)
    assert host.installs(monkeypatch) == {}


def runfile(host: Host, package: str = "") -> None:
    host.write("/usr/bin/nvidia-uninstall", "", package)
    host.write("/var/log/nvidia-installer.log", "creation time: Mon\ninstaller version: 580.126.20\nPATH: /root/x\n")


def hand_made(**options: object) -> Change:
    return lambda host: host.dkms("nvidia", "570.10", **options)  # type: ignore[arg-type]


def pinned(path: str, record: str) -> Change:
    return lambda host: host.write(path, record)


def mounted(host: Host, place: str = "/run/nvidia/driver") -> None:
    root = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    host.write("/proc/self/mountinfo", f"{root}30 22 0:44 / {place} rw - overlay overlay rw\n")


def own_holds(host: Host) -> None:
    host.package("libcufile-12-8", "1.13.0", "hi")
    host.write("/var/lib/gdsdeploy/held")


def not_loaded(host: Host) -> None:
    mounted(host)
    host.write("/proc/modules", "nvidia_cspmu 1 0 - Live 0x0\n")


def edited(host: Host) -> None:
    """The package's file with another value; nothing of gdsdeploy's."""
    shipped(host)
    host.write("/usr/local/cuda-12.8/gds/cufile.json", '{"logging": {"level": "TRACE"}}\n')


def shipped(host: Host) -> None:
    (host.root / "etc/cufile.json").unlink()
    host.write("/usr/local/cuda-12.8/gds/cufile.json", "{}\n", "libcufile-12-8")
    # md5sum of these three bytes
    host.write(
        "/var/lib/dpkg/info/libcufile-12-8.md5sums",
        "8a80554c91d9fca8acb82f023de02f11  usr/local/cuda-12.8/gds/cufile.json\n",
    )
    host.link("/etc/alternatives/cufile.json", "/usr/local/cuda-12.8/gds/cufile.json")
    host.link("/etc/cufile.json", "/etc/alternatives/cufile.json")


def locks(text: str, missing: str = "") -> Change:
    def change(host: Host) -> None:
        place = host.root / "etc/dnf/plugins/versionlock.list"
        place.write_text(place.read_text() + text)
        host.packages.pop(missing, None)

    return change


def excluded(text: str, missing: str = "") -> Change:
    def change(host: Host) -> None:
        host.write("/etc/dnf/dnf.conf", text)
        host.packages.pop(missing, None)

    return change


PIN = "/etc/apt/preferences.d/"
CASES: dict[str, tuple[Make, Change, str, str, str]] = {
    "a run file's driver": (ubuntu_receives, runfile, "runfile-driver", REFUSE, "/usr/bin/nvidia-uninstall"),
    "a run file's toolkit": (
        ubuntu_receives,
        lambda host: host.write("/usr/local/cuda-12.4/bin/cuda-uninstaller"),
        "runfile-cuda",
        NOTE,
        "/usr/local/cuda-12.4/bin/cuda-uninstaller",
    ),
    "a module that wins": (
        rocky_builds,
        lambda host: host.module("updates/nvidia.ko", "nvidia", build_id=b"b" * 20) and None,
        "module-without-record",
        REFUSE,
        f"/lib/modules/{RELEASE}/updates/nvidia.ko",
    ),
    "a module that doesn't win": (
        rocky_builds,
        lambda host: host.module("kernel/drivers/video/nvidia.ko", "nvidia", build_id=b"b" * 20) and None,
        "module-without-record",
        REFUSE,
        f"/lib/modules/{RELEASE}/kernel/drivers/video/nvidia.ko",
    ),
    "a unit that unpacks modules": (
        rocky_builds,
        lambda host: host.write("/etc/systemd/system/nvidia-kmod-load.service"),
        "module-loader",
        NOTE,
        "/etc/systemd/system/nvidia-kmod-load.service",
    ),
    "Canonical's modules": (
        ubuntu_receives,
        lambda host: host.package("linux-modules-nvidia-580-open-6.8.0-51-generic", "6.8.0-51.52"),
        "prebuilt-modules",
        NOTE,
        "linux-modules-nvidia-580-open-6.8.0-51-generic",
    ),
    "a precompiled kmod": (
        rocky_builds,
        lambda host: host.package("kmod-nvidia-580.95.05-5.14.0-570.el9", "3:580.95.05-1.el9"),
        "prebuilt-modules",
        NOTE,
        "kmod-nvidia-580.95.05-5.14.0-570.el9",
    ),
    "a tree in DKMS, installed": (
        ubuntu_receives, hand_made(folder="updates/dkms", modules=["nvidia"]), "dkms-by-hand", REFUSE, "nvidia/570.10"
    ),
    "a tree in DKMS, added": (ubuntu_receives, hand_made(), "dkms-by-hand", NOTE, "nvidia/570.10"),
    "a library that programs get": (
        debian_builds,
        lambda host: host.library("/usr/local/lib/libcufile.so.0", "libcufile.so.0", first=True),
        "library-without-package",
        REFUSE,
        "/usr/local/lib/libcufile.so.0",
    ),
    "a library behind the package's": (
        debian_builds,
        lambda host: host.library("/opt/lib/libcuda.so.1", "libcuda.so.1"),
        "library-without-package",
        NOTE,
        "/opt/lib/libcuda.so.1",
    ),
    "a piece of the driver": (
        debian_builds,
        lambda host: host.package("libnvidia-decode-580", "580.82.07-0ubuntu1"),
        "driver-packages",
        ADOPT,
        "libnvidia-decode-580",
    ),
    "a hold in another version": (
        ubuntu_receives,
        own_holds,
        "hold",
        TAKE_OVER,
        "libcufile-12-8",
    ),
    "a pin that forbids the locked version": (
        ubuntu_receives,
        pinned("/etc/apt/preferences", "Package: libcufile*\nPin: release *\nPin-Priority: -1\n"),
        "pin",
        REFUSE,
        "/etc/apt/preferences",
    ),
    "a pin that prefers another version": (
        ubuntu_receives,
        pinned(PIN + "00-cuda", "# why\nPackage: libcufile-12-8\nPin: version 1.13*\nPin-Priority: 1001\n"),
        "pin",
        REFUSE,
        PIN + "00-cuda",
    ),
    "a pin that comes too late": (
        ubuntu_receives,
        pinned(PIN + "nvidia-driver-pinning", "Package: /^libnvidia-/\nPin: version 570*\nPin-Priority: 1001\n"),
        "pin",
        NOTE,
        PIN + "nvidia-driver-pinning",
    ),
    "a lock on another version": (
        rocky_builds,
        locks("kmod-nvidia-open-dkms-3:570.10-1.el9.*\n"),
        "versionlock",
        NOTE,
        "/etc/dnf/plugins/versionlock.list",
    ),
    "a lock that excludes what is missing": (
        rocky_builds,
        locks("!kmod-nvidia-open-dkms-3:580*\n", "kmod-nvidia-open-dkms"),
        "versionlock",
        REFUSE,
        "/etc/dnf/plugins/versionlock.list",
    ),
    "an exclude of what is missing": (
        rocky_builds,
        excluded("[main]\nexcludepkgs=vim,kmod*\n", "kmod-nvidia-open-dkms"),
        "exclude",
        REFUSE,
        "/etc/dnf/dnf.conf",
    ),
    "an exclude of what is installed": (
        rocky_builds, excluded("[main]\nexclude=bash\n  kmod*\n"), "exclude", NOTE, "/etc/dnf/dnf.conf"
    ),
    "another repository": (
        ubuntu_receives,
        lambda host: host.write("/etc/apt/sources.list.d/old.sources", f"Types: deb\nURIs: {OTHER}\nSuites: /\n"),
        "repository",
        NOTE,
        "/etc/apt/sources.list.d/old.sources",
    ),
    "the lock's repository, not verified": (
        ubuntu_receives,
        lambda host: host.write("/etc/apt/sources.list.d/again.list", f"deb [trusted=yes] {ADDRESS}/ /\n"),
        "repository",
        NOTE,
        "/etc/apt/sources.list.d/again.list",
    ),
    "another repository of dnf": (
        rocky_builds,
        lambda host: host.write("/etc/yum.repos.d/amazonlinux-nvidia.repo", "[amazonlinux-nvidia]\nenabled = 1\n"),
        "repository",
        NOTE,
        "/etc/yum.repos.d/amazonlinux-nvidia.repo",
    ),
    "an edited cufile.json": (
        ubuntu_receives, edited, "cufile-json", TAKE_OVER, "/usr/local/cuda-12.8/gds/cufile.json"
    ),
    "an edited cufile.json of an rpm": (
        rocky_builds,
        lambda host: (host.root / "etc/gdsdeploy/cufile.json").write_text("{}\n") and None,
        "cufile-json",
        TAKE_OVER,
        "/etc/gdsdeploy/cufile.json",
    ),
    "a driver's container": (ubuntu_receives, mounted, "driver-container", REFUSE, "/run/nvidia/driver"),
    "a driver's container that loads nothing": (
        ubuntu_receives, not_loaded, "driver-container", NOTE, "/run/nvidia/driver"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_kind_is_found_with_its_evidence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, change, ident, answer, evidence = CASES[name]
    host = make(tmp_path)
    change(host)
    installs = host.installs(monkeypatch)
    assert set(installs) == {ident}
    answers = {installs[ident].answer}
    assert answers == {answer if answer != REFUSE or installs[ident].breaks else NOTE}
    assert installs[ident].breaks is (answer == REFUSE and "doesn't win" not in name)
    assert evidence in [trace.name for trace in installs[ident].traces]


def test_every_kind_has_a_recognizer_and_a_case() -> None:
    assert set(RECOGNIZERS) == set(kinds()) == {case[2] for case in CASES.values()}


def received_elsewhere(host: Host) -> None:
    """A link of another kernel's weak updates leads to a module of DKMS."""
    built = f"/var/lib/dkms/nvidia/{VERSION}/5.14.0-1/x86_64/module/nvidia-modeset.ko"
    host.write(built)
    host.link("/var/lib/dkms/nvidia/kernel-5.14.0-1-x86_64", f"{VERSION}/5.14.0-1/x86_64")
    host.write("/lib/modules/5.14.0-1/extra/nvidia-modeset.ko")
    host.link(f"/lib/modules/{RELEASE}/weak-updates/nvidia-modeset.ko", "/lib/modules/5.14.0-1/extra/nvidia-modeset.ko")


def diverted(host: Host) -> None:
    unpacked, before = f"{MULTIARCH}/diverted/libcuda.so.1", f"{MULTIARCH}/moved/libcuda.so.1"
    host.library(unpacked, "libcuda.so.1")
    host.own(before, "libcuda1")
    host.write("/var/lib/dpkg/diversions", f"{before}\n{unpacked}\nglx-diversions\n")


def only_toolkit(host: Host) -> None:
    mounted(host, "/run/nvidia/driver-root")
    host.write("/run/nvidia/driver/.keep")


NEAR: dict[str, tuple[Make, Change]] = {
    "a package brings nvidia-uninstall": (ubuntu_receives, lambda host: runfile(host, "nvidia-compat")),
    "only the log of a run file is left": (
        ubuntu_receives, lambda host: host.write("/var/log/nvidia-installer.log", "installer version: 1\n")
    ),
    "a package has cuda-uninstaller": (
        ubuntu_receives, lambda host: host.write("/usr/local/cuda-12.4/bin/cuda-uninstaller", "", "cuda-x")
    ),
    "a package has the module": (
        ubuntu_receives,
        lambda host: host.own(host.module("kernel/nvidia-580/nvidia-peermem.ko", "nvidia_peermem"), "linux-modules-x"),
    ),
    "the package lists it with /usr": (
        ubuntu_receives,
        lambda host: host.own("/usr" + host.module("kernel/x/nvidia-drm.ko", "nvidia_drm"), "linux-modules-x"),
    ),
    "gdsdeploy's own build": (
        ubuntu_receives,
        lambda host: host.module("extra/nvidia-peermem.ko", "nvidia_peermem", info=[("gdsdeploy_driver", VERSION)])
        and None,
    ),
    "weak updates of a module of DKMS": (rocky_builds, received_elsewhere),
    "a module with another name": (
        ubuntu_receives, lambda host: host.module("extra/nvidia_wmi.ko", "nvidia_wmi") and None
    ),
    "the unit is a package's": (
        rocky_builds, lambda host: host.write("/usr/lib/systemd/system/nvidia-kmod-load.service", "", "kmod-x")
    ),
    "DKMS modules in a package": (rocky_builds, lambda host: host.package("kmod-nvidia-latest-dkms", "3:1-1")),
    "a removed package": (
        ubuntu_receives, lambda host: host.package("linux-modules-nvidia-580-6.8.0-51-generic", "6.8.0", "rc")
    ),
    "DKMS has another module": (ubuntu_receives, lambda host: host.dkms("gdrdrv", "2.6", folder="updates/dkms")),
    "the sources of DKMS are a package's": (
        ubuntu_receives, lambda host: host.dkms("nvidia", VERSION, "nvidia-dkms-580")
    ),
    "a library of 32 bits": (
        debian_builds, lambda host: host.loader.insert(0, ("libcuda.so.1.x86", "/usr/lib/i386-linux-gnu/libcuda.so.1"))
    ),
    "a diverted library": (debian_builds, diverted),
    "the container toolkit": (debian_builds, lambda host: host.package("nvidia-container-toolkit", "1.17.8-1")),
    "a hold in the locked version": (ubuntu_receives, lambda host: host.write("/var/lib/gdsdeploy/held")),
    "a hold on another package": (ubuntu_receives, lambda host: host.package("libnccl2", "2.27-1", "hi")),
    "a pin for everything": (
        ubuntu_receives, pinned("/etc/apt/preferences", "Package: *\nPin: release a=noble\nPin-Priority: -10\n")
    ),
    "a pin that apt doesn't read": (
        ubuntu_receives, pinned(PIN + "00-cuda.bak", "Package: libcufile*\nPin: release *\nPin-Priority: -1\n")
    ),
    "a lock on the locked version": (rocky_builds, locks("kmod-nvidia-open-dkms-3:580.95.05-1.el9.*\n")),
    "an exclude of another package": (rocky_builds, excluded("[main]\nexclude=kmod-kvdo*\n")),
    "a repository that is switched off": (
        ubuntu_receives,
        lambda host: host.write("/etc/apt/sources.list.d/o.sources", f"Enabled: no\nTypes: deb\nURIs: {OTHER}\n"),
    ),
    "a source in a comment": (
        ubuntu_receives, lambda host: host.write("/etc/apt/sources.list.d/o.list", f"# deb {OTHER} /\n")
    ),
    "a repository without a driver": (
        ubuntu_receives,
        lambda host: host.write(
            "/etc/apt/sources.list.d/o.list", "deb https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /\n"
        ),
    ),
    "cufile.json as its package ships it": (ubuntu_receives, shipped),
    "the operator's toolkit alone": (ubuntu_receives, only_toolkit),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_is_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, change = NEAR[name]
    host = make(tmp_path)
    change(host)
    assert host.installs(monkeypatch) == {}


def test_a_tree_that_installs_itself_breaks_where_the_locked_kernel_is_still_to_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, "dpkg")
    for path in ("/proc/modules", "/proc/self/mountinfo"):
        host.write(path)
    host.package("bash", "5")
    host.dkms("nvidia", "570.10")
    assert host.installs(monkeypatch)["dkms-by-hand"].breaks


def test_what_is_left_out_of_the_evidence_is_unknown_and_never_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with a driver of every kind; without one record, each kind is found or not decided."""
    from gdsdeploy.host.facts.document import Document
    from gdsdeploy.host.facts.foreign import foreign_facts

    host = ubuntu_receives(tmp_path)
    for name in (
        "a run file's driver", "a library that programs get", "a pin that forbids the locked version",
        "a driver's container", "an edited cufile.json", "another repository", "a module that wins",
        "a tree in DKMS, added", "a run file's toolkit",
    ):  # fmt: skip
        CASES[name][1](host)
    value = host.document(monkeypatch).value
    locked = Locked(RELEASE, host.locked, (ADDRESS,))
    whole = {one.kind for one in findings(foreign_facts(Document(value)), locked)[0]}
    assert len(whole) == 9
    for section in ("files", "listings", "excerpts", "commands", "links", "modulefiles", "owners", "dkms"):
        for key in value[section]:
            less = copy.deepcopy(value)
            del less[section][key]
            installs, unknown = findings(foreign_facts(Document(less)), locked)
            assert whole == {one.kind for one in installs} or unknown or key in ONLY_WORDS, (section, key)


#: Records that only add words, or without which a file counts as foreign.
ONLY_WORDS = ("/var/log/nvidia-installer.log", "/var/lib/dpkg/status")


def test_names_of_a_host_are_quoted_and_never_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ubuntu_receives(tmp_path)
    name = "nvidia$(touch x){release}\x1b[31m"
    host.dkms(name, "1; reboot")
    host.module("updates/aaa {commands}/nvidia.ko", "nvidia")
    installs = host.installs(monkeypatch)
    text = words.way_out(installs["dkms-by-hand"], RELEASE)
    assert "\x1b" not in text + words.sentence(installs["dkms-by-hand"])
    command = text.partition("run: ")[2].partition("; then")[0]
    assert shlex.split(command) == ["dkms", "remove", "nvidia$(touch x){release}\\u001b[31m/1; reboot", "--all"]
    assert "'/lib/modules/" in words.way_out(installs["module-without-record"], RELEASE)
    assert "{commands}" in words.way_out(installs["module-without-record"], RELEASE)


def test_a_password_in_an_address_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ubuntu_receives(tmp_path)
    host.write("/etc/apt/sources.list.d/o.list", f"deb {OTHER.replace('://', '://me:secret@')} /\n")
    host.write("/etc/apt/sources.list.d/site.list", "deb https://me:hidden@mirror.example/debian bookworm main\n")
    document = host.document(monkeypatch)
    assert "hidden" not in json.dumps(document.value), "only lines about a driver's repository are kept"
    assert "secret" not in str(host.installs(monkeypatch))


def test_a_finding_goes_through_json() -> None:
    installs = ForeignInstall("pin", (Trace("/etc/apt/preferences", "x"),), True)
    assert install_from(json.loads(json.dumps(installs.to_json()))) == installs


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"kind": "no-such", "breaks": True, "traces": []},
        {"kind": "pin", "breaks": "yes", "traces": []},
        {"kind": "pin", "breaks": True, "traces": [{"name": 1, "detail": ""}]},
        {"kind": "pin", "breaks": True, "traces": ["x"]},
        {"kind": ["pin"], "breaks": True, "traces": []},
    ],
)
def test_what_is_no_finding_is_an_error(value: object) -> None:
    with pytest.raises(ValueError, match="foreign: "):
        install_from(value)
