"""NVIDIA's local installers: packages that hold a whole repository, signed by a key of its own.

As NVIDIA's, they bring the host's source entry, too: apt's names a keyring that an administrator copies there, and
rpm's has signed packages and an unsigned index.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from gdslab.kit import cuda, deb, rpm, sign
from gdslab.kit.deb import Deb
from gdslab.kit.rpm import Rpm

#: System of the lab → NVIDIA's name for it, of those that have an installer.
SYSTEMS = {"ubuntu-24.04": "ubuntu2404", "rocky-9": "rhel9"}
#: Folder of the packages below the server's root, as at NVIDIA's.
FOLDER = "local_installers"
_TOOLKIT = cuda.LIBCUFILE[cuda.DEBIAN_LIBCUFILE]
_MAKER = "Lab of gdsdeploy, in place of one build of NVIDIA's"
#: As NVIDIA's: nothing copies the key by itself.
_NOTE = """#!/bin/sh
set -e
[ "$1" != configure ] || echo "To install the key, run: sudo cp {keyring} /usr/share/keyrings/"
"""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Package = TypeVar("_Package", bound=_Named)


def name(system: str) -> str:
    """The package's name; its repository is the folder of this name in /var."""
    return f"cuda-repo-{SYSTEMS[system]}-{cuda.CUDA.replace('.', '-')}-local"


def _entry(own: str) -> str:
    """The name of the host's source entry that the package ``own`` brings."""
    return own.replace("cuda-repo-", "cuda-")


def build_deb(system: str, packages: Iterable[Deb], repository: Path, out: Path, work: Path) -> Path:
    """The installer for apt: a flat repository of the last version of each of ``packages``, files in ``repository``.

    work: folder for what is packed; it is removed.  Returns the file, in ``out``.
    """
    own = name(system)
    place, folder = f"/var/{own}", work / own
    folder.mkdir(parents=True)
    with sign.signer(_MAKER) as signer:
        keyring = f"cuda-{signer.fingerprint[-8:]}-keyring.gpg"
        files = deb.place((repository / package.file_name for package in _last(packages)), folder)
        # It names no maker.
        release = deb.Repository(folder, "", signer).publish_flat(files)
        signer.clearsign(release, folder / "InRelease")
        signer.export(folder / keyring)
    source = f"deb [signed-by=/usr/share/keyrings/{keyring}] file://{place} /\n"
    installer = Deb(
        own,
        f"{_TOOLKIT}-{cuda.DRIVER}-1",
        trees={place: folder},
        texts={f"/etc/apt/sources.list.d/{_entry(own)}.list": source},
        scripts={"postinst": _NOTE.format(keyring=f"{place}/{keyring}")},
    )
    (file,) = deb.build([installer], out, work / "installer")
    shutil.rmtree(folder)
    return file


def build_rpm(system: str, packages: Sequence[Rpm], repository: Path, out: Path, work: Path) -> Path:
    """The installer for rpm: a repository of the last version of each of ``packages``, files in ``repository``.

    work: folder for what is packed; it is removed.  Returns the file, in ``out``.
    """
    own = name(system)
    tree = work / own
    folder = tree / "var" / own
    folder.mkdir(parents=True)
    copies = [Path(shutil.copy2(repository / package.file, folder)) for package in _last(packages)]
    with sign.signer(_MAKER) as signer:
        rpm.sign(copies, signer.home, signer.fingerprint)
        rpm.publish(folder, None)
        key = folder / f"{signer.fingerprint[-8:]}.pub"
        signer.export(key, armour=True)
    section = _entry(own)
    source = tree / f"etc/yum.repos.d/{section}.repo"
    source.parent.mkdir(parents=True)
    source.write_text(
        f"[{section}]\nname={section}\nbaseurl=file:///var/{own}\nenabled=1\ngpgcheck=1\n"
        f"gpgkey=file:///var/{own}/{key.name}\nobsoletes=0\n"
    )
    (file,) = rpm.build([Rpm(own, f"{_TOOLKIT}_{cuda.DRIVER}-1", tree=tree)], out)
    shutil.rmtree(tree)
    return file


def _last(packages: Iterable[_Package]) -> list[_Package]:
    """The last of each name: an installer has one version of everything."""
    return list({package.name: package for package in packages}.values())
