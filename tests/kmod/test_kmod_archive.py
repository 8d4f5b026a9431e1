"""Modules of the archive's sources, built the stock way and ours, and by DKMS."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gdsdeploy import run
from gdsdeploy.host.apply import recipes as apply_recipes

pytestmark = pytest.mark.kbuild

if TYPE_CHECKING:
    from tests.kmod.conftest import Builder

P2P = "nvidia_p2p_"
#: What nvidia-fs's configure prints.
ANSWERS = re.compile(r"^[Cc]hecking .* (?:yes|no)$", re.MULTILINE)


def quick(host: Builder, *words: str, kernel: str = "", status: int = 0) -> dict[str, Any]:
    """What preflight runs: nothing of the driver is built but the unit that exports the symbols."""
    argv = ["kmod", "build", *words, "--kernel", kernel or host.kernel, "--ahead", "--output", "/build/out/", "--json"]
    argv += ["--driver-tree", host.source("nvidia-current-open")]
    if "--source" not in words:
        argv += ["--source", host.source("nvidia-fs")]
    value: dict[str, Any] = json.loads(host.gdsdeploy(*argv, status=status).stdout)
    return value


def versions(host: Builder, file: str) -> dict[str, str]:
    lines = host.run("modprobe", "--dump-modversions", file).stdout.splitlines()
    return {name: crc for crc, name in (line.split() for line in lines)}


def field(host: Builder, name: str, file: str) -> str:
    return host.run("modinfo", "-F", name, file).stdout.strip()


def removed_after(host: Builder) -> Iterator[Builder]:
    """The host, whose files belong to root, and are removed when its tests have ended."""
    yield host
    run.run(run.as_root(["rm", "-rf", "--one-file-system", str(host.folder)]), doing="remove what a test built")


@pytest.fixture(scope="module")
def trixie(kbuild_base: Path, make_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """A host with OFED for its kernel, on which nvidia-peermem and nvidia-fs were built."""
    host = make_host(kbuild_base, tmp_path_factory.mktemp("trixie") / "host")
    host.ofed(f"x86_64/{host.kernel}")
    host.write("/build/report.json", json.dumps(quick(host, "nvidia-peermem", "nvidia-fs")))
    yield from removed_after(host)


@pytest.fixture(scope="module")
def bookworm(bookworm_base: Path, make_host: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    yield from removed_after(make_host(bookworm_base, tmp_path_factory.mktemp("bookworm") / "host"))


@pytest.fixture
def fresh(kbuild_base: Path, make_host: Any, tmp_path: Path) -> Iterator[Builder]:
    """A host of trixie with nothing built and no OFED."""
    yield from removed_after(make_host(kbuild_base, tmp_path / "host"))


def test_both_modules_of_the_release(trixie: Builder) -> None:
    host = trixie
    report = json.loads(host.path("/build/report.json").read_text())
    assert report["ok"] is True
    assert (report["versions_from"], report["driver"]["version"]) == ("compiled", "550.163.01")
    assert report["ofed"]["path"] == f"/usr/src/ofa_kernel/x86_64/{host.kernel}"
    peermem, fs = report["modules"]
    assert [entry["module"] for entry in (peermem, fs)] == ["nvidia-peermem", "nvidia-fs"]
    assert all(entry["error"] is None and entry["files"][0]["audit"]["ok"] is True for entry in (peermem, fs))
    assert (peermem["files"][0]["version"], fs["files"][0]["version"]) == ("550.163.01", "2.19.7")
    assert peermem["files"][0]["provenance"]["ofed"] == report["ofed"]["symvers"]
    # Complete: it needs both cores, with the versions that those have.
    assert set(field(host, "depends", "/build/out/nvidia-peermem.ko").split(",")) == {"nvidia", "ib_uverbs"}
    theirs = {
        line.split("\t")[1]: line.split("\t")[0]
        for line in host.path(f"{report['ofed']['path']}/Module.symvers").read_text().splitlines()
    }
    results = versions(host, "/build/out/nvidia-peermem.ko")
    assert {name: results[name] for name in theirs} == theirs
    # It links the driver's symbols, with the versions that peermem has, too.
    assert field(host, "depends", "/build/out/nvidia-fs.ko") == "nvidia"
    linked = {name: crc for name, crc in versions(host, "/build/out/nvidia-fs.ko").items() if name.startswith(P2P)}
    assert linked
    assert linked.items() <= {name: crc for name, crc in results.items() if name.startswith(P2P)}.items()


_UNIT = """
import json, sys
sys.path.insert(0, "/usr/lib/gdsdeploy/gdsdeploy-host.pyz")
from gdsdeploy.host.build.kbuild import BuildContext, BuildRequest
from gdsdeploy.host.build.kbuild import Log
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.kmod.files import find_trees, select
release, sources = sys.argv[1:]
request = BuildRequest(Kernel(release), select(find_trees(sources), "535.261.03", "open"), jobs=2, ahead=True)
found = BuildContext(request, "/build/unit").versions(Log("/build/unit.log")).extra
print(json.dumps({name: "0x{:08x}".format(export.crc) for name, export in found.items()}))
"""


def test_one_unit_gives_the_symbol_versions_of_the_whole_driver(bookworm: Builder) -> None:
    """Against Module.symvers of a whole driver 535.261.03, built for this very kernel by DKMS."""
    whole = Path(__file__).parents[1] / "evidence" / "kmod" / "nvidia-535.261.03.kernel-6.1.0-50.Module.symvers"
    expected = {line.split()[1]: line.split()[0] for line in whole.read_text().splitlines() if P2P in line}
    bookworm.run("mkdir", "/build/unit")
    argv = ["python3", "-c", _UNIT, bookworm.kernel, str(Path(bookworm.source("nvidia-current-open")).parent)]
    results = json.loads(bookworm.run(*argv).stdout)
    assert {name: crc for name, crc in results.items() if name.startswith(P2P)} == expected


def test_stock_nvidia_fs_succeeds_with_a_module_that_the_kernel_refuses(trixie: Builder) -> None:
    trixie.run("cp", "-a", trixie.source("nvidia-fs"), "/build/stock")
    tree = trixie.source("nvidia-current-open")
    argv = ["make", "-C", "/build/stock", f"KVER={trixie.kernel}", f"NVIDIA_SRC_DIR={tree}/nvidia"]
    done = trixie.run(*argv, "IGNORE_CC_MISMATCH=1")
    output = done.stdout + done.stderr
    assert '"nvidia_p2p_get_pages"' in output
    assert "undefined!" in output
    assert field(trixie, "depends", "/build/stock/nvidia-fs.ko") == ""
    assert not any(name.startswith(P2P) for name in versions(trixie, "/build/stock/nvidia-fs.ko"))
    right = versions(trixie, "/build/out/nvidia-fs.ko")
    assert sum(name.startswith(P2P) for name in right) == 6
    report = json.loads(trixie.path("/build/report.json").read_text())
    answers = ANSWERS.findall(done.stdout)
    assert ANSWERS.findall(trixie.path(report["modules"][1]["log"]).read_text()) == answers
    assert len(answers) > 20


def test_the_stock_makefile_takes_the_first_source_that_a_listing_has(fresh: Builder) -> None:
    # A leftover with another page table, whose name sorts before the driver's tree.
    fresh.write("/usr/src/nvidia-000/nvidia/nv-p2p.h", "#define NVIDIA_P2P_PAGE_TABLE_VERSION 0x00020000\n")
    fresh.run("cp", "-r", fresh.source("nvidia-current-open"), "/usr/src/nvidia-current-open-550.163.01")
    stock = fresh.run("make", "-C", fresh.source("nvidia-fs"), "-n", "nv_symbols", f"KVER={fresh.kernel}").stdout
    assert "Picking NVIDIA driver sources from NVIDIA_SRC_DIR=/usr/src/nvidia-000/nvidia." in stock
    trees = json.loads(fresh.gdsdeploy("kmod", "trees", "--json", "--driver-version", "550.163.01").stdout)
    assert [entry["path"] for entry in trees] == ["/usr/src/nvidia-current-open-550.163.01"]


def test_two_trees_of_one_driver_are_refused_and_both_named(fresh: Builder) -> None:
    for name in ("nvidia-current-open-550.163.01", "nvidia-srv-550.163.01"):
        fresh.run("cp", "-r", fresh.source("nvidia-current-open"), f"/usr/src/{name}")
    argv = ["kmod", "build", "nvidia-fs", "--kernel", fresh.kernel, "--source", fresh.source("nvidia-fs")]
    error = fresh.gdsdeploy(*argv, "--driver-version", "550.163.01", "--output", "/build/x.ko", status=2).stderr
    assert "there are 2 source trees of driver 550.163.01 (open): " in error
    assert "/usr/src/nvidia-current-open-550.163.01 is 550.163.01 (open)" in error
    assert "/usr/src/nvidia-srv-550.163.01 is 550.163.01 (open)" in error


def symbols_by_script(host: Builder, *words: str) -> tuple[str, str]:
    """What the stock script finds out about the driver's symbols, and what it says."""
    host.run("sh", "-c", f"rm -rf /build/script && cp -a {host.source('nvidia-fs')} /build/script")
    done = host.run("sh", "-c", f"cd /build/script && ./create_nv.symvers.sh {' '.join(words)} || true")
    return host.run("sh", "-c", "cat /build/script/nv.symvers 2>/dev/null || true").stdout, done.stdout + done.stderr


