"""libcufile's switches in the environment: each release takes true and false in any case, ignores all else, and applies
them after cufile.json.  ``EnvironmentFacts.switch`` and explain's rules read them in the same way.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from gdsdeploy import run
from gdsdeploy.host.explain.config import LAST_WITH_ALLOW_COMPAT, P2PDMA_VARIABLE
from gdsdeploy.host.explain.p2pdma import LIBRARY
from gdsdeploy.host.explain.userspace_rdma import VARIABLE
from tests.cufile.gdschecks import started
from tests.cufile.libraries import RELEASES

#: Opens the driver and prints the library's log.
CHILD = """
import ctypes, os
ctypes.CDLL("libcufile.so.0").cuFileDriverOpen()
print(open("cufile.log").read(), flush=True)
os._exit(0)
"""
VALUES = {"true": True, "TRUE": True, "False": False, "1": None}


def logged(version: str, variable: str, value: str, **properties: Any) -> str:
    words = [f"{variable}={value}", "CUFILE_LOGFILE_PATH=cufile.log", "CUFILE_LOGGING_LEVEL=INFO"]
    argv = [str(run.which("env")), *words, sys.executable, "-I", "-S", "-c", CHILD]
    printed = started(argv, version, config=json.dumps({"properties": properties}))
    assert "CUFILE CONFIGURATION" in printed.text, printed.text
    return printed.text


def switched(log: str, key: str) -> bool:
    return any(line.rstrip().endswith(f"properties.{key} : true") for line in log.splitlines())


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("value", VALUES)
def test_switches(version: str, value: str) -> None:
    for default in (True, False):
        expected = default if VALUES[value] is None else VALUES[value]
        forced = logged(version, "CUFILE_FORCE_COMPAT_MODE", value, force_compat_mode=default)
        assert switched(forced, "force_compat_mode") is expected
        peer_type = "dmabuf" if default else "nvidia_peermem"
        memory = logged(version, VARIABLE, value, rdma_peer_type=peer_type, rdma_dev_addr_list=[])
        assert any("DmaBuf support" in line and "Enabled" in line for line in memory.splitlines()) is expected
        p2pdma = logged(version, P2PDMA_VARIABLE, value, use_pci_p2pdma=default)
        has_p2pdma = "properties.use_pci_p2pdma" in p2pdma
        assert has_p2pdma is (tuple(map(int, version.split(".")[:2])) >= LIBRARY)
        assert switched(p2pdma, "use_pci_p2pdma") is (expected and has_p2pdma)
        reads_variable = tuple(map(int, version.split(".")[:2])) <= LAST_WITH_ALLOW_COMPAT
        allowed = logged(version, "CUFILE_ALLOW_COMPAT_MODE", value, allow_compat_mode=default)
        assert switched(allowed, "use_compat_mode") is (expected if reads_variable else default)
