"""Which kernels the stand-in GPU is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdslab import standin
from gdslab.errors import LabUnavailable
from gdslab.state import Lab

LOCK = """
targets:
  gds:
    kernel: {release: 6.12.94+deb13-amd64, version: 6.12.94-1}
  again:
    kernel: {release: 6.12.94+deb13-amd64, version: 6.12.94-1}
  other:
    kernel: {release: 6.1.0-50-amd64}
    indices:
      - {uri: "http://mirror.example/debian", suite: bookworm, components: [main, contrib], host_keyring: /k.gpg}
"""


@pytest.fixture
def lab(home: Path) -> Lab:
    dev = Lab("dev")
    dev.write({"release": "trixie", "hosts": []})
    dev.add_hosts("light", 1, Path("/c/light/root"))
    return dev


def test_kernels_of_the_lock_once_each(lab: Lab) -> None:
    (lab.directory / "gdsdeploy.lock").write_text(LOCK)
    assert standin.locked_kernels(lab) == [
        standin.Kernel("6.12.94+deb13-amd64", "6.12.94-1"),
        standin.Kernel(
            "6.1.0-50-amd64", None, ("deb [signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib",)
        ),
    ]


@pytest.mark.parametrize(
    "text", ["", "[]", "targets:\n", "targets: {gds: {}}", "targets: {gds: {kernel: {release: 6}}}"]
)
def test_lock_without_a_kernel_is_one_error(lab: Lab, text: str) -> None:
    (lab.directory / "gdsdeploy.lock").write_text(text)
    with pytest.raises(LabUnavailable, match="names no kernel") as caught:
        standin.locked_kernels(lab)
    assert "--kernel" in str(caught.value.hint)


def test_no_lock_says_how_to_make_one(lab: Lab) -> None:
    with pytest.raises(LabUnavailable, match="no lock yet") as caught:
        standin.locked_kernels(lab)
    assert f"gdsdeploy lock {lab.fleet_path}" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["$(reboot)", "../6.1", "6.1 rm", "", "amd64"])
def test_what_is_no_kernel_is_refused(text: str) -> None:
    with pytest.raises(LabUnavailable, match="is not a kernel"):
        standin.Kernel(text)
