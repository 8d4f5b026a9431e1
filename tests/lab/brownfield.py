"""Hosts as administrators have left them, for each family: what is on them, what stops a provision, and the way out.

The packages of an older driver and of prebuilt modules have no content, and the run file's uninstaller knows only what
is made here.  Their names, relations and places are the vendors'.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gdslab.kit import cuda, deb, elversions, rpm, sign, ubuntu
from gdslab.kit.deb import Deb
from gdslab.kit.rpm import Rpm

#: The driver that hosts have, of the lock's branch.
OLD = "550.90.07"
#: The folder of the administrator's own repository on each host, which has the packages of that driver.
SITE = "/srv/site"
#: A package in it, which an administrator installs later; it needs the older of the lab's two libcufiles.
TOOL = "site-tool"
_CUFILE = '{\n  // by hand\n  "logging": {"level": "INFO"},\n  "properties": {"allow_compat_mode": true}\n}\n'
#: What a run file leaves, with an uninstaller for it; ``@LIBRARIES@``: the folder of libraries.
_RUN_FILE = f"""
set -eu
for library in libcuda libnvidia-ml; do
    cp {SITE}/$library.so @LIBRARIES@/$library.so.{OLD}
    ln -s $library.so.{OLD} @LIBRARIES@/$library.so.1
done
cat >/usr/bin/nvidia-uninstall <<'END'
#!/bin/sh
rm -f @LIBRARIES@/libcuda.so.{OLD} @LIBRARIES@/libnvidia-ml.so.{OLD} @LIBRARIES@/libcuda.so.1 \\
    @LIBRARIES@/libnvidia-ml.so.1 /usr/bin/nvidia-uninstall
ldconfig
END
chmod 755 /usr/bin/nvidia-uninstall
ldconfig
"""
#: A tree that an administrator has given to DKMS, which builds it for each new kernel.
_BY_HAND = """
mkdir -p /usr/src/nvidia-fs-2.17
printf '%s\\n' 'PACKAGE_NAME="nvidia-fs"' 'PACKAGE_VERSION="2.17"' 'BUILT_MODULE_NAME[0]="nvidia-fs"' \\
    'DEST_MODULE_LOCATION[0]="/updates/dkms"' 'AUTOINSTALL="yes"' >/usr/src/nvidia-fs-2.17/dkms.conf