def test_the_stock_script_finds_nothing_for_the_running_kernel_and_offsets_for_the_right_one(driver: Builder) -> None:
    right = {
        line.split("\t")[1]: line.split("\t")[0]
        for line in driver.path("/build/driver/Module.symvers").read_text().splitlines()
    }
    # As upstream's Makefile calls it, without the kernel's name: the running kernel is not this one.
    assert "0x" not in symbols_by_script(driver)[0]
    text, _ = symbols_by_script(driver, driver.kernel)
    results = {line.split()[1]: int(line.split()[0], 16) for line in text.splitlines()}
    assert set(right) <= set(results)
    assert all(results[name] != int(right[name], 16) and results[name] < 0x100 for name in right)
    report = json.loads(driver.build("--json"))
    assert report["versions_from"] == "module"
    mine = versions(driver, "/build/nvidia-fs.ko")
    assert {name: mine[name] for name in right} == right


def test_the_stock_script_cannot_read_zstd(driver: Builder) -> None:
    right = driver.path("/build/driver/Module.symvers").read_text()
    driver.run("sh", "-c", f"cd {driver.modules}/updates/dkms && zstd --rm -q nvidia.ko && depmod -a {driver.kernel}")
    assert "nvidia_p2p_get_pages" not in symbols_by_script(driver, driver.kernel)[0]
    report = json.loads(driver.build("--json"))
    assert report["versions_from"] == "module"
    mine = versions(driver, "/build/nvidia-fs.ko")
    assert all(mine[line.split()[1]] == line.split()[0] for line in right.splitlines())
    # Without the program, libzstd reads it.
    driver.run("rm", "/usr/bin/zstd")
    assert json.loads(driver.build("--json"))["versions_from"] == "module"


