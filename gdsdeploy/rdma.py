"""Why adapters reach GPU memory in the way that a profile has; pure."""

from __future__ import annotations

from gdsdeploy.model.lock import Target


def reason(rdma: str, target: Target) -> str:
    """Why nvidia-peermem is loaded on hosts of a lock's target, or is not; empty where no RDMA is asked for."""
    stack = f"driver {target.driver.version} ({target.driver.flavour}) and kernel {target.kernel.release}"
    if rdma == "dmabuf":
        return (
            f"DMA-BUF serves: {stack} hand GPU memory to adapters by the kernel's own means, so nvidia-peermem is not"
            " loaded"
        )
    if rdma == "peermem":
        return f"nvidia-peermem is loaded for {stack}, as the profile has it"
    return ""