dkms add nvidia-fs/2.17
"""
_WITHOUT_TREE = "dkms remove nvidia-fs/2.17 --all && rm -r /usr/src/nvidia-fs-2.17"


@dataclass(frozen=True)
class Start:
    """A host as it is before gdsdeploy.

    script: makes it.  foreign: kinds that the plan names.  refusals: their ids.  leaving: packages that it refuses to
    remove.  way_out: what the administrator then runs there.  lost: patterns of lines of a snapshot that neither
    `remove` nor a rollback can bring back.
    """

    script: str
    foreign: frozenset[str] = frozenset()
    refusals: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    way_out: str = ""
    lost: str = "nothing"


@dataclass(frozen=True)
class Family:
    """What is specific to a family.

    starts: by host.  adopted: what `lock --adopt` takes of node1.  removes: the profile's list.  install: the command
    that installs a package.
    """

    starts: Mapping[str, Start]
    adopted: frozenset[str]
    removes: tuple[str, ...]
    install: str


# Ubuntu


def _apt(*packages: str, then: str = "") -> str:
    install = "DEBIAN_FRONTEND=noninteractive apt-get -qq --no-install-recommends install"
    return f"set -eu\napt-get -qq update\n{install} {' '.join(packages)}\n{then}"


_KERNEL = ubuntu.RELEASES["ubuntu-24.04"].release
_FULL, _EXACT = f"{OLD}-0ubuntu1", f"(= {OLD}-0ubuntu1)"
_PREBUILT = f"linux-modules-nvidia-550-open-{_KERNEL}"
_UBUNTU = Family(
    {
        "node1": Start(
            _apt("nvidia-open", then="apt-mark hold libnvidia-encode-550"),
            foreign=frozenset({"driver-packages"}),
            refusals=frozenset({"removals", "held"}),
            leaving=frozenset({"nvidia-open", "nvidia-driver-550-open", "libnvidia-encode-550", "libnvidia-gl-550"}),
        ),
        "node2": Start(
            _apt("dkms", then=_BY_HAND) + _RUN_FILE.replace("@LIBRARIES@", "/usr/lib/x86_64-linux-gnu"),
            foreign=frozenset({"dkms-by-hand", "runfile-driver", "library-without-package"}),
            refusals=frozenset({"foreign.dkms-by-hand", "foreign.runfile-driver", "foreign.library-without-package"}),
            way_out=f"{_WITHOUT_TREE} && /usr/bin/nvidia-uninstall --silent",
        ),
        "node3": Start(
            _apt(
                *("libnvidia-compute-550", "libnvidia-gl-550", _PREBUILT),
                then=f"apt-mark hold libnvidia-compute-550\n"
                f"printf '%s\\n' 'Package: libnvidia-compute-550' 'Pin: version {OLD}*' 'Pin-Priority: 1001'"
                f" >/etc/apt/preferences.d/00-a-site.pref\ncat >/etc/cufile.json <<'END'\n{_CUFILE}END\n",
            ),
            foreign=frozenset({"hold", "pin", "cufile-json", "prebuilt-modules", "driver-packages"}),
            refusals=frozenset({"foreign.pin", "removals"}),
            leaving=frozenset({_PREBUILT, "libnvidia-gl-550"}),
            way_out="rm /etc/apt/preferences.d/00-a-site.pref",
        ),
        "node4": Start(
            # The build of its modules fails, and dpkg leaves it half-configured.
            _apt("dkms", "nvidia-dkms-550-open=550.54.15-0ubuntu1").replace("set -eu", "set -u") + "dpkg --audit",
            lost="(package iF|manual) nvidia-dkms-550-open.*",
        ),
    },
    adopted=frozenset({"libnvidia-encode-550"}),
    removes=("nvidia-open", "nvidia-driver-550-open", "libnvidia-gl-550", "linux-modules-nvidia-*", TOOL),
    install="apt-get -qq install",
)


def _debs() -> list[Deb]:
    def old(name: str, *needs: str, **fields: str) -> Deb:
        return Deb(
            name, _FULL,
            fields={"Source": "nvidia-graphics-drivers-550", "Depends": ", ".join(needs), **fields},
            texts={f"/usr/share/doc/{name}/copyright": f"{name} {OLD}\n"},
        )  # fmt: skip

    def alone(name: str) -> dict[str, str]:
        return dict.fromkeys(("Provides", "Conflicts"), name)

    dkms = old(
        "nvidia-dkms-550-open", "dkms", f"nvidia-kernel-source-550-open {_EXACT}",
        f"nvidia-kernel-common-550 {_EXACT}", **alone("nvidia-dkms-kernel"),
    )  # fmt: skip
    return [
        old("nvidia-open", f"nvidia-driver-550-open {_EXACT}"),
        old("nvidia-driver-550-open", *(f"{name} {_EXACT}" for name in (
            "nvidia-dkms-550-open", "libnvidia-compute-550", "libnvidia-encode-550", "libnvidia-gl-550",
            "nvidia-utils-550",
        ))),
        dkms,
        Deb(
            dkms.name, "550.54.15-0ubuntu1", fields={**dkms.fields, "Depends": "dkms"},
            scripts={"postinst": "#!/bin/sh\necho 'Error! Bad return status for module build' >&2\nexit 10\n"},
        ),
        old("nvidia-kernel-source-550-open", **alone("nvidia-kernel-source")),
        old("nvidia-kernel-common-550", **alone("nvidia-kernel-common")),
        old("libnvidia-compute-550", "libc6", Provides="libcuda.so.1, libcuda1"),
        *(old(name, f"libnvidia-compute-550 {_EXACT}") for name in (
            "libnvidia-encode-550", "libnvidia-gl-550", "nvidia-utils-550",
        )),
        Deb(
            TOOL, "1", fields={"Depends": f"libcufile-12-4 (= {min(cuda.LIBCUFILE)}-1)"},
        ),
        Deb(
            _PREBUILT, f"{ubuntu.RELEASES['ubuntu-24.04'].kernel}+1",
            fields={"Depends": f"nvidia-kernel-common-550 (<= {OLD}-1), nvidia-kernel-common-550 (>= {OLD})"},
            texts={f"/usr/share/doc/{_PREBUILT}/copyright": "prebuilt\n"},
        ),
    ]  # fmt: skip


# The RHEL family


def _dnf(*packages: str, then: str = "") -> str:
    return f"set -eu\ndnf -q -y install {' '.join(packages)}\n{then}"


_RELEASE = elversions.RELEASES[9]
_EPOCH = f"3:{OLD}-1.{_RELEASE.tag}"
_KMOD = f"kmod-nvidia-open-{OLD}-{_RELEASE.kernel.partition('.el9')[0]}"
_EL = Family(
    {
        "node1": Start(
            _dnf("nvidia-open", "nvidia-driver-NVML"),
            foreign=frozenset({"driver-packages"}),
            refusals=frozenset({"removals"}),
            leaving=frozenset({"nvidia-open", "nvidia-driver-NVML"}),
        ),
        "node2": Start(
            _RUN_FILE.replace("@LIBRARIES@", "/usr/lib64")
            + "sed -i '/^exclude=/d' /etc/dnf/dnf.conf\n"
            + "echo 'exclude=nvidia-driver* kmod-nvidia*' >>/etc/dnf/dnf.conf\n"
            + f"cat >/etc/cufile.json <<'END'\n{_CUFILE}END\n",
            foreign=frozenset({"runfile-driver", "library-without-package", "exclude", "cufile-json"}),
            refusals=frozenset({"foreign.runfile-driver", "foreign.library-without-package", "foreign.exclude"}),
            way_out="/usr/bin/nvidia-uninstall --silent && sed -i '/^exclude=/d' /etc/dnf/dnf.conf",
        ),
        "node3": Start(
            # Another provider of nvidia-kmod replaces it.
            _dnf(_KMOD),
            foreign=frozenset({"prebuilt-modules"}),
        ),
    },
    adopted=frozenset({"nvidia-open"}),
    removes=("nvidia-driver-NVML", TOOL),
    install="dnf -q -y install",
)


def _rpms(folder: Path) -> list[Rpm]:
    def old(name: str, *requires: str, arch: str = rpm.ARCHITECTURE, **relations: tuple[str, ...]) -> Rpm:
        tree = folder / name
        (tree / "usr/share" / name).mkdir(parents=True)
        (tree / "usr/share" / name / "version").write_text(f"{OLD}\n")
        return Rpm(name, _EPOCH, arch, requires=requires, tree=tree, **relations)

    kmod = f"nvidia-kmod = 3:{OLD}"
    return [
        old("nvidia-open", f"nvidia-driver-cuda = {_EPOCH}", f"kmod-nvidia-open-dkms = {_EPOCH}", arch="noarch"),
        old("nvidia-driver-cuda", f"nvidia-driver-cuda-libs = 3:{OLD}", f"nvidia-kmod-common = 3:{OLD}"),
        old("nvidia-driver-cuda-libs", provides=("libcuda.so.1()(64bit)",)),
        old("nvidia-driver-NVML", f"nvidia-driver-cuda-libs = {_EPOCH}"),
        old("nvidia-kmod-common", kmod, arch="noarch"),
        old(
            "kmod-nvidia-open-dkms", f"nvidia-kmod-common = 3:{OLD}", arch="noarch", provides=(kmod,),
            conflicts=("kmod-nvidia-latest-dkms",),
        ),
        Rpm(TOOL, "1-1", requires=(f"libcufile-12-4 = {min(cuda.LIBCUFILE)}-1",)),
        old(_KMOD, f"nvidia-kmod-common = 3:{OLD}", provides=(kmod,), conflicts=("kmod-nvidia-latest-dkms",)),
    ]  # fmt: skip


OF = {"ubuntu-24.04": _UBUNTU, "rocky-9": _EL}
#: The libraries of the run file, which are empty.
_LIBRARIES = ("libcuda", "libnvidia-ml")


def publish(os: str, folder: Path) -> str:
    """Make the administrator's folder, for SITE on hosts; returns the script that lets a host use its repository."""
    folder.mkdir()
    for library in _LIBRARIES:
        argv = ["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{library}.so.1", "-o", folder / f"{library}.so"]
        subprocess.run([*argv, "-x", "c", "/dev/null"], check=True)
    if os.startswith("ubuntu"):
        with sign.signer("An administrator") as signer:
            repository = deb.Repository(folder, "Site", signer)
            repository.publish_flat(deb.build(_debs(), folder, folder.parent / "build"))
            signer.export(folder / "site.gpg")
        return f"echo 'deb [signed-by={SITE}/site.gpg] file:{SITE} ./' >/etc/apt/sources.list.d/site.list"
    rpm.build(_rpms(folder.parent / "trees"), folder)
    rpm.publish(folder, None)
    return (
        f"printf '%s\\n' '[site]' 'name=site' 'baseurl=file://{SITE}' 'gpgcheck=0' 'module_hotfixes=1'"
        " >/etc/yum.repos.d/site.repo"
    )
