"""A root folder with Debian's kernel headers and compiler, in which modules are really built.

Made once by mmdebstrap from this machine's own archive and cached; tests write to an overlay that goes away with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import pytest

from gdsdeploy import run
from gdsdeploy.files import folders
from gdsdeploy.zipapp import hostapp
from gdslab import archive, guest

#: By suite: apt's pattern for its header packages.  Debian 13 has two or more, and other ones after each point release;
#: Debian 12 gets none any more, and has several.
HEADERS = {
    "trixie": r"?name(^linux-headers-6\.12\.[0-9]+\+deb13[.0-9]*-amd64$)",
    # There headers don't bring their kernel.
    "bookworm": r"?name(^linux-[a-z]*-6\.1\.0-50-amd64$)",
}
TOOLS = "gcc,make,kmod,python3-minimal,libpython3-stdlib,pahole,binutils,dkms,openssl,xz-utils,zstd"
ARCHIVED = ("nvidia-open-kernel-dkms", "nvidia-fs-dkms")
#: Where the sources of ARCHIVED are unpacked; not /usr/src, where tests put what they are about.
ARCHIVE = "/opt/archive/usr/src"
SOURCES = Path(__file__).parent / "sources"
PROGRAM = "/usr/lib/gdsdeploy/gdsdeploy-host.pyz"
_ENTER = """
mount -t overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" kbuild "$2/root"
mount -t proc proc "$2/root/proc"
root=$2/root
shift 2
exec chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C "$@"
"""

#: Installing these packages would already build; only their sources are wanted.
_UNPACK = (
    'cd "$1/var/cache/apt/archives" && APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get download '
    + " ".join(ARCHIVED)
    + ' && for file in nvidia-*.deb; do dpkg-deb -x "$file" "$1/opt/archive"; done && rm nvidia-*.deb'
)

#: Headers bring their kernel, and DKMS ends in a depmod that reads all of its modules: eight seconds a time.  Few of
#: them are unpacked.
_THIN = (
    "path-exclude=*/lib/modules/*/kernel/*",
    *(f"path-include=*/lib/modules/*/kernel/{folder}" for folder in ("lib/*", "drivers/infiniband/*")),
)


@dataclass(frozen=True)
class Builder:
    """``base`` is the cached root, ``folder`` what is written over it."""

    base: Path
    folder: Path

    @property
    def kernel(self) -> str:
        """The oldest kernel that has headers."""
        return self._kernels()[0]

    @property
    def other_kernel(self) -> str:
        """The next kernel that has headers; on a host of Debian 13."""
        return self._kernels()[1]

    def _kernels(self) -> list[str]:
        releases = [folder.name for folder in (self.base / "usr/lib/modules").iterdir()]
        return sorted(releases, key=lambda release: [int(part) for part in re.findall(r"\d+", release)])

    def source(self, name: str) -> str:
        """The folder of the archive's sources of ``name``: ``nvidia-fs`` or ``nvidia-current-open``."""
        names = [
            entry.name for entry in (self.base / ARCHIVE.lstrip("/")).iterdir() if entry.name.startswith(name + "-")
        ]
        assert len(names) == 1
        return f"{ARCHIVE}/{names[0]}"

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

    def ofed(self, place: str, kernel: str = "", install: bool = True) -> str:
        """Make an OFED tree at ``place`` (below /usr/src/ofa_kernel), and install its module; its folder."""
        release = kernel or self.kernel
        folder = f"/usr/src/ofa_kernel/{place}"
        self.run("mkdir", "-p", folder, f"{self.lib(release)}/updates/ofed")
        self.run("cp", "-rT", "/usr/src/ofed", folder)
        self.run("make", "-s", "-C", f"{self.lib(release)}/build", f"M={folder}", "modules")
        if install:
            self.run("cp", f"{folder}/ib_uverbs.ko", f"{self.lib(release)}/updates/ofed/ib_uverbs.ko")
            self.run("depmod", "-a", release)
        return folder

    @staticmethod
    def lib(release: str) -> str:
        return f"/usr/lib/modules/{release}"

    def audit(self, *words: str, status: int = 0) -> list[dict[str, object]]:
        results: list[dict[str, object]] = json.loads(
            self.gdsdeploy("kmod", "audit", "--kernel", self.kernel, "--json", *words, status=status).stdout
        )
        return results


@pytest.fixture(scope="session")
def kbuild_base() -> Path:
    return _base("trixie")


@pytest.fixture(scope="session")
def bookworm_base() -> Path:
    return _base("bookworm")


def _base(suite: str) -> Path:
    source = archive.controller_archive()
    options = {**source.options, **source.proxy, "Acquire::Languages": "none"}
    if source.ca_bundle:
        options["Acquire::https::CAInfo"] = str(source.ca_bundle)
    # These kernels are never booted, so they need no initramfs.
    argv = ["env", "INITRD=No", "mmdebstrap", "--mode=root", "--variant=minbase"]
    argv += [f"--include={TOOLS}", f"--include={HEADERS[suite]}", f"--keyring={source.keyring}"]
    argv += ["--components=main,contrib,non-free", f"--customize-hook={_UNPACK}"]
    lines = " ".join(f"'{option}'" for option in _THIN)
    folder = "$1/etc/dpkg/dpkg.cfg.d"
    argv += [f'--setup-hook=mkdir -p "{folder}" && printf "%s\\n" {lines} >"{folder}/thin"']
    argv += [f'--aptopt={name} "{value}"' for name, value in sorted(options.items())]
    recipe = hashlib.sha256(json.dumps([argv, source.uri]).encode()).hexdigest()[:12]
    cache = Path(os.environ.get("GDSDEPLOY_CACHE_DIR") or platformdirs.user_cache_dir("gdsdeploy")) / "kbuild"
    cache.mkdir(parents=True, exist_ok=True)

    def make(work: Path) -> None:
        target = [suite, str(work / "root"), source.uri]
        run.run(run.as_root([*argv, *target]), doing="make a root for building modules", log=work / "log")

    return folders.cached_folder(cache, f"{suite}-{recipe}", make, what="the root for building modules") / "root"


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
    """A separate host with the driver installed."""
    yield from _copy(with_driver, tmp_path / "host")


@pytest.fixture(scope="session")
def copy_host() -> Callable[[Builder, Path], Iterator[Builder]]:
    return _copy


@pytest.fixture(scope="session")
def make_host() -> Callable[[Path, Path], Builder]:
    return _host


def _copy(host: Builder, folder: Path) -> Iterator[Builder]:
    """A copy of ``host`` that is removed after the test."""
    copied = Builder(host.base, folder)
    copied.folder.mkdir()
    for name in ("work", "root"):
        (copied.folder / name).mkdir()
    # Not shutil: what was removed inside is a device in the upper folder, and opaque folders are attributes.
    copy = ["cp", "-a", str(host.folder / "upper"), str(copied.folder / "upper")]
    run.run(run.as_root(copy), doing="copy a host for building modules")
    yield copied
    _remove(copied)


def _host(base: Path, folder: Path) -> Builder:
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(parents=True)
    host = Builder(base, folder)
    shutil.copytree(SOURCES, host.path("/usr/src"))
    shutil.copytree(guest.data("kit/ofed"), host.path("/usr/src/ofed"))
    host.path(PROGRAM).parent.mkdir(parents=True)
    hostapp.build(host.path(PROGRAM))
    host.path("/build").mkdir()
    return host


def _remove(host: Builder) -> None:
    run.run(run.as_root(["rm", "-rf", "--one-file-system", str(host.folder)]), doing="remove what a test built")
