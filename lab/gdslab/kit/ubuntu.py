"""Ubuntu's archive and NVIDIA's CUDA repository for it, imitated with Debian's packages.

Names, relations, layout and maintainer scripts are the vendors', the content is Debian's (docs/lab.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gdslab import guest
from gdslab.kit import cuda, deb, doca, installer, kernel, sign
from gdslab.kit.content import Content, Original
from gdslab.kit.deb import Deb

#: Components of Ubuntu's archive; all packages are in the first.
COMPONENTS = ("main", "restricted", "universe", "multiverse")
#: What a host without GPU software has, what DKMS and kernels need, and what an administrator may ask for.
_PACKAGES = (
    *(
        "?essential",
        "?priority(required)",
        "apt",
        "mount",
        "tzdata",
        "adduser",
        "patch",
        "dpkg-dev",
        "make",
        "gcc",
        "g++",
    ),
    *("linux-base", "libnuma1", "pahole", "zstd", "xz-utils", "mokutil", "openssl", "libelf1", "lsb-release"),
)
#: Debian's archive gives these another priority than their control files; and every host of Ubuntu has zstd, which its
#: initramfs-tools needs.
_REQUIRED = frozenset({"apt", "mount", "tzdata", "zstd"})
#: A maintainer script that runs the hooks of a kernel's folder in /etc/kernel.
_HOOKS = """#!/bin/sh
set -e
[ "$1" = {when} ] || exit 0
{first}if [ -d /etc/kernel/{folder} ]; then
    DEB_MAINT_PARAMS="$*" run-parts --report --exit-on-error --arg={release}{image} /etc/kernel/{folder}
fi
"""
#: Removes what depmod wrote.
_CLEAN = """#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /lib/modules/{release} ]; then
    rm -f /lib/modules/{release}/modules.*
    rmdir --ignore-fail-on-non-empty /lib/modules/{release}
fi
"""


@dataclass(frozen=True)
class Ubuntu:
    """A release: its kernels, its dkms, and NVIDIA's repository for it.

    base: the Debian release of everything else.  kernel: version of the newest one's packages.
    stack: the hardware-enablement stack of the kernels, as their packages are named; empty for the release's own
    kernels.  compiler: of modules, a package.  dkms: version of the package.
    older: version of the kernel that VM hosts begin with.  initramfs: the package that makes the initramfs.
    """

    number: str
    codename: str
    base: str
    kernel: str
    stack: str
    compiler: str
    dkms: str
    debian_dkms: str
    older: str
    initramfs: str = "initramfs-tools"
    cuda: cuda.Offer = field(default_factory=cuda.Offer)

    @property
    def release(self) -> str:
        """The newest kernel, as ``uname -r`` prints it."""
        return release(self.kernel)

    @property
    def image(self) -> str:
        """The metapackage of the kernel."""
        return f"linux-generic-hwe-{self.number}" if self.stack else "linux-generic"

    def source(self, kind: str = "") -> str:
        """The source package of the kernel's packages; kind: ``signed`` and ``meta`` have their own."""
        return "-".join(word for word in ("linux", kind, self.stack) if word)


def abi(version: str) -> str:
    """A kernel's release without the flavour, from the version of its packages: ``6.14.0-37``."""
    return version.partition("~")[0].rpartition(".")[0]


def release(version: str) -> str:
    """The release of the kernel whose packages have ``version``, as ``uname -r`` prints it."""
    return f"{abi(version)}-generic"


RELEASES = {
    "ubuntu-22.04": Ubuntu(
        *("22.04", "jammy", "bookworm", "6.8.0-90.91~22.04.1", "hwe-6.8", "gcc-12", "2.8.7-2ubuntu2.2", "3.0.10"),
        older="6.8.0-87.88~22.04.1",
    ),
    "ubuntu-24.04": Ubuntu(
        *("24.04", "noble", "bookworm", "6.14.0-37.37~24.04.1", "hwe-6.14", "gcc-12", "3.0.11-1ubuntu13", "3.0.10"),
        older="6.14.0-36.36~24.04.1",
    ),
    "ubuntu-26.04": Ubuntu(
        *("26.04", "resolute", "trixie", "7.0.0-38.38", "", "gcc-14", "3.2.2-1ubuntu1", "3.2.2"),
        older="7.0.0-37.37",
        initramfs="dracut",
        # Its repository has no branch before 595, and kernel 7.0 needs this nvidia-fs.
        cuda=cuda.Offer("595.71.05", "1ubuntu1", "", ("2.29.4",)),
    ),
}


def build(os: str, content: Content, out: Path, work: Path) -> dict[str, str]:
    """Make the repositories of ``os`` in ``out``: folders ``ubuntu``, ``cuda`` and ``doca``, and their keyrings.

    work: folder for unpacked packages; the caller removes it.  Returns repository → fingerprint of its key.
    """
    keys = {}
    ubuntu = RELEASES[os]
    with sign.signer("Lab of gdsdeploy, in place of Ubuntu") as signer:
        _archive(ubuntu, content, deb.Repository(out / "ubuntu", "Ubuntu", signer, _REQUIRED), work)
        signer.export(out / "ubuntu.gpg")
        keys["ubuntu"] = signer.fingerprint
    with sign.signer("Lab of gdsdeploy, in place of NVIDIA") as signer:
        repository, packages = deb.Repository(out / "cuda", "NVIDIA", signer), cuda.debs(content, ubuntu.cuda)
        repository.publish_flat(deb.build(packages, repository.root, work / "build"))
        signer.export(out / "cuda.gpg")
        keys["cuda"] = signer.fingerprint
    keys |= doca.publish(content, ubuntu.release, work / "kernel", ubuntu.number, out, work)
    if os in installer.SYSTEMS:
        installer.build_deb(os, packages, repository.root, out / installer.FOLDER, work)
    return keys