def test_a_kept_module_symvers_is_used_when_the_module_beside_it_proves_it(driver: Builder) -> None:
    right = driver.path("/build/driver/Module.symvers").read_text()
    kept_copy = f"/var/lib/dkms/nvidia-standin/1.2.3/{driver.kernel}/x86_64/module"
    driver.run("mkdir", "-p", kept_copy)
    driver.run("sh", "-c", f"mv {driver.modules}/updates/dkms/nvidia.ko {kept_copy} && depmod -a {driver.kernel}")
    driver.run("cp", "/build/driver/Module.symvers", kept_copy)
    assert json.loads(driver.build("--json"))["versions_from"] == "symvers"
    mine = versions(driver, "/build/nvidia-fs.ko")
    assert all(mine[line.split()[1]] == line.split()[0] for line in right.splitlines())
    # Another build's symbols beside it prove nothing; then the unit is compiled.
    driver.run("sed", "-i", "s/^0x......../0x00000014/", f"{kept_copy}/Module.symvers")
    assert json.loads(driver.build("--json"))["versions_from"] == "compiled"
    assert "exports other versions" in driver.path("/build/nvidia-fs.ko.log").read_text()
    assert versions(driver, "/build/nvidia-fs.ko") == mine


def test_peermem_without_ofed_is_a_stub_the_stock_way_and_refused_by_ours(fresh: Builder) -> None:
    report = quick(fresh, "nvidia-peermem", status=1)
    error = report["modules"][0]["error"]
    assert "would be a stub that fails to load with 'Invalid argument'" in error["message"]
    assert not fresh.path("/build/out/nvidia-peermem.ko").exists()
    fresh.run("cp", "-r", fresh.source("nvidia-current-open"), "/build/driver")
    fresh.run(
        "make", "-C", "/build/driver", "modules", f"KERNEL_UNAME={fresh.kernel}", "NV_KERNEL_MODULES=nvidia-peermem"
    )
    assert field(fresh, "depends", "/build/driver/nvidia-peermem.ko") == ""
    results = fresh.audit("--peermem", "/build/driver/nvidia-peermem.ko", status=1)[0]["findings"]
    assert isinstance(results, list)
    assert "peermem-stub" in [entry["id"] for entry in results]


