"""What locked packages have in them: the source tree and DKMS name in dkms.conf, and modules that are built already."""

from __future__ import annotations

import gzip
import hashlib
from contextlib import nullcontext
from pathlib import Path

import pytest

from gdsdeploy.errors import RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.lock.sources import PackageReader, SourceTree, parse
from gdsdeploy.model.lock import Index, Package
from gdsdeploy.repo.fetch import Fetcher
from tests.repos.archive import flip
from tests.repos.dkmspackages import conf, deb
from tests.unit.host.kmod.kmod_elf import VERMAGIC, module_bytes, signed_by

PATH = "usr/src/nvidia-580.95.05/dkms.conf"
RELEASE = VERMAGIC.split()[0]
NVIDIA = module_bytes("nvidia", license="Dual MIT/GPL", info=[("version", "580.159.03")]) + signed_by("Canonical")
NVIDIA_FS = module_bytes("nvidia_fs", info=[("version", "2.26.6"), ("gdsdeploy_driver", "580.159.03")])


@pytest.mark.parametrize(
    "text",
    [
        "PACKAGE_NAME=nvidia\nPACKAGE_VERSION=580.95.05\n",
        "PACKAGE_NAME='nvidia'\nPACKAGE_VERSION='580.95.05' # here\n",
        'export PACKAGE_NAME="nvidia";\nPACKAGE_VERSION="580.95.05"',
        'V=580.95.05\nPACKAGE_NAME="nvidia"\nPACKAGE_VERSION="${V}"\n',
        'A="nvi"\nB="${A}dia"\nPACKAGE_NAME="$B"\nPACKAGE_VERSION="580.\\\n95.05"\n',
        '# PACKAGE_NAME="old"\nPACKAGE_NAME="nvidia"\nPACKAGE_NAME="nvidia"\nPACKAGE_VERSION="580.95.05"\n',
        conf("nvidia", "580.95.05", 'unset ARCH\nMAKE[0]="make A=${kernelver}"\nif [ "$x" ]; then\n  D=1\nfi\n'),
    ],
)
def test_what_a_shell_would_have(text: str) -> None:
    assert parse(PATH, text).dkms_name == "nvidia"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "PACKAGE_NAME is not set"),
        ('PACKAGE_NAME="nvidia"\n', "PACKAGE_VERSION is not set"),
        (conf("#MODULE_NAME#", "580.95.05"), "is '#MODULE_NAME#'"),
        (conf("nvidia", "#MODULE_VERSION#"), "is '#MODULE_VERSION#'"),
        (conf("nvidia", "@PACKAGE_VERSION@"), "is '@PACKAGE_VERSION@'"),
        (conf("nvidia", "__VERSION_STRING"), "is '__VERSION_STRING'"),
        (conf("nvidia-$kernelver", "580.95.05"), "kernelver is not set"),
        (conf("$(echo nvidia)", "580.95.05"), "which is no name"),
        (conf("`echo nvidia`", "580.95.05"), "which is no name"),
        (conf("../nvidia", "580.95.05"), "which is no name"),
        (conf("nvidia; reboot", "580.95.05"), "which is no name"),
        (conf("nvidia", "580.95.05") + 'PACKAGE_NAME="other"\n', "more than plain assignments"),
        (conf("nvidia", "580.95.05") + 'PACKAGE_NAME+="x"\n', "more than plain assignments"),
        (conf("nvidia", "580.95.05") + ' [ -e /x ] && PACKAGE_NAME="x"\n', "more than plain assignments"),
        (conf("nvidia", "580.95.05") + 'X="#"; PACKAGE_NAME="x"\n', "more than plain assignments"),
        ("if true; then\n  PACKAGE_NAME=nvidia\nfi\nPACKAGE_VERSION=580.95.05\n", "more than plain assignments"),
        (conf("$PACKAGE_NAME", "580.95.05"), "more than plain assignments"),
        (conf("nvidia", "580.95.06"), "DKMS looks for nvidia 580.95.06 in /usr/src/nvidia-580.95.06"),
        (conf("nvidia-srv", "580.95.05"), "DKMS looks for nvidia-srv"),
    ],
)
def test_what_only_a_host_can_tell_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("$", r"\$").replace("(", r"\(")):
        parse(PATH, text)


