"""What a profile pins: what of it decides what the lock has for it.  Pure."""

from __future__ import annotations

from gdsdeploy.model.fleet import Profile


def pins(profile: Profile) -> dict[str, str]:
    """Everything in a profile that a resolution depends on, apart from system and repositories."""
    optional = {
        "companions": ", ".join(profile.companions),
        "cuda": ", ".join(profile.cuda),
        "doca": ", ".join(profile.doca),
        "gpu": profile.gpu or "",
        "modules": profile.modules if profile.modules == "packaged" else "",
        "kernel_flavour": profile.kernel.flavour or "",
        # Their order says whose driver wins.
        "repositories": ", ".join(profile.repositories or ()) if len(profile.repositories or ()) > 1 else "",
    }
    return {
        "driver": profile.driver.version,
        "flavour": profile.driver.flavour,
        "kernel": profile.kernel.version,
        "libcufile": profile.libcufile,
        "mode": profile.mode,
        "nvidia_fs": profile.nvidia_fs,
        "rdma": profile.rdma,
        **{key: value for key, value in optional.items() if value},
    }
