"""Drifts of a Debian host; runs there: ``python3 drifts_apt.py COUNT SEED`` prints a report.

``/srv/drift`` has the zipapp, the desired state and the packages, of which the host's repository has only some.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from drifts import (
    ADAPTS,
    REFUSED,
    REPAIRED,
    STAYS,
    UNKNOWN,
    Drift,
    Program,
    Rounds,
    Watch,
    append,
    clear,
    dealt,
    foreign,
    of_file,
    of_folder,
    output,
    put_aside,
    put_back,
)

FOLDER = Path("/srv/drift")
UNITS = ("gds-gate.service", "gds-peermem.service")
SYSTEM = Path("/etc/systemd/system")
HOLDS, INSTALLED = Path("/var/lib/gdsdeploy/held"), Path("/var/lib/gdsdeploy/installed")
SOURCES = Path("/etc/apt/sources.list.d")
#: A dependency of the distribution's, which a removal leaves to apt's autoremove.
STAY = ("drift-common",)
#: Of the stack: those that the lock has, each in version 2.
LOCKED = ("drift-driver", "drift-kernel", "drift-cufile")


def packages() -> dict[str, tuple[str, bool]]:
    """By dpkg: the version, with its state where that isn't installed, and whether it is held."""
    listing = output("dpkg-query", "-W", "-f", "${Package} ${Version} ${db:Status-Want} ${db:Status-Status}\n")
    versions = {}
    for line in listing.splitlines():
        name, *version, want, state = line.split(" ")
        text = " ".join(version) + ("" if state == "installed" else f" {state}")
        versions[name] = ("" if state == "not-installed" else text.strip(), want == "hold")
    return versions


def watch() -> Watch:
    return Watch(packages, UNITS)


def dpkg(*words: str, ok: tuple[int, ...] = (0,)) -> None:
    output("dpkg", "--force-hold", "--force-depends", "--force-downgrade", *words, ok=ok)


def deb(name: str, version: int) -> str:
    return str(FOLDER / f"debs/{name}_{version}_all.deb")


def of_package(name: str) -> list[Drift]:
    """Everything that happens to a locked package."""
    subjects = (f"packages/{name}",)

    def then(*steps: Callable[[], object]) -> Callable[[], None]:
        def make() -> None:
            for step in steps:
                step()

        return make

    def unhold() -> None:
        output("apt-mark", "unhold", name)

    def fails(event: str, how: str) -> Callable[[], object]:
        return lambda: Path(f"/{name}.{event}").write_text(how)

    def with_version(version: int) -> Callable[[], None]:
        return lambda: dpkg("--install", deb(name, version))

    broken = then(fails("preinst", "kill"), lambda: dpkg("--install", deb(name, 3), ok=(-9,)))
    return [
        Drift(f"unhold {name}", subjects, unhold),
        Drift(f"remove {name}", subjects, lambda: dpkg("--remove", name)),
        Drift(f"purge {name}", subjects, lambda: dpkg("--purge", name)),
        Drift(f"upgrade {name}", subjects, with_version(3)),
        Drift(f"downgrade {name}", subjects, with_version(1)),
        Drift(f"unhold and upgrade {name}", subjects, then(unhold, with_version(3))),
        Drift(f"unhold and downgrade {name}", subjects, then(unhold, with_version(1))),
        Drift(f"unpack {name}", subjects, lambda: dpkg("--unpack", deb(name, 2))),
        Drift(f"unpack another {name}", subjects, lambda: dpkg("--unpack", deb(name, 3))),
        Drift(
            f"half-configure {name}",
            subjects,
            then(fails("postinst", "fail"), lambda: dpkg("--install", deb(name, 2), ok=(1,))),
        ),
        Drift(
            f"half-configure another {name}",
            subjects,
            then(fails("postinst", "fail"), lambda: dpkg("--install", deb(name, 1), ok=(1,))),
        ),
        Drift(f"select to go {name}", subjects, lambda: select(name, "deinstall")),
        # It comes back only while apt knows what its repositories offer.
        Drift(f"half-install {name}", (*subjects, "/etc/apt"), broken),
    ]


