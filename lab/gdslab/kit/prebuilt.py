"""Canonical's packages of built modules, imitated: with modules that a host of the lab has built, and a key of the kit.

Names, relations and maintainer scripts are those of linux-restricted-modules and the kernels' nvidia-fs packages.  They
are in a repository of their own, because compiling the driver takes minutes, which few labs need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gdsdeploy import run
from gdslab.kit import cuda, deb, kernel, sign, ubuntu
from gdslab.kit.content import Content
from gdslab.kit.deb import Deb

#: The repository's name and folder; who signs the modules.
REPOSITORY = "restricted"
SIGNER = "Lab, in place of Canonical Ltd. Kernel Module Signing"
#: The revision of the driver's userland in Ubuntu's archive.
_REVISION = "0ubuntu0.{}.1"
#: What of the driver's packages is in Ubuntu's archive beside the modules.
_USERLAND = ("nvidia-kernel-common", "libnvidia-compute", "libnvidia-cfg1", "nvidia-utils", "nvidia-modprobe")
_DEPMOD = '#!/bin/sh\nset -e\n[ "$1" != {when} ] || [ ! -d /lib/modules/{release} ] || depmod {release}\n'


def publish(os: str, content: Content, modules: Mapping[str, Path], out: Path, work: Path) -> str:
    """Make the repository in ``out`` for the newest kernel of ``os``; returns the fingerprint of its key.

    modules: name of a module's file, such as ``nvidia-fs.ko`` → its uncompressed file, which is signed and compressed.
    The public key of the repository is ``out/restricted.gpg``.
    """
    release = ubuntu.RELEASES[os]
    work.mkdir(parents=True)
    signed = _signed(content, modules, work)
    packages = [*_modules(release, signed), *_userland(release, content)]
    with sign.signer("Lab of gdsdeploy, in place of Ubuntu's restricted component") as signer:
        repository = deb.Repository(out / REPOSITORY, "Ubuntu", signer)
        repository.publish_flat(deb.build(packages, repository.root, work / "build"))
        signer.export(out / f"{REPOSITORY}.gpg")
        return signer.fingerprint


def _signed(content: Content, modules: Mapping[str, Path], work: Path) -> dict[str, Path]:
    """Copies of the modules as packages have them."""
    folder = work / "signed"
    folder.mkdir()
    copies = {name: folder / name for name in modules}
    for name, copy in copies.items():
        copy.write_bytes(modules[name].read_bytes())
    kernel.sign(content, list(copies.values()), work, SIGNER)
    run.run(["zstd", "--quiet", "--rm", "-1", "--", *map(str, copies.values())], doing="compress the lab's modules")
    return {f"{name}.zst": copy.with_name(f"{name}.zst") for name, copy in copies.items()}


def _modules(release: ubuntu.Ubuntu, signed: Mapping[str, Path]) -> Iterator[Deb]:
    """The driver's package and nvidia-fs's, for the newest kernel."""
    name, offer = release.release, release.cuda
    branch = offer.driver.partition(".")[0]
    folder, common = f"/lib/modules/{name}/kernel", f"nvidia-kernel-common-{branch}"
    image = f"linux-image-{name} | linux-image-unsigned-{name}"
    scripts = {
        "postinst": _DEPMOD.format(when="configure", release=name),
        "postrm": _DEPMOD.format(when="remove", release=name),
    }
    restricted = "-".join(word for word in ("linux-restricted-modules", release.stack) if word)
    yield Deb(
        f"linux-modules-nvidia-{branch}-open-{name}",
        f"{release.kernel}+1",
        fields={
            "Source": restricted,
            "Depends": f"{image}, {common} (<= {offer.driver}-1), {common} (>= {offer.driver})",
        },
        trees={
            f"{folder}/nvidia-{branch}-open/{file}": path
            for file, path in signed.items()
            if not file.startswith("nvidia-fs")
        },
        scripts=scripts,
    )
    yield Deb(
        f"linux-modules-nvidia-fs-{name}",
        release.kernel,
        fields={"Source": release.source(), "Depends": image, "Provides": "nvidia-fs-dkms"},
        trees={f"{folder}/nvidia-fs/{file}": path for file, path in signed.items() if file.startswith("nvidia-fs")},
        scripts=scripts,
    )


def _userland(release: ubuntu.Ubuntu, content: Content) -> Iterator[Deb]:
    """The driver's userland as Ubuntu's archive has it: with the branch in its names, and in those of the firmware."""
    driver = release.cuda.driver
    branch = driver.partition(".")[0]
    offer = replace(release.cuda, branch=branch, revision=_REVISION.format(release.number))
    firmware = f"nvidia-firmware-{branch}-{driver}"
    for package in cuda.debs(content, offer):
        if package.name.removesuffix(offer.suffix) in _USERLAND:
            needs = package.fields.get("Depends", "").replace(f"nvidia-firmware{offer.suffix} ", f"{firmware} ")
            yield replace(package, fields={**package.fields, "Depends": needs})
        elif package.name == f"nvidia-firmware{offer.suffix}":
            yield replace(package, name=firmware)