def _archive(ubuntu: Ubuntu, content: Content, repository: deb.Repository, work: Path) -> None:
    pool = repository.root / "pool/main"
    # Those of the initramfs exclude each other.
    names = [name for name in (*_PACKAGES, *guest.PACKAGES) if name != "initramfs-tools"]
    names += [ubuntu.initramfs, ubuntu.compiler]
    debs = deb.place(content.closure(names, ubuntu.base), pool)
    debs += deb.build([*_kernel(ubuntu, content, work), _dkms(ubuntu, content)], pool, work / "build")
    empty: dict[str, Sequence[Path]] = dict.fromkeys(COMPONENTS, ())
    for pocket in ("", "-updates", "-security"):
        components = {**empty, "main": debs} if not pocket else empty
        repository.publish_suite(ubuntu.codename + pocket, ubuntu.codename, components)


def _kernel(ubuntu: Ubuntu, content: Content, work: Path) -> list[Deb]:
    """Both kernels, which differ in their names: image and modules; and the newest one's headers and metapackage."""
    shared, folder = f"{ubuntu.source()}-headers-{abi(ubuntu.kernel)}", work / "kernel"
    repacked = kernel.repack(content, ubuntu.release, folder)
    headers = kernel.headers(content, ubuntu.release, f"/usr/src/{shared}", folder)
    meta = Deb(
        ubuntu.image,
        ubuntu.kernel,
        fields={
            "Source": ubuntu.source("meta"),
            "Depends": ", ".join(f"linux-{part}-{ubuntu.release} (= {ubuntu.kernel})" for part in ("image", "headers")),
        },
    )
    images = [deb for version in (ubuntu.older, ubuntu.kernel) for deb in _image(ubuntu, version, repacked)]
    return [*images, *_headers(ubuntu, headers, shared), meta]


def _image(ubuntu: Ubuntu, version: str, repacked: kernel.Kernel) -> list[Deb]:
    name = release(version)
    image, depmod = f"/boot/vmlinuz-{name}", f"depmod {name}\n"
    return [
        Deb(
            f"linux-image-{name}",
            version,
            fields={
                "Source": ubuntu.source("signed"),
                "Depends": f"kmod, linux-base, linux-modules-{name}, {ubuntu.initramfs} | linux-initramfs-tool",
                "Provides": "linux-image, fuse-module, wireguard-modules (= 1.0.0)",
                "Conflicts": f"linux-image-unsigned-{name}",
            },
            trees={image: repacked.vmlinuz},
            scripts={
                "postinst": _hooks("configure", "postinst.d", name, image, depmod),
                "prerm": _hooks("remove", "prerm.d", name, image),
                "postrm": _hooks("remove", "postrm.d", name, image),
            },
        ),
        Deb(
            f"linux-modules-{name}",
            version,
            fields={"Source": ubuntu.source()},
            trees={
                f"/lib/modules/{name}": repacked.modules,
                f"/boot/System.map-{name}": repacked.system_map,
                f"/boot/config-{name}": repacked.config,
            },
            scripts={
                "postinst": f'#!/bin/sh\nset -e\n[ "$1" != configure ] || {depmod}',
                "postrm": _CLEAN.format(release=name),
            },
        ),
    ]


def _headers(ubuntu: Ubuntu, headers: kernel.Headers, shared: str) -> list[Deb]:
    release, source = ubuntu.release, {"Source": ubuntu.source()}
    (headers.own / "Makefile").unlink()
    variables = headers.own / ".kernelvariables"
    variables.write_text(variables.read_text().replace("gcc-12", ubuntu.compiler))
    _link(headers.own, headers.common, f"../{shared}")
    return [
        Deb(
            f"linux-headers-{release}",
            ubuntu.kernel,
            fields={**source, "Depends": f"{shared} (= {ubuntu.kernel}), libc6, libelf1, {ubuntu.compiler}"},
            trees={f"/usr/src/linux-headers-{release}": headers.own},
            links={f"/lib/modules/{release}/build": f"/usr/src/linux-headers-{release}"},
            scripts={"postinst": _hooks("configure", "header_postinst.d", release)},
        ),
        Deb(
            shared,
            ubuntu.kernel,
            fields={**source, "Depends": "libc6"},
            trees={f"/usr/src/{shared}": headers.common},
            architecture="all",
        ),
    ]


def _link(own: Path, common: Path, target: str) -> None:
    """Link all of ``common`` that ``own`` doesn't have into ``own``; ``target``: ``common`` as seen from ``own``.

    So one folder has all headers, as in Ubuntu's packages: NVIDIA's conftest looks into no other.
    """
    for entry in common.iterdir():
        place = own / entry.name
        if not place.exists():
            place.symlink_to(f"{target}/{entry.name}")
        elif place.is_dir():
            _link(place, entry, f"../{target}/{entry.name}")


def _hooks(when: str, folder: str, release: str, image: str = "", first: str = "") -> str:
    argument = f" --arg={image}" if image else ""
    return _HOOKS.format(when=when, folder=folder, release=release, image=argument, first=first)


def _dkms(ubuntu: Ubuntu, content: Content) -> Deb:
    unpacked = content.unpack(Original("dkms", ubuntu.base, ubuntu.debian_dkms))
    built = deb.from_debian(unpacked, "dkms", ubuntu.dkms)
    provides = re.sub(r"\(= [^)]*\)", f"(= {ubuntu.dkms})", built.fields["Provides"])
    return replace(built, fields={**built.fields, "Provides": provides})
