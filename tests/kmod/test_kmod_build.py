"""Modules really built against real headers, and the traps of the stock build shown to be traps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kmod.conftest import Builder

pytestmark = pytest.mark.kbuild


def findings(result: dict[str, Any]) -> list[str]:
    """Without what every nvidia-fs of the version that these sources claim to be has."""
    serious = [finding for finding in result["findings"] if finding["severity"] in ("error", "warning")]
    return [finding["id"] for finding in serious if finding["id"] != "vm-io"]


def versions(host: Builder, file: str) -> dict[str, str]:
    lines = host.run("modprobe", "--dump-modversions", file).stdout.splitlines()
    return {name: crc for crc, name in (line.split() for line in lines) if name.startswith("nvidia_p2p_")}


def test_built_against_the_installed_driver(driver: Builder) -> None:
    result = json.loads(driver.build("--json"))
    assert result["versions_from"] == "module"
    assert result["ok"] is True
    assert result["modules"][0]["files"][0]["audit"]["ok"] is True
    printed = driver.run("modinfo", "/build/nvidia-fs.ko").stdout
    fields = dict(line.split(":", 1) for line in printed.splitlines() if ":" in line)
    assert fields["depends"].strip() == "nvidia"
    assert fields["vermagic"].split()[0] == driver.kernel
    assert fields["gdsdeploy_driver"].strip() == "1.2.3"
    assert fields["gdsdeploy_flavour"].strip() == "open"
    trees = json.loads(driver.gdsdeploy("kmod", "trees", "--json").stdout)
    assert fields["gdsdeploy_tree"].strip() == trees[0]["digest"]
    exported = {
        line.split()[1]: line.split()[0]
        for line in driver.path("/build/driver/Module.symvers").read_text().splitlines()
    }
    assert versions(driver, "/build/nvidia-fs.ko") == exported


def test_debug_information_is_made_only_where_kbuild_makes_btf_of_it(driver: Builder) -> None:
    """Debian 13's headers have a vmlinux, as far as its BTF; Debian 12's have none."""

    def sections() -> set[str]:
        driver.build()
        listing = driver.run("readelf", "--section-headers", "--wide", "/build/nvidia-fs.ko").stdout
        return {name for name in (".debug_info", ".BTF") if f" {name} " in listing}

    assert sections() == {".debug_info", ".BTF"}
    driver.run("rm", f"{driver.modules}/build/vmlinux")
    assert sections() == set()
    assert "CONFIG_DEBUG_INFO=y" in driver.run("cat", f"{driver.modules}/build/.config").stdout


def test_built_before_the_driver_is_gets_the_same_versions(builder: Builder) -> None:
    result = json.loads(builder.build("--json"))
    assert result["versions_from"] == "compiled"
    assert result["modules"][0]["files"][0]["audit"]["ok"] is True
    early = versions(builder, "/build/nvidia-fs.ko")
    builder.run("cp", "-a", "/usr/src/driver", "/build/driver")
    builder.run("make", "-C", f"{builder.modules}/build", "M=/build/driver", "modules")
    lines = builder.path("/build/driver/Module.symvers").read_text().splitlines()
    assert early == {line.split()[1]: line.split()[0] for line in lines}
    assert len(early) == 2


def test_the_same_sources_give_the_same_bytes(driver: Builder) -> None:
    driver.build()
    first = driver.path("/build/nvidia-fs.ko").read_bytes()
    driver.build()
    assert driver.path("/build/nvidia-fs.ko").read_bytes() == first


def test_the_stock_way_succeeds_with_a_module_that_cannot_load(driver: Builder) -> None:
    driver.run("cp", "-a", "/usr/src/nvidia-fs", "/build/stock")
    driver.run("sh", "-c", f"cd /build/stock && ./configure {driver.kernel}")
    flags = "-DGDS_VERSION=1 -DNVFS_ENABLE_KERN_RDMA_SUPPORT -DNVFS_BATCH_SUPPORT=y"
    make = f"make -C {driver.modules}/build M=/build/stock NVIDIA_SRC_DIR=/usr/src/driver/nvidia modules"
    done = driver.run("env", f"KCPPFLAGS={flags}", "CONFIG_NVFS_STATS=y", *make.split())
    assert '"nvidia_p2p_get_pages" [/build/stock/nvidia-fs.ko] undefined!' in done.stderr.replace(
        "[nvidia-fs.ko]", "[/build/stock/nvidia-fs.ko]"
    )
    assert driver.run("modinfo", "-F", "depends", "/build/stock/nvidia-fs.ko").stdout.strip() == ""
    result = driver.audit("/build/stock/nvidia-fs.ko", status=1)[0]
    assert findings(result) == ["symbol-unversioned", "driver-tree-unknown"]


def test_another_drivers_tree_is_refused_where_a_driver_is_installed(driver: Builder) -> None:
    driver.run("cp", "-a", "/usr/src/driver", "/usr/src/other")
    driver.run("sed", "-i", "s/1\\.2\\.3/1.2.4/", "/usr/src/other/Kbuild", "/usr/src/other/dkms.conf")
    driver.write("/build/nvidia-fs.ko", "the old one")
    message = driver.build(driver="/usr/src/other", version="1.2.4", status=1)
    assert "has nvidia.ko of driver 1.2.3 (open), but /usr/src/other is the source of 1.2.4 (open)" in message
    assert driver.path("/build/nvidia-fs.ko").read_text() == "the old one"
    message = driver.build(driver="/usr/src/other", version="1.2.3", status=2)
    assert "/usr/src/other is 1.2.4 (open)" in message


def test_built_against_another_driver_with_equal_versions_is_found_by_what_it_recorded(driver: Builder) -> None:
    driver.run("cp", "-a", "/usr/src/driver", "/usr/src/other")
    driver.run("sed", "-i", "s/1\\.2\\.3/1.2.4/", "/usr/src/other/Kbuild", "/usr/src/other/dkms.conf")
    driver.build()
    right = versions(driver, "/build/nvidia-fs.ko")
    driver.build("--ahead", driver="/usr/src/other", version="1.2.4")
    assert versions(driver, "/build/nvidia-fs.ko") == right
    result = driver.audit("/build/nvidia-fs.ko", status=1)[0]
    assert findings(result) == ["driver-tree"]


def test_a_changed_interface_is_found_by_its_versions(driver: Builder) -> None:
    driver.build()
    driver.run("sed", "-i", "s/unsigned int entries/unsigned long entries/", "/build/driver/nvidia/nv-p2p.h")
    driver.run("make", "-C", f"{driver.modules}/build", "M=/build/driver", "modules")
    driver.run("cp", "/build/driver/nvidia.ko", f"{driver.modules}/updates/dkms/nvidia.ko")
    result = driver.audit("/build/nvidia-fs.ko", status=1)[0]
    assert findings(result) == ["symbol-crc"]


def test_an_unresolved_symbol_ends_the_build_and_the_old_module_stays(driver: Builder) -> None:
    driver.write(
        "/usr/src/nvidia-fs/nvfs-stat.c",
        "int nobody_has_this(void);\nint nvfs_stat(void);\nint nvfs_stat(void) { return nobody_has_this(); }\n",
    )
    driver.write("/build/nvidia-fs.ko", "the old one")
    message = driver.build(status=1)
    assert 'ERROR: modpost: "nobody_has_this" [nvidia-fs.ko] undefined!' in message
    assert "/usr/src/driver" in message
    assert driver.kernel in message
    assert "/build/nvidia-fs.ko.log" in message
    assert driver.path("/build/nvidia-fs.ko").read_text() == "the old one"
    assert driver.path("/build/nvidia-fs.ko.log").is_file()
    assert message.count("\n") == 1


def test_a_compiler_error_is_quoted(driver: Builder) -> None:
    driver.write("/usr/src/nvidia-fs/nvfs-stat.c", "int nvfs_stat(void);\nint nvfs_stat(void) { return undeclared; }\n")
    assert "nvfs-stat.c:2:" in driver.build(status=1)


def test_inherited_variables_change_nothing(driver: Builder) -> None:
    driver.write(
        "/usr/src/nvidia-fs/nvfs-stat.c",
        "int nobody_has_this(void);\nint nvfs_stat(void);\nint nvfs_stat(void) { return nobody_has_this(); }\n",
    )
    argv = ["python3", "/usr/lib/gdsdeploy/gdsdeploy-host.pyz", "kmod", "build", "nvidia-fs", "--kernel", driver.kernel]
    argv += ["--driver-tree", "/usr/src/driver", "--driver-version", "1.2.3", "--source", "/usr/src/nvidia-fs"]
    done = driver.run(
        "env", "KBUILD_MODPOST_WARN=1", "MAKEFLAGS=-k", *argv, "--output", "/build/nvidia-fs.ko", status=1
    )
    assert "undefined!" in done.stderr


@pytest.mark.parametrize("program", ["pahole", "gcc"])
def test_headers_that_cannot_build_are_named_before_any_probe_answers_no(driver: Builder, program: str) -> None:
    names = driver.run("sh", "-c", f"ls /usr/bin/*{program}* | grep -E '{program}(-[0-9]+)?$'").stdout.split()
    driver.run("rm", *names)
    message = driver.build(status=2)
    assert f"the headers of kernel {driver.kernel} cannot build even an empty module" in message
    assert f"{program}" in message
    assert "install" in message


def test_a_kernel_without_headers(driver: Builder) -> None:
    driver.run("rm", f"{driver.modules}/build")
    assert f"install linux-headers-{driver.kernel}" in driver.build(status=2)


def test_what_is_not_the_source_of_nvidia_fs(driver: Builder) -> None:
    assert "/usr/src is not the source of nvidia-fs" in driver.build("--source", "/usr/src", status=2)


def test_packed_here_and_installed_where_nothing_can_be_compiled(driver: Builder) -> None:
    driver.build()
    driver.run("cp", "/build/nvidia-fs.ko", f"{driver.modules}/updates/dkms/nvidia-fs.ko")
    driver.run("depmod", "-a", driver.kernel)
    driver.gdsdeploy("kmod", "pack", "--kernel", driver.kernel, "--output", "/build/modules.tar")
    driver.run("sh", "-c", f"rm -r {driver.modules}/updates {driver.modules}/build")
    words = ["kmod", "install", "/build/modules.tar", "--kernel", driver.kernel]
    assert "(new)" in driver.gdsdeploy(*words, "--check").stdout
    result = json.loads(driver.gdsdeploy(*words, "--json").stdout)
    assert result["changed"]
    assert [finding["ok"] for finding in result["audit"]] == [True, True]
    assert driver.gdsdeploy(*words).stdout == "nothing to change\n"
    assert [finding["ok"] for finding in driver.audit()] == [True, True]
    printed = driver.run("modprobe", "--show-depends", "-S", driver.kernel, "nvidia-fs").stdout
    assert [line.split("updates/")[1].strip() for line in printed.splitlines()] == [
        "gdsdeploy/nvidia.ko",
        "gdsdeploy/nvidia-fs.ko",
    ]