def stock_decision(host: Builder) -> str:
    """What the driver's own probe says about peer memory for the host's kernel."""
    build = f"/usr/lib/modules/{host.kernel}/build"
    script = f"{host.source('nvidia-current-open')}/conftest.sh"
    environment = ["env", "ARCH=x86_64", f"KERNELRELEASE={host.kernel}"]
    words = ["/bin/sh", script, "gcc", "x86_64", f"/usr/lib/modules/{host.kernel}/source", build]
    host.run("mkdir", "-p", "/build/probe")
    call = " ".join([*environment, *words, "compile_tests", "''", "ib_peer_memory_symbols"])
    return host.run("sh", "-c", f"cd /build/probe && {call}").stdout.strip()


def test_ofed_of_another_kernel_is_taken_by_the_stock_way_and_refused_by_ours(fresh: Builder) -> None:
    assert stock_decision(fresh).startswith("#undef")
    other = fresh.ofed(f"x86_64/{fresh.other_kernel}", kernel=fresh.other_kernel)
    fresh.run("ln", "-s", other, "/usr/src/ofa_kernel/default")
    assert stock_decision(fresh) == "#define NV_MLNX_IB_PEER_MEM_SYMBOLS_PRESENT"
    error = quick(fresh, "nvidia-peermem", status=1)["modules"][0]["error"]
    assert f"was made for kernel {fresh.other_kernel}, not {fresh.kernel}" in error["message"]


def test_ofed_of_another_build_of_the_same_kernel_is_refused(fresh: Builder) -> None:
    folder = fresh.ofed(f"x86_64/{fresh.kernel}")
    fresh.run("sed", "-i", "s/u64 core_context/u32 core_context/", f"{folder}/ib_uverbs.c")
    fresh.run("make", "-s", "-C", f"{fresh.modules}/build", f"M={folder}", "modules")
    error = quick(fresh, "nvidia-peermem", status=1)["modules"][0]["error"]
    assert f"the ib_uverbs of kernel {fresh.kernel} exports 0x" in error["message"]
    assert "it is of another build" in error["message"]


