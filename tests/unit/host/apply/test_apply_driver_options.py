"""modprobe.d and modules-load.d as a resource; the locked kernel's initramfs carries them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.apply.driver_options import Desired, DriverOptions, modprobe_conf, modules_load_conf
from tests.unit.host.apply.apply_tree import Systemctl, apply, check

DESIRED = Desired(
    "6.1.0-40-amd64", {"NVreg_b": "1", "NVreg_a": '"x"'}, "nvidia-current", ["nvidia", "nvidia-fs"], "peermem"
)

PEERMEM = """\
# Rendered by gdsdeploy; changes here are overwritten.
# nouveau would take the GPU before nvidia can; "blacklist" alone does not stop a load by name.
blacklist nouveau
install nouveau /bin/false
options nvidia-current NVreg_a="x"
options nvidia-current NVreg_b=1
softdep nvidia-fs pre: nvidia
# What nvidia-peermem has replaced: both register the same client, so it would keep the other out.
blacklist nv_peer_mem
install nv_peer_mem /bin/false
# The RDMA core comes first; gds-peermem.service loads it.
softdep nvidia-peermem pre: nvidia ib_core ib_uverbs
softdep nvidia-current-peermem pre: nvidia ib_core ib_uverbs
"""
DMABUF = """\
# Rendered by gdsdeploy; changes here are overwritten.
# nouveau would take the GPU before nvidia can; "blacklist" alone does not stop a load by name.
blacklist nouveau
install nouveau /bin/false
# What nvidia-peermem has replaced: both register the same client, so it would keep the other out.
blacklist nv_peer_mem
install nv_peer_mem /bin/false
# DMA-BUF serves: nothing is to load it at boot all the same.
blacklist nvidia-peermem
"""


def test_texts() -> None:
    assert modprobe_conf(DESIRED) == PEERMEM
    assert modprobe_conf(Desired("x", modules=["nvidia"], rdma="dmabuf")) == DMABUF
    assert modprobe_conf(Desired("x", p2pdma=True)).splitlines()[-1] == "options nvme_core multipath=N"
    assert modules_load_conf(DESIRED) == (
        "# Rendered by gdsdeploy; changes here are overwritten."
        " Order matters: nvidia before what links against it.\nnvidia\nnvidia-fs\n"
    )


def kinds(root: Path, desired: Desired = DESIRED) -> list[str]:
    predicted = [change.kind for change in check(root, DriverOptions(), desired).changes]
    assert [change.kind for change in apply(root, DriverOptions(), desired)] == predicted
    assert check(root, DriverOptions(), desired).changes == []
    return predicted


@pytest.mark.parametrize(
    ("program", "initramfs", "argv"),
    [
        ("update-initramfs", "initrd.img-{}", ["update-initramfs", "-u", "-k", "6.1.0-40-amd64"]),
        ("dracut", "initramfs-{}.img", ["dracut", "--force", "--kver", "6.1.0-40-amd64"]),
    ],
)
def test_the_initramfs_is_made_anew_with_other_options(
    tmp_path: Path, systemctl: Systemctl, program: str, initramfs: str, argv: list[str]
) -> None:
    # Nothing of a kernel that isn't there yet: it makes its own.
    assert kinds(tmp_path) == ["write", "write"]
    for path in (f"usr/sbin/{program}", f"boot/{initramfs.format(DESIRED.kernel_release)}"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    assert kinds(tmp_path) == []
    assert systemctl.calls == []
    assert kinds(tmp_path, Desired(DESIRED.kernel_release)) == ["write", "write", "initramfs"]
    assert systemctl.calls == [argv]