def select(name: str, want: str) -> None:
    output("sh", "-c", f"echo {name} {want} | dpkg --set-selections")


def of_packages() -> list[Drift]:
    """What happens to several at once, to packages of others, and to our records of them."""
    every = ("packages",)

    def along() -> None:
        dpkg("--install", deb("drift-driver", 3), deb("drift-tools", 3))

    def source() -> None:
        dpkg("--install", deb("drift-driver", 1), deb("drift-source", 1))

    def obsolete() -> None:
        dpkg("--install", deb("drift-old", 1))
        output("apt-mark", "hold", "drift-old")
        append(HOLDS, b"drift-old\n")
        dpkg("--purge", "drift-cufile")

    def forgotten() -> None:
        shutil.copy2(HOLDS, FOLDER / "held")
        HOLDS.write_text("drift-cufile\n")

    def remember() -> None:
        shutil.copy2(FOLDER / "held", HOLDS)

    def left_unpacked() -> None:
        dpkg("--unpack", deb("drift-foreign", 1))
        dpkg("--purge", "drift-cufile")

    def remove_packages(name: str) -> Callable[[], None]:
        return lambda: dpkg("--purge", name)

    foreigner = ("drift-foreign",)
    return [
        Drift("tools along", every, along, STAYS, remove_packages("drift-tools"), packages=("drift-tools",)),
        Drift("a source that leaves", every, source),
        Drift("an obsolete hold", every, obsolete, STAYS, remove_packages("drift-old"), packages=("drift-old",)),
        Drift("no dependency", every, lambda: dpkg("--purge", "drift-driver", "drift-common")),
        Drift("no package", every, lambda: dpkg("--purge", *LOCKED, "drift-common")),
        Drift("no record of holds", every, forgotten, STAYS, remember, own=(str(HOLDS),)),
        Drift("hold of others", ("packages/dash",), lambda: hold("dash"), STAYS, lambda: unhold("dash"), (), ("dash",)),
        Drift(
            "package of others", ("packages/drift-foreign",), lambda: dpkg("--install", deb("drift-foreign", 1)), STAYS,
            remove_packages("drift-foreign"), (), foreigner,
        ),
        Drift("unpacked of others", every, left_unpacked, STAYS, remove_packages("drift-foreign"), (), foreigner),
    ]  # fmt: skip


def hold(name: str) -> None:
    output("apt-mark", "hold", name)


def unhold(name: str) -> None:
    output("apt-mark", "unhold", name)


def of_unit(unit: str) -> list[Drift]:
    """Everything that happens to the links of a unit, its mask, and what others have it do."""
    path = SYSTEM / unit
    subjects = (f"units/{unit}", str(path))
    override = SYSTEM / f"{unit}.d"

    def links() -> list[Path]:
        return [link for kind in ("wants", "requires") for link in SYSTEM.glob(f"*.{kind}/{unit}")]

    def unlink_all() -> None:
        for link in links():
            link.unlink()

    def elsewhere() -> None:
        folder = SYSTEM / "multi-user.target.requires"
        folder.mkdir(exist_ok=True)
        (folder / unit).symlink_to(path)

    def mask() -> None:
        put_aside(path)
        path.symlink_to("/dev/null")

    def overridden() -> None:
        override.mkdir()
        (override / "other.conf").write_text("[Unit]\nDescription=of another program\n")

    def restore() -> None:
        put_back(path)
        output("systemctl", "daemon-reload")

    return [
        Drift(f"disable {unit}", subjects, lambda: (output("systemctl", "disable", unit), None)[1]),
        Drift(f"unlink {unit}", subjects, lambda: min(links()).unlink()),
        Drift(f"unlink everywhere {unit}", subjects, unlink_all),
        Drift(f"link elsewhere {unit}", subjects, elsewhere),
        Drift(f"mask {unit}", subjects, mask, REFUSED, restore),
        Drift(f"override {unit}", subjects, overridden, ADAPTS, lambda: clear(override), (str(override),)),
    ]