def test_what_does_not_compile_is_said_with_the_version_that_does(fresh: Builder, bookworm_base: Path) -> None:
    old = "/build/nvidia-fs-2.13"
    source = bookworm_base / "opt/archive/usr/src/nvidia-fs-2.13"
    run.run(run.as_root(["cp", "-r", str(source), str(fresh.path(old))]), doing="bring an older nvidia-fs")
    fresh.write("/build/out/nvidia-fs.ko", "the old one")
    outcome = quick(fresh, "nvidia-fs", "--source", old, status=1)["modules"][0]
    error = outcome["error"]
    assert error["message"].startswith(f"nvidia-fs 2.13.5 doesn't build for kernel {fresh.kernel} against ")
    assert "FMODE_UNSIGNED_OFFSET" in error["message"]
    assert [entry["id"] for entry in error["rules"]] == ["debian-nvidia-fs-2.13"]
    assert "fixed in nvidia-fs 2.25.7" in error["hint"]
    assert outcome["log"] in error["hint"]
    assert fresh.path("/build/out/nvidia-fs.ko").read_text() == "the old one"


# -- Our recipes with the real dkms: what it registers, rebuilds, and must not lose.


if TYPE_CHECKING:
    from tests.kmod.conftest import Builder

DRIVER, NVIDIA_FS = "nvidia-standin/1.2.3", "nvidia-fs/2.19.7"
NEXT = "nvidia-standin/1.2.4"


def desired_recipes(version: str, target: str) -> apply_recipes.Desired:
    """target: the only kernel that a builder builds for."""
    return apply_recipes.Desired(
        driver_version=version,
        driver_flavour="open",
        driver_tree=f"/usr/src/nvidia-standin-{version}",
        driver_dkms_name="nvidia-standin",
        nvidia_fs_version="2.19.7",
        nvidia_fs_tree="/usr/src/nvidia-fs-2.19.7",
        kernel_release=target,
        target_only=bool(target),
    )


def driver_recipe(version: str = "1.2.3", target: str = "") -> str:
    return apply_recipes.driver(desired_recipes(version, target))


def recipes(host: Builder, version: str = "1.2.3", edit: tuple[str, str] = ("", ""), target: str = "") -> None:
    """What the role leaves in /etc/dkms."""
    desired = desired_recipes(version, target)
    texts = {"nvidia-fs": apply_recipes.nvidia_fs(desired), "nvidia-standin": apply_recipes.driver(desired)}
    for name, text in texts.items():
        host.write(f"/etc/dkms/{name}.conf", text.replace(*edit) if edit[0] else text)


#: Arguments: the driver's version, then options of ``DkmsRequest`` and ``provide`` that are to be true.
PROVIDE = """\
import json, sys
sys.path.insert(0, "/usr/lib/gdsdeploy/gdsdeploy-host.pyz")
from gdsdeploy.host.build.dkms import DkmsRequest, Package, provide
from gdsdeploy.host.errors import guarded
from gdsdeploy.host.kmod import files
def run(words):
    kernel, version, *options = words
    driver, nvidia_fs = ("nvidia-standin", version, "driver"), ("nvidia-fs", "2.19.7", "nvidia-fs")
    tree = files.expect(f"/usr/src/nvidia-standin-{version}", version, "open")
    chosen = {name: name in options for name in ("peermem", "target_only")}
    request = DkmsRequest(kernel, [Package(*driver), Package(*nvidia_fs)], tree, **chosen)
    print(json.dumps(provide(request, check="check" in options)))
    return 0
sys.exit(guarded(run)(sys.argv[1:]))
"""


