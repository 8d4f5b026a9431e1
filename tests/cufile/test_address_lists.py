"""Which entries of an address list real libraries look for: addresses of IPv4 and of IPv6, and names of RDMA devices.

Their libibverbs and librdmacm are made here: with one device, mlx5_0, which can't be opened, and no answer to the rest.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gdsdeploy import run
from gdsdeploy.cufile.model import release_of
from gdsdeploy.host.subjects.rdma import refusal
from tests.cufile import libraries

NAME = re.compile(rb"(?<=\0)(?:ibv|rdma|mlx5dv)_\w+(?=\0)")
SOURCE = """
#include <unistd.h>
static char device[] = "mlx5_0";
static long say(const char *text, long length) { return write(2, text, length) * 0; }
void *ibv_get_device_list(int *count) { static void *all[2] = {device}; *count = 1; return all; }
char *ibv_get_device_name(void *device) { return device; }
long ibv_free_device_list(void *all) { return 0; }
long ibv_open_device(void *device) { return say("opens a device\\n", 15); }
long rdma_create_event_channel(void) { return say("asks for an address\\n", 20); }
"""
#: From 1.11 on, a wheel has both libraries.
VERSIONS = [version for version in libraries.RELEASES if release_of(version) >= (1, 11)]


def looks_for(version: str, entry: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this libcufile looks for what an entry names, and finds the device where it is a name."""
    rdma = libraries.rdma_library(version)
    defined = {name for line in SOURCE.splitlines() for name in re.findall(r"((?:ibv|rdma)_\w+)\(", line)}
    others = {name.decode() for name in NAME.findall(rdma.read_bytes())} - defined
    (folder / "stub.c").write_text(SOURCE + "".join(f"long {name}(void) {{ return 0; }}\n" for name in sorted(others)))
    (folder / "stub.map").write_text("IBVERBS_1.1 { global: *; };\n")
    flags = ["-w", "-shared", "-fPIC", f"-Wl,--version-script={folder / 'stub.map'}", "-o", folder / "libibverbs.so.1"]
    run.run([run.which("cc", hint="Install a C compiler"), *flags, folder / "stub.c"], doing="compile a stand-in")
    for name in ("librdmacm.so.1", "libmlx5.so.1"):
        (folder / name).symlink_to("libibverbs.so.1")
    for name in ("libcufile_rdma.so", "libcufile_rdma.so.1"):
        (folder / name).symlink_to(rdma)
    (folder / "libcufile.so.0").symlink_to(libraries.library(version).path)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    text = json.dumps({"properties": {"rdma_dev_addr_list": [entry], "rdma_peer_type": "dmabuf"}})
    answer = libraries.library(version).ask(text)
    assert answer.accepted is True
    return any(line in ("opens a device", "asks for an address") for line in answer.output)


@pytest.mark.parametrize("entry", ["192.0.2.1", "2001:db8::1", "mlx5_0"])
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_taken(version: str, entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_for(version, entry, tmp_path, monkeypatch) is not bool(refusal(entry, release_of(version)))


def test_a_network_interface_has_another_name_than_its_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not looks_for(VERSIONS[-1], "lo", tmp_path, monkeypatch)
