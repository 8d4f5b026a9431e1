"""``gdsdeploy kmod preflight`` of a RHEL system: rpm packages with the content of Debian's compiler and kernel.

The packages have the names, relations and layout of RHEL's; what is compiled and audited is real.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gdsdeploy import paths
from gdsdeploy.fleetfile.load import load_fleet
from gdsdeploy.lock import repo_settings
from gdsdeploy.lock.resolve_fleet import read_repositories, resolve_fleet
from gdsdeploy.platform import stack_platform_for
from gdsdeploy.preflight import trial
from gdsdeploy.repo.fetch import Fetcher
from tests.preflight.conftest import _driver
from tests.preflight.test_preflight_stacks import brief, preflight
from tests.repos import rpmstack
from tests.repos.archive import Key
from tests.repos.rpmarchive import Rpm, RpmArchive, Stream, build

KERNEL = "6.12.1-1.el9"
RELEASE = f"{KERNEL}.x86_64"
#: Of the tools that a preflight takes, the package gcc has the files.
TOOLS = ("binutils", "coreutils", "diffutils", "findutils", "gawk", "gcc-c++", "grep", "kmod", "sed", "xz", "zstd")
SPEC = """\
Name: {name}
{epoch}Version: {version}
Release: {release}
Summary: Nothing
License: None
AutoReqProv: no
{relations}
%description
Nothing.
%install
cd {tree}
cp -al --parents {copied} %{{buildroot}}/ || cp -a --parents {copied} %{{buildroot}}/
%files
{files}
"""


@dataclass(frozen=True)
class Filled:
    """A package with the files of ``tree``; ``paths``: what of it."""

    rpm: Rpm
    tree: Path
    paths: tuple[str, ...]

    def build(self, folder: Path, work: Path) -> None:
        epoch, _, rest = self.rpm.version.rpartition(":")
        version, _, release = rest.rpartition("-")
        relations = [f"{tag.title()}: {value}" for tag in ("requires", "provides") for value in getattr(self.rpm, tag)]
        spec = work / f"{self.rpm.name}.spec"
        spec.write_text(
            SPEC.format(
                name=self.rpm.name, epoch=f"Epoch: {epoch}\n" if epoch else "", version=version, release=release,
                relations="\n".join(relations), tree=self.tree, files="\n".join(self.paths),
                copied=" ".join("." + path for path in self.paths),
            )
        )  # fmt: skip
        defines = {
            "_topdir": work / f"top-{self.rpm.name}", "_rpmdir": folder,
            "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm", "debug_package": "%{nil}",
            "_build_id_links": "none", "__os_install_post": "%{nil}", "_binary_payload": "w1.gzdio",
            "_unpackaged_files_terminate_build": "0",
        }  # fmt: skip
        argv = ["rpmbuild", "-bb", "--quiet", "--nodeps", "--target", self.rpm.arch]
        argv += [word for key, value in defines.items() for word in ("--define", f"{key} {value}")]
        done = subprocess.run([*argv, spec], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(work / f"top-{self.rpm.name}")


def debian_trees(fleet: Path) -> tuple[Path, Path]:
    """Debian's kernel with its headers, and its compiler with all that it needs, unpacked."""
    loaded = load_fleet(fleet)
    platform = stack_platform_for("debian-13")
    with Fetcher() as fetcher:
        target = resolve_fleet(loaded, fetcher).lock.targets["gds"]
        universe, _ = read_repositories(fetcher, repo_settings.repositories(loaded, "gds", platform), "amd64")
        *_, kernel, compiler = trial.layers(target, platform, universe, fetcher)
    layers = paths.cache() / "preflight/layers"
    return layers / kernel, layers / compiler


def kernel_tree(debian: Path, place: Path) -> Path:
    """The kernel by another name: its modules and its headers agree about the version that they were built for."""
    tree = place / "kernel"
    (tree / "lib/modules").mkdir(parents=True)
    if subprocess.run(["cp", "-al", debian / "usr", tree], capture_output=True, check=False).returncode:
        shutil.rmtree(tree / "usr", ignore_errors=True)
        subprocess.run(["cp", "-a", debian / "usr", tree], check=True)
    (modules,) = (tree / "usr/lib/modules").iterdir()
    modules.rename(tree / "lib/modules" / RELEASE)
    return tree