def provide(host: Builder, *options: str, version: str = "1.2.3", status: int = 0) -> subprocess.CompletedProcess[str]:
    """What the resource ``modules`` has DKMS do."""
    return host.run("python3", "-c", PROVIDE, host.kernel, version, *options, status=status)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def next_driver(host: Builder, *, fits: bool) -> None:
    """Another driver's source arrives, as a package would bring it; nvidia-fs compiles against it, or does not.

    From now on one kernel is enough.
    """
    host.run("rm", "-f", f"/usr/lib/modules/{host.other_kernel}/build")
    folder = "/usr/src/nvidia-standin-1.2.4"
    host.run("cp", "-r", "/usr/src/nvidia-standin-1.2.3", folder)
    host.run("sed", "-i", "s/1\\.2\\.3/1.2.4/", f"{folder}/Kbuild", f"{folder}/dkms.conf")
    if not fits:
        host.run("sed", "-i", "s/nvidia_p2p_put_pages/nvidia_p2p_drop_pages/", f"{folder}/nvidia/nv-p2p.h")
        host.run("sed", "-i", "s/nvidia_p2p_put_pages/nvidia_p2p_drop_pages/", f"{folder}/nvidia/nv-p2p.c")


def installed_module(host: Builder, kernel: str = "") -> str:
    """The nvidia-fs that modprobe would load, or empty."""
    files = host.run("sh", "-c", f"find /usr/lib/modules/{kernel or host.kernel} -name 'nvidia-fs.ko*'").stdout.split()
    assert len(files) <= 1
    return files[0] if files else ""


def driver_of(host: Builder, file: str) -> str:
    return host.run("modinfo", "-F", "gdsdeploy_driver", file).stdout.strip()


@pytest.fixture(scope="module")
def registered_modules(
    kbuild_base: Path, make_host: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Builder]:
    """A host on which DKMS was had to build once."""
    host = make_host(kbuild_base, tmp_path_factory.mktemp("dkms") / "host")
    host.run("cp", "-r", "/usr/src/driver", "/usr/src/nvidia-standin-1.2.3")
    host.run("cp", "-r", "/usr/src/nvidia-fs", "/usr/src/nvidia-fs-2.19.7")
    for name in (DRIVER, NVIDIA_FS):
        host.run("dkms", "add", name)
    recipes(host)
    host.write("/build/first.json", provide(host).stdout)
    yield host
    run.run(run.as_root(["rm", "-rf", "--one-file-system", str(host.folder)]), doing="remove what a test built")


@pytest.fixture
def host(registered_modules: Builder, copy_host: Any, tmp_path: Path) -> Iterator[Builder]:
    yield from copy_host(registered_modules, tmp_path / "host")


def test_every_kernel_with_headers_gets_both_and_a_second_run_does_nothing(host: Builder) -> None:
    first = json.loads(host.run("cat", "/build/first.json").stdout)
    assert first["changed"]
    assert [(entry["kernel_release"], entry["package"]) for entry in first["done"]] == [
        (kernel, package) for kernel in (host.kernel, host.other_kernel) for package in (DRIVER, NVIDIA_FS)
    ]
    status = host.run("dkms", "status").stdout
    assert status.count(": installed") == 4
    for kernel in (host.kernel, host.other_kernel):
        assert host.run("modinfo", "-F", "vermagic", installed_module(host, kernel)).stdout.split()[0] == kernel
        assert host.path(f"/var/log/gdsdeploy/kmod/{kernel}/nvidia-fs.log").stat().st_size > 1000
    assert answer(provide(host)) == {"changed": False, "done": [], "notes": []}


def test_a_builder_builds_for_the_target_alone(host: Builder) -> None:
    for name in (NVIDIA_FS, DRIVER):
        host.run("dkms", "unbuild", name, "-k", host.other_kernel)
    assert answer(provide(host, "check", "target_only"))["changed"] is False
    assert {step["kernel_release"] for step in answer(provide(host, "check"))["done"]} == {host.other_kernel}
    # As packages' scripts do, which build while packages are installed: before Ansible's own step.
    recipes(host, target=host.kernel)
    host.run("dkms", "autoinstall", "-k", host.other_kernel)
    host.run("dkms", "build", DRIVER, "-k", host.other_kernel, status=77)
    assert installed_module(host, host.other_kernel) == ""
    recipes(host)
    host.run("dkms", "autoinstall", "-k", host.other_kernel)
    assert installed_module(host, host.other_kernel)


