"""modprobe.d and modules-load.d as a resource; the locked kernel's initramfs carries them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.driver_options import Desired, DriverOptions, modprobe_conf, modules_load_conf
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.errors import ApplyError
from tests.unit.host.apply.apply_tree import Systemctl, apply, check, desired_resource

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


R = DESIRED.kernel_release
UPDATE = ["update-initramfs", "-u", "-k", R]
DEBIANS, DRACUTS, TOKENS = f"boot/initrd.img-{R}", f"boot/initramfs-{R}.img", f"boot/efi/0123456789abcdef/{R}/initrd"
DRACUTS_RUN = ["dracut", "--force", f"/{DEBIANS}", R]
HOOK, DRACUT_HOOK = "etc/kernel/postinst.d/initramfs-tools", "etc/kernel/postinst.d/dracut"


@pytest.mark.parametrize(
    ("files", "argv"),
    [
        (["usr/sbin/update-initramfs", HOOK, DEBIANS], UPDATE),
        (["usr/bin/dracut", DRACUTS], ["dracut", "--force", f"/{DRACUTS}", R]),
        # systemd-boot.
        (["usr/bin/dracut", TOKENS], ["dracut", "--force", f"/{TOKENS}", R]),
        # Ubuntu 26.04: dracut makes Debian's file; a hook of initramfs-tools may be left.
        (["usr/bin/dracut", DRACUT_HOOK, DEBIANS], DRACUTS_RUN),
        (
            ["usr/bin/dracut", DRACUT_HOOK, HOOK, "usr/sbin/update-initramfs", DEBIANS],
            ["dracut", "--force", f"/{DEBIANS}", R],
        ),
        (["usr/bin/dracut", "usr/sbin/update-initramfs", DEBIANS], ["dracut", "--force", f"/{DEBIANS}", R]),
        # A hook that initramfs-tools has left behind.
        (["usr/bin/dracut", HOOK, DEBIANS], DRACUTS_RUN),
        # An upgraded host keeps initramfs-tools; dracut-core alone has no hook.
        (["usr/bin/dracut", HOOK, "usr/sbin/update-initramfs", DEBIANS], UPDATE),
    ],
)
def test_the_initramfs_is_made_anew_with_other_options(
    tmp_path: Path, systemctl: Systemctl, files: list[str], argv: list[str]
) -> None:
    # Nothing of a kernel that isn't there yet: it makes its own.
    assert kinds(tmp_path) == ["write", "write"]
    put(tmp_path, files)
    assert kinds(tmp_path) == []
    assert systemctl.calls == []
    assert kinds(tmp_path, Desired(R)) == ["write", "write", "initramfs"]
    assert systemctl.calls == [argv]


def put(root: Path, files: list[str]) -> None:
    for path in files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def test_a_kernel_whose_initramfs_is_elsewhere_is_named(tmp_path: Path, systemctl: Systemctl) -> None:
    put(tmp_path, ["usr/bin/dracut", f"lib/modules/{R}/vmlinuz"])
    host = ManagedHost(root=str(tmp_path))
    engine.run(host, [desired_resource(DriverOptions(), DESIRED)])
    assert systemctl.calls == []
    (note,) = host.notes
    assert note.startswith(f"kernel {R} has no initramfs at /boot/initrd.img-{R}, /boot/initramfs-{R}.img: ")


def test_an_initramfs_that_no_program_can_make_is_an_error(tmp_path: Path, systemctl: Systemctl) -> None:
    put(tmp_path, [DRACUTS])
    with pytest.raises(ApplyError, match="no update-initramfs, no dracut") as error:
        apply(tmp_path, DriverOptions(), DESIRED)
    assert DRACUTS in error.value.hint