class Site:
    """A repository in a folder, and what was read of it."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "repository"
        self.root.mkdir()
        self.steps: list[str] = []
        self.fetcher = Fetcher(tmp_path / "cache", apt={})
        index = Index.model_construct(repository="cuda", suite="/", uri=self.root.as_uri())
        reader = PackageReader(self.fetcher, [index], self.step)
        self.sources, self.modules = reader.source_tree, reader.modules

    def step(self, title: str) -> nullcontext[None]:
        self.steps.append(title)
        return nullcontext()

    def package(self, name: str, content: bytes | dict[str, bytes], part: str = "driver-source") -> Package:
        """A package of the repository; content: of the file, or of the files in it."""
        content = content if isinstance(content, bytes) else deb({f"./{path}": c for path, c in content.items()})
        (self.root / f"{name}.deb").write_bytes(content)
        return Package.model_construct(
            package=name, version="1-1", part=part, repository="cuda", suite="/", file=f"{name}.deb",
            size=len(content), sha256=hashlib.sha256(content).hexdigest(),
        )  # fmt: skip

    def built(self, *files: tuple[str, bytes], part: str = "driver-modules") -> Package:
        """A package with these files below the kernel's folder of modules."""
        content = {f"lib/modules/{RELEASE}/{path}": data for path, data in files}
        return self.package("linux-modules-nvidia", content, part)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


TREE = deb({f"./{PATH}": conf("nvidia", "580.95.05").encode()})
EMPTY = deb({"./usr/share/doc/a": b""})


def test_the_tree_may_be_in_any_package_of_the_part(site: Site) -> None:
    packages = [site.package("nvidia-dkms-580", EMPTY), site.package("nvidia-kernel-source-580", TREE)]
    packages.append(site.package("nvidia-fs-dkms", deb({}), "nvidia-fs-source"))
    assert site.sources("driver-source", packages) == SourceTree("/usr/src/nvidia-580.95.05", "nvidia", "580.95.05")
    assert site.steps == ["Reading nvidia-dkms-580 1-1", "Reading nvidia-kernel-source-580 1-1"]


def test_a_package_is_read_once(site: Site) -> None:
    packages = [site.package("nvidia-dkms-580", TREE)]
    first = site.sources("driver-source", packages)
    (site.root / "nvidia-dkms-580.deb").unlink()
    for path in site.fetcher.cache.glob("??/*"):
        path.unlink()
    assert site.sources("driver-source", packages) == first
    assert len(site.steps) == 1


@pytest.mark.parametrize("memory", ["", "[]", '{"a": 1}', '{"etc/passwd": "x"}', "[" * 100_000])
def test_a_damaged_memory_is_not_believed(site: Site, memory: str) -> None:
    packages = [site.package("nvidia-dkms-580", TREE)]
    site.sources("driver-source", packages)
    (site.fetcher.cache / "dkms" / f"{packages[0].sha256}.json").write_text(memory)
    assert site.sources("driver-source", packages).dkms_name == "nvidia"
    assert len(site.steps) == 2


def test_a_package_that_cannot_be_read_is_named(site: Site) -> None:
    for content, reason in ((b"!<arch>\n", "damaged"), (deb({f"./{PATH}": b"x"}), "PACKAGE_NAME is not set")):
        with pytest.raises(RepositoryUnusable, match=r"nvidia-dkms-580 1-1 \(cuda\): .*" + reason) as caught:
            site.sources("driver-source", [site.package("nvidia-dkms-580", content)])
        assert caught.value.hint