def of_apt() -> list[Drift]:
    """What happens to apt's sources and lists."""
    subjects = ("apt",)
    ours, other = SOURCES / "gdsdeploy.sources", SOURCES / "other.sources"

    def had_already() -> None:
        other.write_text(ours.read_text().partition("\n")[2])

    def damage() -> None:
        (SOURCES / "malformed.list").write_text("deb\n")

    return [
        Drift(
            "the host's own entry",
            (*subjects, str(ours)),
            had_already,
            ADAPTS,
            other.unlink,
            (str(SOURCES), "/etc/apt/preferences.d"),
        ),
        Drift("no lists", subjects, lambda: clear_lists()),
        Drift("a malformed entry", subjects, damage, UNKNOWN, (SOURCES / "malformed.list").unlink),
        foreign(f"{SOURCES}/disabled.sources", "Enabled: no\nTypes: deb\nURIs: http://none.example\nSuites: x\n"),
        foreign("/etc/apt/preferences.d/other.pref", "Package: none\nPin: version 1\nPin-Priority: 1\n"),
    ]


def clear_lists() -> None:
    for file in Path("/var/lib/apt/lists").glob("*_*"):
        file.unlink()


def catalogue(written: list[str]) -> list[Drift]:
    """All drifts of a host on which these files and folders are managed."""
    drifts: list[Drift] = []
    for name in sorted(set(written)):
        path = Path(name)
        if path.is_dir():
            drifts += of_folder(name, removable=name != "/var/lib/gdsdeploy")
        else:
            listed = of_file(name, follows=ADAPTS if name.endswith(".service") else STAYS)
            # apt itself starts no more with a configuration that it can't read.
            unreadable = (f"truncated {name}", f"link elsewhere {name}") if "/apt.conf.d/" in name else ()
            drifts += [drift for drift in listed if drift.name not in unreadable]
    for name in LOCKED:
        drifts += of_package(name)
    for unit in UNITS:
        drifts += of_unit(unit)
    slurm = Path("/usr/lib/gdsdeploy/slurm-health")
    initrd = next(Path("/boot").glob("initrd.img-*"))
    return [
        *drifts,
        *of_packages(),
        *of_apt(),
        Drift("slurm's program", (str(slurm),), lambda: append_new(slurm), REPAIRED),
        Drift("no initramfs", ("/etc/modprobe.d", str(initrd)), lambda: put_aside(initrd), STAYS,
              lambda: put_back(initrd), (str(initrd),)),
        foreign("/etc/modprobe.d/other.conf", "options none a=1\n"),
        foreign("/etc/modules-load.d/other.conf", "# none\n"),
        foreign("/etc/kernel/postinst.d/other", "#!/bin/sh\n"),
        foreign("/etc/gdsdeploy/other.json", "{}\n"),
        foreign("/usr/lib/gdsdeploy/other", "other\n"),
        foreign("/var/lib/gdsdeploy/other", "other\n"),
        foreign("/var/log/cufile/other.log", "other\n"),
        foreign("/etc/tmpfiles.d/other.conf", "d /var/log/cufile 1777 root root\n"),
    ]  # fmt: skip


def append_new(path: Path) -> None:
    path.write_text("#!/bin/sh\n")


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    document = json.loads((FOLDER / "desired.json").read_text())
    rounds = Rounds(Program(str(FOLDER / "gdsdeploy-host.pyz")), watch(), document)
    for drifts in dealt(catalogue(rounds.begin()), count, seed):
        rounds.play(drifts)
    print(json.dumps(rounds.report()))  # noqa: T201


if __name__ == "__main__":
    main()