def others(rpms: Sequence[Rpm], filled: Sequence[Filled]) -> list[Rpm]:
    names = {(package.rpm.name, package.rpm.version) for package in filled}
    return [rpm for rpm in rpms if (rpm.name, rpm.version) not in names]


@pytest.fixture
def rhel_fleet(fleet: Path, drivers: tuple[Path, Key], tmp_path: Path) -> Path:
    repository, key = drivers
    kernel, compiler = debian_trees(fleet)
    kernel_files = kernel_tree(kernel, tmp_path)
    stack = {rpm.name: rpm for rpm in rpmstack.kernel(KERNEL)}
    driver = {rpm.name: rpm for rpm in rpmstack.driver("560.1.3")}
    _driver(tmp_path / "driver", "560.1.3")
    sources = tmp_path / "driver/usr/src"
    tree = (sources / "nvidia-current-open-560.1.3").rename(sources / "nvidia-open-560.1.3")
    conf = tree / "dkms.conf"
    conf.write_text(conf.read_text().replace("nvidia-current-open", "nvidia-open"))
    fs = next(rpm for rpm in rpmstack.nvidia_fs("2.19.7") if rpm.name == "nvidia-fs-dkms")
    fs_tree = repository.parent / "fs"
    headers = ("/usr/src", "/usr/lib/linux-kbuild*", f"/lib/modules/{RELEASE}/build")
    # The modules of one folder will do: these drivers depend on none.
    module_files = tuple(
        f"/lib/modules/{RELEASE}/{path.name}"
        for path in (kernel_files / "lib/modules" / RELEASE).iterdir()
        if path.name not in ("build", "source", "kernel")
    )
    module_files += (f"/lib/modules/{RELEASE}/kernel/drivers/nvme",)
    # Their files are gcc's, too.
    base = [
        replace(rpm, files=(), provides=(*rpm.provides, *rpm.files)) if rpm.name in ("bash", "python3") else rpm
        for rpm in rpmstack.BASEOS
        if not rpm.name.startswith("kernel")
    ]
    gcc = next(rpm for rpm in base if rpm.name == "gcc")
    filled = [
        Filled(gcc, compiler, ("/usr",)),
        Filled(stack["kernel-core"], kernel_files, module_files),
        Filled(stack["kernel-devel"], kernel_files, headers),
        Filled(driver["kmod-nvidia-open-dkms"], tmp_path / "driver", ("/usr/src",)),
        Filled(fs, fs_tree, ("/usr/src",)),
    ]
    empty = [
        *stack.values(), *driver.values(), *rpmstack.nvidia_fs("2.19.7"), *rpmstack.gds("12.9", "1.9.1.3"), *base,
        Rpm("nvlsm", "2025.10.14-1"), Rpm("dkms", "3.2.1-1.el9", "noarch", requires=("gcc", "make", "kernel-devel")),
        *(rpmstack.base(name, "1-1.el9") for name in TOOLS),
    ]  # fmt: skip
    folder = build(others(empty, filled), tmp_path / "rpms")
    for package in filled:
        package.build(folder, tmp_path)
    streamed = [rpm for rpm in driver.values() if rpm.name != "kmod-nvidia-latest-dkms"]
    RpmArchive(folder, streams=[Stream("nvidia-driver", "560-open", tuple(streamed))]).publish(key)
    path = tmp_path / "rhel.yml"
    path.write_text(
        f"version: 1\nrepositories:\n"
        f"  all: {{kind: rpm, uri: 'file://{folder}', keyring: '{key.keyring}', fingerprints: [{key.fingerprint}]}}\n"
        f"profiles:\n  gds: {{os: rhel-9, repositories: [all], driver: '560'}}\nhosts: {{gpu1: gds}}\n"
    )
    return path


def test_a_stack_of_rpm_packages_is_built_and_audited(rhel_fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, document, messages = preflight(capsys, rhel_fleet)
    assert brief(document) == [(RELEASE, "560.1.3", "yes", "yes")], messages
    assert status == 0
