"""A root folder with Debian's kernel headers and compiler, in which modules are really built.

Made once by mmdebstrap from this machine's own archive and cached; tests write to an overlay that goes away with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import pytest

from gdsdeploy import hostapp, run
from gdsdeploy.lab import archive, files

SUITE = "trixie"
PACKAGES = "linux-headers-amd64,gcc,make,kmod,python3-minimal,libpython3-stdlib,pahole,binutils"
SOURCES = Path(__file__).parent / "sources"
PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"
_ENTER = """
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" kbuild "$2/root"
mount -t proc proc "$2/root/proc"
root=$2/root
shift 2
exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C "$@"
"""


@dataclass(frozen=True)
class Builder:
    """``base`` is the cached root, ``folder`` what is written over it."""

    base: Path
    folder: Path

    @property
    def kernel(self) -> str:
        found = sorted(item.name for item in (self.base / "usr/lib/modules").iterdir() if (item / "build").is_symlink())
        return found[-1]

    @property
    def modules(self) -> str:
        return f"/usr/lib/modules/{self.kernel}"

    def path(self, name: str) -> Path:
        """A file that was written inside, from outside."""
        return self.folder / "upper" / name.lstrip("/")

    def write(self, name: str, text: str) -> None:
        path = str(self.path(name))
        run.run(run.as_root(["mkdir", "-p", str(self.path(name).parent)]), doing="make a folder")
        run.run(run.as_root(["tee", path]), doing="write a file", input=text)

    def run(self, *argv: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program inside; it has to end with ``status``."""
        enter = [
            "unshare",
            "--mount",
            "--fork",
            "--kill-child",
            "sh",
            "-ec",
            _ENTER,
            "sh",
            str(self.base),
            str(self.folder),
        ]
        done = subprocess.run(run.as_root([*enter, *argv]), capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == status, f"{argv}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done

    def gdsdeploy(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run("python3", PROGRAM, *words, status=status)

    def build(self, *words: str, status: int = 0, driver: str = "/usr/src/driver", version: str = "1.2.3") -> str:
        """Build nvidia-fs; what it printed, or its error."""
        argv = ["--kernel", self.kernel, "--driver-tree", driver, "--driver-version", version, *words]
        if "--source" not in words:
            argv += ["--source", "/usr/src/nvidia-fs"]
        done = self.gdsdeploy("kmod", "build", "nvidia-fs", *argv, "--output", "/build/nvidia-fs.ko", status=status)
        return done.stdout if status == 0 else done.stderr

    def audit(self, *words: str, status: int = 0) -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(
            self.gdsdeploy("kmod", "audit", "--kernel", self.kernel, "--json", *words, status=status).stdout
        )
        return found


@pytest.fixture(scope="session")
def kbuild_base() -> Path:
    source = archive.controller_archive()
    options = {**source.options, **source.proxy, "Acquire::Languages": "none"}
    if source.ca_bundle:
        options["Acquire::https::CAInfo"] = str(source.ca_bundle)
    argv = ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={PACKAGES}", f"--keyring={source.keyring}"]
    argv += [f'--aptopt={name} "{value}"' for name, value in sorted(options.items())]
    recipe = hashlib.sha256(json.dumps([argv, source.uri]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("GDSDEPLOY_CACHE_DIR") or platformdirs.user_cache_dir("gdsdeploy")) / "kbuild"
    cache.mkdir(parents=True, exist_ok=True)

    def make(work: Path) -> None:
        target = [SUITE, str(work / "root"), source.uri]
        run.run(run.as_root([*argv, *target]), doing="make a root for building modules", log=work / "log")

    return files.cached(cache, f"{SUITE}-{recipe}", make, what="the root for building modules") / "root"


@pytest.fixture
def builder(kbuild_base: Path, tmp_path: Path) -> Iterator[Builder]:
    """A host with headers and compiler, the sources of a driver and of nvidia-fs, and no module built yet."""
    host = _host(kbuild_base, tmp_path / "host")
    yield host
    _remove(host)


@pytest.fixture(scope="session")
def with_driver(kbuild_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """A host on which the driver was built and installed for the kernel; tests get copies of it."""
    host = _host(kbuild_base, tmp_path_factory.mktemp("driver") / "host")
    host.run("cp", "-a", "/usr/src/driver", "/build/driver")
    host.run("make", "-C", f"{host.modules}/build", "M=/build/driver", "modules")
    host.run("mkdir", "-p", f"{host.modules}/updates/dkms")
    host.run("cp", "/build/driver/nvidia.ko", f"{host.modules}/updates/dkms/nvidia.ko")
    host.run("depmod", "-a", host.kernel)
    yield host
    _remove(host)


@pytest.fixture
def driver(with_driver: Builder, tmp_path: Path) -> Iterator[Builder]:
    """A host of its own with the driver installed."""
    host = Builder(with_driver.base, tmp_path / "host")
    host.folder.mkdir()
    for name in ("work", "root"):
        (host.folder / name).mkdir()
    # Not shutil: what was removed inside is a device in the upper folder, and opaque folders are attributes.
    copy = ["cp", "-a", str(with_driver.folder / "upper"), str(host.folder / "upper")]
    run.run(run.as_root(copy), doing="copy the host with the driver")
    yield host
    _remove(host)


def _host(base: Path, folder: Path) -> Builder:
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(parents=True)
    host = Builder(base, folder)
    shutil.copytree(SOURCES, host.path("/usr/src"))
    host.path(PROGRAM).parent.mkdir(parents=True)
    hostapp.build(host.path(PROGRAM))
    host.path("/build").mkdir()
    return host


def _remove(host: Builder) -> None:
    run.run(run.as_root(["rm", "-rf", "--one-file-system", str(host.folder)]), doing="remove what a test built")
