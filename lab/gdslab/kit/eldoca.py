"""The repositories of DOCA for hosts, for rpm; see doca.py."""

from __future__ import annotations

import re

from gdslab.kit import doca, elnvidia
from gdslab.kit.content import Trees, copy
from gdslab.kit.elversions import Versions
from gdslab.kit.rpm import Rpm

#: What Mellanox's packages are called here, where apt's are called ``mlnx-ofed-kernel``.
_NAME = "mlnx-ofa_kernel"


def network(versions: Versions, trees: Trees) -> list[Rpm]:
    """The packages of DOCA's own repository, whose versions go together exactly."""
    full, own = f"{doca.OFED}-{doca.BUILD}.{versions.tag}", f"{doca.DOCA}.{versions.tag}"
    tools, scripts = f"{doca.TOOLS}.{versions.tag}", f"{doca.OFED}-{doca.BUILD.rpartition('.')[0]}"
    tree = f"usr/src/{_NAME}-{doca.OFED}"
    files = doca.sources(tree, _NAME, doca.OFED)
    source = trees.new(f"{_NAME}-source", {path: text for path, text in files.items() if "dkms.conf" not in path})
    (source / tree / doca.SCRIPT).chmod(0o755)
    conf = trees.new(f"{_NAME}-dkms", {f"{tree}/dkms.conf": files[f"{tree}/dkms.conf"]})
    userspace = (f"{_NAME} = {full}", f"mlnx-tools = {tools}", f"ofed-scripts = {scripts}")
    dkms = elnvidia.dkms_scripts(_NAME, doca.OFED)
    return [
        Rpm("mlnx-tools", tools, "noarch", requires=("python3",)),
        Rpm("ofed-scripts", scripts),
        Rpm(_NAME, full, requires=("mlnx-tools",)),
        Rpm(f"{_NAME}-source", full, tree=source),
        Rpm(
            f"{_NAME}-dkms", full, requires=("dkms", _NAME, f"{_NAME}-source = {full}"), tree=conf,
            scripts={**dkms, "postun": f'[ "$1" -ne 0 ] || {{\n{doca.CLEAN}}} || :\n'},
        ),
        Rpm("doca-ofed-userspace", own, requires=userspace),
        Rpm("doca-ofed", own, requires=(f"doca-ofed-userspace = {own}", f"{_NAME}-dkms = {full}")),
    ]  # fmt: skip


def for_kernel(versions: Versions, trees: Trees) -> list[Rpm]:
    """The packages with modules for the family's kernel, and the metapackage of the kernel."""
    release, kernel = versions.release, trees.work / "kernel"
    dotted = re.sub("[-_]", ".", release)
    full, headers = f"{doca.OFED}-{doca.BUILD}.1.{dotted}", f"usr/src/ofa_kernel/x86_64/{release}"
    devel = trees.new(f"{_NAME}-devel", {f"{headers}/Module.symvers": doca.symvers(kernel / "headers")})
    depmod = f"depmod -a {release} || :\n"
    packages = [
        Rpm(
            f"{_NAME}-devel", full, tree=devel,
            scripts={
                "post": f"{doca.alternative(f'/{headers}').rstrip()} || :\n",
                "preun": f'[ "$1" -ne 0 ] || update-alternatives --remove ofa_kernel_headers /{headers} || :\n',
            },
        ),
        Rpm(f"doca-kernel-{dotted}", f"{doca.SUPPORT}-1", "noarch", requires=(f"kmod-{_NAME} = {full}",)),
    ]  # fmt: skip
    for name, folder in doca.MODULES.items():
        kmod = f"kmod-{name.replace('mlnx-ofed-kernel', _NAME)}"
        tree = trees.new(kmod)
        copy(kernel / "modules/kernel" / folder, tree / f"lib/modules/{release}/extra/{name}")
        needs = (f"kernel-uname-r = {release}", *(() if _NAME in kmod else (f"kmod-{_NAME} = {full}",)))
        scripts = {"post": depmod, "postun": depmod}
        packages.append(Rpm(kmod, full, requires=needs, tree=tree, scripts=scripts))
    return packages
