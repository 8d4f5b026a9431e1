"""The flavour of a kernel, from its release alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.kmod.flavour import flavour_of, has_nvme_hooks, large_pages
from gdsdeploy.host.kmod.kernel import Kernel
from tests.unit.host.kmod.kmod_root import Root


@pytest.mark.parametrize(
    ("release", "vendor", "name"),
    [
        ("6.8.0-60-generic", "ubuntu", "generic"),
        ("6.8.0-60-generic-64k", "ubuntu", "generic-64k"),
        ("6.17.0-1029-nvidia-64k", "ubuntu", "nvidia-64k"),
        ("7.0.0-2016-nvidia-bos", "ubuntu", "nvidia-bos"),
        ("7.0.0-2016-nvidia-bos-64k", "ubuntu", "nvidia-bos-64k"),
        ("6.14.0-1003-azure-nvidia", "ubuntu", "azure-nvidia"),
        ("6.1.0-50-amd64", "debian", "amd64"),
        ("6.12.94+deb13-amd64", "debian", "amd64"),
        ("6.12.94+deb13-cloud-amd64", "debian", "cloud-amd64"),
        ("6.12.94+deb13-rt-amd64", "debian", "rt-amd64"),
        ("6.12.94+deb13-arm64-16k", "debian", "arm64-16k"),
        ("5.14.0-687.42.1.el9_8.x86_64", "rhel", "kernel"),
        ("5.14.0-687.5.1.el9_8.0.1.x86_64", "rhel", "kernel"),
        ("5.14.0-687.42.1+2.1.el9_8_ciq.x86_64", "rhel", "kernel"),
        ("5.14.0-570.73.1.el9_6.aarch64+64k", "rhel", "64k"),
        ("6.12.0-211.4.el10nv.aarch64+64k", "rhel", "64k"),
        ("5.14.0-687.42.1.el9_8.x86_64+rt", "rhel", "rt"),
        ("6.12.0-0.20.20.el9uek.x86_64", "rhel", "uek"),
        ("6.1.141-155.222.amzn2023.x86_64", "amazon", "kernel"),
        ("6.18.35-68.127.amzn2023.aarch64", "amazon", "kernel6.18"),
    ],
)
def test_flavours_of_kernels_in_the_field(release: str, vendor: str, name: str) -> None:
    assert flavour_of(release) == (vendor, name)


@pytest.mark.parametrize(
    "release",
    ["6.18.44-fc-v657", "6.8.12-4-pve", "6.8.0-60-generic\n", "5.14.0-687.42.1.el9_8.x86_64+debug", "6.12-amd64",
     "5.15.0-310.el9uek.aarch64+64k", "", "6.8.0-60-generic" * 20],
)  # fmt: skip
def test_another_kernel_has_none(release: str) -> None:
    assert flavour_of(release) is None
    assert not has_nvme_hooks(release)


@pytest.mark.parametrize(
    ("release", "hooks"),
    [
        ("6.8.0-1015-nvidia", True),
        ("6.17.0-1026-nvidia-64k", True),
        ("7.0.0-2016-nvidia-bos", True),
        ("7.0.0-2016-nvidia-bos-64k", True),
        ("5.15.0-1080-nvidia", False),
        ("6.17.0-1003-azure-nvidia", False),
        ("6.17.0-8-generic", False),
        ("6.12.94+deb13-amd64", False),
    ],
)
def test_canonicals_nvidia_kernels_have_hooks_of_their_own(release: str, hooks: bool) -> None:
    assert has_nvme_hooks(release) is hooks


#: Kernels of 64 KiB and of 16 KiB, each with the release of its 4 KiB twin.
PAGES = {
    "6.17.0-1026-nvidia-64k": "6.17.0-1026-nvidia",
    "6.8.0-60-generic-64k": "6.8.0-60-generic",
    "5.14.0-570.73.1.el9_6.aarch64+64k": "5.14.0-570.73.1.el9_6.aarch64",
    "6.12.94+deb13-arm64-16k": "6.12.94+deb13-arm64",
}


@pytest.mark.parametrize("release", PAGES)
def test_a_module_of_the_other_page_size_does_not_load_whatever_its_symbols_say(tmp_path: Path, release: str) -> None:
    """Symbol versions agree here, and the kernel would take it."""

    def severities(**options: object) -> list[str]:
        root.nvidia(**options)
        (result,) = audit(Kernel(release, str(root.path)), ["nvidia"])
        return [entry["severity"] for entry in result["findings"] if entry["id"] in ("vermagic", "machine")]

    ends = " SMP preempt mod_unload modversions aarch64"
    root = Root(tmp_path, release, release + ends, machine=183)
    assert severities() == []
    assert severities(vermagic=PAGES[release] + ends) == ["error"]
    assert severities(machine=62) == ["error"]
    assert (large_pages(release)[-1:], large_pages(PAGES[release])) == ("k", "")