def test_a_kernel_that_an_upgrade_brings_gets_nothing_of_the_driver_that_it_replaces(host: Builder) -> None:
    """DKMS runs when the kernel is installed, before the next driver's source is there."""
    for name in (NVIDIA_FS, DRIVER):
        host.run("dkms", "unbuild", name, "-k", host.other_kernel)
    recipes(host, "1.2.4")
    host.run("dkms", "autoinstall", "-k", host.other_kernel)
    lib = host.lib(host.other_kernel)
    assert host.run("sh", "-c", f"find {lib} -name 'nvidia*.ko*'").stdout == ""
    recipes(host)
    host.run("dkms", "autoinstall", "-k", host.other_kernel)
    assert driver_of(host, installed_module(host, host.other_kernel)) == "1.2.3"


@pytest.mark.parametrize(("release", "skips"), [("bookworm_base", False), ("kbuild_base", True)])
def test_a_kernel_that_is_left_out_fails_no_package_of_a_kernel(
    release: str, skips: bool, make_host: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With DKMS 3.0 and 3.2, whose hook of kernels' packages passes on how DKMS ended."""
    host: Builder = make_host(request.getfixturevalue(release), tmp_path / "host")
    host.run("cp", "-a", "/usr/src/driver", "/usr/src/nvidia-standin-1.2.3")
    host.run("dkms", "add", DRIVER)
    for text in (driver_recipe(target="6.9.9-amd64"), driver_recipe(version="1.2.4")):
        host.write("/etc/dkms/nvidia-standin.conf", text)
        host.run("/etc/kernel/postinst.d/dkms", host.kernel)
        assert (installed_driver(host) == "") is skips
        if not skips:
            host.run("dkms", "unbuild", DRIVER, "-k", host.kernel)
    host.write("/etc/dkms/nvidia-standin.conf", driver_recipe(target=host.kernel))
    host.run("/etc/kernel/postinst.d/dkms", host.kernel)
    assert installed_driver(host)


def installed_driver(host: Builder) -> str:
    """The driver's module that modprobe would load, or empty."""
    return host.run("sh", "-c", f"find /usr/lib/modules/{host.kernel} -name 'nvidia.ko*'").stdout


def test_the_stock_recipe_cannot_be_built_with_the_open_drivers_name(host: Builder) -> None:
    host.run("rm", "/etc/dkms/nvidia-fs.conf")
    host.run("dkms", "unbuild", NVIDIA_FS, "-k", host.kernel)
    done = host.run("dkms", "build", NVIDIA_FS, "-k", host.kernel, status=13)
    assert "missing BUILD_DEPENDS: nvidia-current" in done.stdout + done.stderr


def test_a_new_driver_on_the_same_kernel_brings_a_new_nvidia_fs(host: Builder) -> None:
    next_driver(host, fits=True)
    recipes(host, "1.2.4")
    host.run("dkms", "install", NEXT, "-k", host.kernel)
    assert driver_of(host, installed_module(host)) == "1.2.4"
    assert answer(provide(host, "check", version="1.2.4")) == {
        "changed": False,
        "done": [],
        "notes": [f"kernel {host.other_kernel} has no headers: nothing is built for it"],
    }


def test_without_our_recipe_the_old_one_stays_for_the_new_driver_and_is_rebuilt_by_what_it_says(host: Builder) -> None:
    # As with a DKMS that does not know BUILD_DEPENDS_REBUILD.
    next_driver(host, fits=True)
    recipes(host, "1.2.4", edit=('BUILD_DEPENDS_REBUILD="yes"\n', ""))
    host.run("dkms", "install", NEXT, "-k", host.kernel)
    assert driver_of(host, installed_module(host)) == "1.2.3"
    assert f"{NVIDIA_FS}, {host.kernel}, x86_64: installed" in host.run("dkms", "status").stdout
    done = answer(provide(host, version="1.2.4"))["done"]
    assert {"kernel_release": host.kernel, "package": NVIDIA_FS, "action": "rebuild"}.items() <= done[0].items()
    assert "driver 1.2.3" in done[0]["why"]
    assert driver_of(host, installed_module(host)) == "1.2.4"


def test_dkms_itself_loses_the_old_module_when_its_rebuild_fails(host: Builder) -> None:
    next_driver(host, fits=False)
    recipes(host, "1.2.4", edit=(" --kept nvidia-fs", ""))
    host.run("sh", "-c", f"dkms install {NEXT} -k {host.kernel} || true")
    assert installed_module(host) == ""


def test_a_failed_rebuild_leaves_the_old_module_where_it_was(host: Builder) -> None:
    before, content = installed_module(host), host.run("sha256sum", installed_module(host)).stdout
    next_driver(host, fits=False)
    recipes(host, "1.2.4")
    host.run("sh", "-c", f"dkms install {NEXT} -k {host.kernel} || true")
    assert f"{NVIDIA_FS}, {host.kernel}, x86_64: installed" not in host.run("dkms", "status").stdout
    assert installed_module(host) == before
    assert host.run("sha256sum", before).stdout == content
    assert host.run("modprobe", "--show-depends", "-S", host.kernel, "nvidia-fs").stdout.count("nvidia-fs.ko") == 1
    # Why is said, and still is when it is asked for later.
    error = provide(host, version="1.2.4", status=1).stderr
    assert error.startswith("error: nvidia-fs")
    assert "implicit declaration of function" in error
    assert f"/var/log/gdsdeploy/kmod/{host.kernel}/nvidia-fs.log" in error
    assert host.gdsdeploy("kmod", "why", status=1).stderr.split(" (")[0] == error.split(" (")[0]
    assert installed_module(host) == before
    # With a source that fits, DKMS installs in its place; it refuses to beside a file of the same version.
    host.run("rm", "-r", "/usr/src/nvidia-standin-1.2.4")
    next_driver(host, fits=True)
    host.run("dkms", "uninstall", NEXT, "-k", host.kernel)
    host.run("dkms", "unbuild", NEXT, "-k", host.kernel)
    assert answer(provide(host, version="1.2.4"))["changed"]
    assert driver_of(host, installed_module(host)) == "1.2.4"
    assert ": installed" in host.run("dkms", "status", "-m", "nvidia-fs", "-k", host.kernel).stdout


def test_a_driver_that_does_not_compile_leaves_what_worked(host: Builder) -> None:
    before = host.run("sh", "-c", f"cd /usr/lib/modules/{host.kernel}; find . -name 'nvidia*.ko*' | sort").stdout
    host.run("sh", "-c", "echo 'int broken' >> /usr/src/nvidia-standin-1.2.3/nvidia/nv.c")
    host.run("dkms", "unbuild", DRIVER, "-k", host.kernel)
    error = provide(host, status=1).stderr
    assert error.startswith("error: driver 1.2.3 (open) doesn't build for kernel")
    assert "nvidia/nv.c:" in error
    assert "the previous modules are back in place: updates/dkms/nvidia.ko" in error
    after = host.run("sh", "-c", f"cd /usr/lib/modules/{host.kernel}; find . -name 'nvidia*.ko*' | sort").stdout
    assert after == before


def test_another_kernel_that_cannot_be_built_for_is_noted_each_time(host: Builder) -> None:
    host.run("dkms", "unbuild", NVIDIA_FS, "-k", host.other_kernel)
    # The kernel has headers, and they lack what a module needs: that says nothing about the sources.
    host.run("rm", f"/usr/lib/modules/{host.other_kernel}/build/Module.symvers")
    first = answer(provide(host))
    assert not first["changed"]
    assert host.other_kernel in first["notes"][0]
    assert answer(provide(host)) == first


def test_peermem_that_would_be_a_stub_is_refused_before_anything_is_built(host: Builder) -> None:
    error = provide(host, "peermem", status=1).stderr
    assert "would be a stub that fails to load with 'Invalid argument'" in error
    assert "install OFED or DOCA" in error
