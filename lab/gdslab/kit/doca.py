"""The repositories of DOCA for hosts, for apt: OFED's kernel modules and their metapackages.

Names, versions, relations and layout are those of DOCA 3.4.  What DKMS builds is the folder ``ofed`` here: an RDMA core
that registers peer memory clients and does nothing else.  What is built for one kernel are Debian's own modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gdslab import guest
from gdslab.kit import cuda, deb, sign
from gdslab.kit.content import Content, Original
from gdslab.kit.deb import Deb

#: DOCA's version, and that of its OFED in two parts.
DOCA, OFED, BUILD = "3.4.1-010000", "26.04", "OFED.26.04.1.0.9.1"
#: The version of what ``doca-kernel-support`` makes, and of OFED's tools.
SUPPORT, TOOLS = "26.04.1.0.9.0", "26.04.1-1"
#: Repository → whom the lab's key stands for: DOCA's own one, and the one that a site makes and signs for a kernel.
MAKERS = {"doca": "Mellanox", "doca-kernel": "a site"}
#: Debian's modules in place of OFED's, by the name that their packages begin with.
MODULES = {"mlnx-ofed-kernel": "drivers/infiniband/core", "mlnx-nvme": "drivers/nvme/host"}
SCRIPT = "post_build.sh"
_LABEL = "DOCA-HOST"
_DKMS_CONF = """\
PACKAGE_NAME="{name}"
PACKAGE_VERSION="{version}"
MAKE[0]="make -C ${{kernel_source_dir}} M=${{dkms_tree}}/{name}/{version}/build modules"
CLEAN="true"
POST_BUILD="post_build.sh ${{kernelver}} ${{arch}}"
BUILT_MODULE_NAME[0]="ib_uverbs"
DEST_MODULE_LOCATION[0]="/extra"
AUTOINSTALL="yes"
"""
#: Shell lines: what post_build.sh made goes with the package.
CLEAN = """\
for tree in /usr/src/ofa_kernel-dkms/*/*; do
    [ ! -d "$tree" ] || update-alternatives --remove ofa_kernel_headers "$tree"
done
rm -rf /usr/src/ofa_kernel-dkms /usr/src/ofa_kernel
"""


def folders(system: str) -> dict[str, str]:
    """Repository → its folder below the server's root, as DOCA's addresses end; system: such as ``ubuntu24.04``."""
    root = f"doca/{DOCA.partition('-')[0]}/{system}"
    return {"doca": f"{root}/x86_64", "doca-kernel": f"{root}/Modules"}


def sources(tree: str, name: str, version: str) -> dict[str, str]:
    """Path → text of the source ``tree`` that DKMS builds as ``name``; SCRIPT in it is to be run."""
    own = {f"{tree}/{path.name}": path.read_text() for path in sorted(guest.data("kit/ofed").iterdir())}
    return {**own, f"{tree}/dkms.conf": _DKMS_CONF.format(name=name, version=version)}


def symvers(headers: Path) -> str:
    """The versions of the symbols that Debian's RDMA core exports, as the folder of a kernel's headers has them."""
    lines = (headers / "Module.symvers").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if line.split("\t")[2].startswith(MODULES["mlnx-ofed-kernel"]))


def alternative(place: str) -> str:
    """The shell line that makes ``place`` OFED's default tree."""
    return f"update-alternatives --install /usr/src/ofa_kernel/default ofa_kernel_headers {place} 20\n"


def publish(content: Content, release: str, kernel: Path, number: str, out: Path, work: Path) -> dict[str, str]:
    """Make both repositories in ``out`` for hosts of Ubuntu ``number`` with kernel ``release``.

    kernel: folder with the kernel's ``modules`` and ``headers``.  Returns repository → fingerprint of its key,
    which is in ``out`` as ``REPOSITORY.gpg``.
    """
    keys = {}
    for name, debs in (("doca", network(content)), ("doca-kernel", for_kernel(release, kernel))):
        with sign.signer(f"Lab of gdsdeploy, in place of {MAKERS[name]}") as signer:
            repository = deb.Repository(out / folders(f"ubuntu{number}")[name], _LABEL, signer)
            repository.publish_flat(deb.build(debs, repository.root, work / name))
            signer.export(out / f"{name}.gpg")
            keys[name] = signer.fingerprint
    return keys


def network(content: Content) -> Iterator[Deb]:
    """The packages of DOCA's own repository, whose versions go together exactly."""
    name, version = "mlnx-ofed-kernel", f"{OFED}.{BUILD}"
    place, scripts = f"/usr/src/{name}-{version}", f"{version.rpartition('.')[0]}-1"
    source = {"Source": name}
    userspace = f"{name}-utils (= {version}-1), mlnx-tools (= {TOOLS}), ofed-scripts (= {scripts})"
    yield Deb("mlnx-tools", TOOLS, fields={"Depends": "python3"})
    yield Deb("ofed-scripts", scripts)
    yield Deb(f"{name}-utils", f"{version}-1", fields={**source, "Depends": "mlnx-tools"})
    yield Deb(
        f"{name}-dkms",
        f"{version}-1",
        fields={**source, "Depends": f"dkms, {name}-utils", "Conflicts": f"{name}-modules"},
        texts=sources(place, name, version),
        modes={f"{place}/{SCRIPT}": 0o755},
        scripts=cuda.dkms_scripts(f"{name}-dkms", name, version, remove=CLEAN),
        architecture="all",
    )
    yield Deb("doca-ofed-userspace", DOCA, fields={"Depends": userspace})
    yield Deb("doca-ofed", DOCA, fields={"Depends": f"doca-ofed-userspace (= {DOCA}), {name}-dkms (= {version}-1)"})
    # DOCA's repository has a dkms of its own; hosts should keep the distribution's.
    yield deb.from_debian(content.unpack(Original("dkms", "trixie", "3.2.2")), "dkms", "3.2.2-1")


def for_kernel(release: str, kernel: Path) -> Iterator[Deb]:
    """The packages with modules for kernel ``release``, and the metapackage of the kernel."""
    version, headers = f"{OFED}.{BUILD}-1.kver.{release}", f"/usr/src/ofa_kernel/x86_64/{release}"
    for name, folder in MODULES.items():
        core = name == "mlnx-ofed-kernel"
        install = f"{alternative(headers) if core else ''}depmod {release}\n"
        remove = f"update-alternatives --remove ofa_kernel_headers {headers}\n" if core else ""
        yield Deb(
            f"{name}-modules",
            version,
            fields={
                "Source": name,
                "Depends": "" if core else f"mlnx-ofed-kernel-modules (= {version})",
                "Conflicts": f"{name}-dkms",
            },
            trees={f"/lib/modules/{release}/updates/{name}": kernel / "modules/kernel" / folder},
            texts={f"{headers}/Module.symvers": symvers(kernel / "headers")} if core else {},
            scripts={
                "postinst": f'#!/bin/sh\nset -e\n[ "$1" = configure ] || exit 0\n{install}',
                "prerm": f'#!/bin/sh\nset -e\n[ "$1" = remove ] || exit 0\n{remove}',
                "postrm": f'#!/bin/sh\nset -e\n[ "$1" != remove ] || depmod {release}\n',
            },
        )
    needs = f"mlnx-ofed-kernel-modules (= {version})"
    yield Deb(f"doca-kernel-{release.replace('-', '.')}", SUPPORT, fields={"Depends": needs})