def test_none_and_several_trees_are_refused(site: Site) -> None:
    with pytest.raises(RepositoryUnusable, match=r"nvidia-dkms-580 1-1 has no /usr/src/…/dkms\.conf"):
        site.sources("driver-source", [site.package("nvidia-dkms-580", EMPTY)])
    other = deb({"./usr/src/nvidia-srv-1.2/dkms.conf": conf("nvidia-srv", "1.2").encode()})
    packages = [site.package("a", TREE), site.package("b", other)]
    with pytest.raises(RepositoryUnusable, match=r"several source trees: /usr/src/nvidia-580.95.05, /usr/src/nvidia-s"):
        site.sources("driver-source", packages)


def test_another_content_than_the_indexs_is_refused(site: Site) -> None:
    package = site.package("nvidia-dkms-580", TREE)
    modules = site.built(("kernel/nvidia.ko", NVIDIA))
    for each in (package, modules):
        flip(site.root / each.file, -1)
    for read in (lambda: site.sources("driver-source", [package]), lambda: site.modules([modules])):
        with pytest.raises(RepositoryUntrusted, match="not the file that the signed index names"):
            read()


def test_a_file_that_is_gone_is_named(site: Site) -> None:
    package = site.package("nvidia-dkms-580", TREE)
    (site.root / "nvidia-dkms-580.deb").unlink()
    with pytest.raises(RepositoryUnusable, match="nvidia-dkms-580 1-1"):
        site.sources("driver-source", [package])


# -- Modules that are built already.


@pytest.mark.parametrize("folder", ["lib/modules", "usr/lib/modules"])
def test_each_module_says_what_it_is(site: Site, folder: str) -> None:
    packed = gzip.compress(NVIDIA, mtime=0)
    files = {
        f"{folder}/{RELEASE}/kernel/nvidia-580-open/nvidia.ko.gz": packed,
        f"{folder}/{RELEASE}/kernel/fs/nvidia-fs.ko": NVIDIA_FS,
        "usr/share/doc/x/nvidia.ko": b"no module of a kernel",
    }
    package = site.package("linux-modules-nvidia", files, "driver-modules")
    nvidia_fs, nvidia = site.modules([package, site.package("other", files, "support")])
    assert (nvidia.module, nvidia.version, nvidia.license, nvidia.release) == (
        "nvidia", "580.159.03", "Dual MIT/GPL", RELEASE,
    )  # fmt: skip
    assert nvidia.file == "kernel/nvidia-580-open/nvidia.ko.gz"
    assert nvidia.sha256 == hashlib.sha256(packed).hexdigest(), "of the file as it is installed"
    assert "Canonical" in nvidia.signer
    assert (nvidia_fs.module, nvidia_fs.version, nvidia_fs.driver, nvidia_fs.signer) == (
        "nvidia_fs", "2.26.6", "580.159.03", "",
    )  # fmt: skip
    assert nvidia_fs.vermagic == VERMAGIC


def test_a_package_of_modules_is_read_once(site: Site) -> None:
    package = site.built(("kernel/nvidia.ko", NVIDIA))
    first = site.modules([package])
    assert site.modules([package]) == first
    assert site.steps == [f"Reading {package.package} 1-1"]
    (memory,) = (site.fetcher.cache / "modules-in-packages").iterdir()
    memory.write_text('[{"module": 1}]')
    assert site.modules([package]) == first
    assert len(site.steps) == 2, "what is not as it was written counts for nothing"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("kernel/nvidia-580/bits/BUILD", b"", "it has no kernel modules: they may be linked on each host"),
        *(("kernel/nvidia.ko", content, r"1 \(cuda\): its modules can't be read: /lib/modules/.*/nvidia\.ko")
          for content in (NVIDIA[:200], b"", b"\x7fELF" + b"x" * 100)),
    ],
)  # fmt: skip
def test_a_package_without_good_modules_is_named(site: Site, file: str, content: bytes, words: str) -> None:
    with pytest.raises(RepositoryUnusable, match=words) as error:
        site.modules([site.built((file, content))])
    assert "`modules: build`" in str(error.value.hint)
