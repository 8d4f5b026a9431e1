"""Drifts of a host with dnf; runs there: ``python3 drifts_dnf.py FOLDER COUNT SEED`` prints a report.

The folder has the zipapp, the desired state, every package, and the versions of each: before the lock, of it, after it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from drifts import STAYS, Drift, Program, Rounds, Watch, dealt, foreign, of_file, of_folder, output

LOCKS = Path("/etc/dnf/plugins/versionlock.list")
MODULES = Path("/etc/dnf/modules.d")
STREAM = MODULES / "drift.module"
STAY = ()


def packages() -> dict[str, tuple[str, bool]]:
    """By rpm; it has no holds."""
    listing = output("rpm", "-qa", "--qf", "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\n")
    pairs = (line.split(" ") for line in listing.splitlines())
    return {name: (version.removeprefix("0:"), False) for name, version in pairs}


def watch() -> Watch:
    return Watch(packages, roots=("/etc", "/var/lib/gdsdeploy"))


def rpm(*words: str) -> None:
    output("rpm", "--nodeps", "--nosignature", *words)


def of_package(name: str, versions: list[str], folder: Path) -> list[Drift]:
    before, _, after = (str(folder / f"rpms/{name}-{version.split(':')[-1]}.x86_64.rpm") for version in versions)
    subjects = (f"packages/{name}",)
    return [
        Drift(f"remove {name}", subjects, lambda: rpm("--erase", name)),
        Drift(f"upgrade {name}", subjects, lambda: rpm("--upgrade", after)),
        Drift(f"downgrade {name}", subjects, lambda: rpm("--upgrade", "--oldpackage", before)),
    ]


def of_locks(folder: Path) -> list[Drift]:
    """The list is shared with others: what they write outside of our marks stays."""
    subjects, own, copy = (str(LOCKS),), (str(LOCKS),), folder / "kept"

    def rewritten(change: Callable[[str], str]) -> Callable[[], None]:
        def make() -> None:
            shutil.copy2(LOCKS, copy)
            LOCKS.write_text(change(LOCKS.read_text()))

        return make

    def others() -> None:
        shutil.copy2(copy, LOCKS)

    def remove() -> None:
        shutil.copy2(LOCKS, copy)
        LOCKS.unlink()

    first, moved = "drift-driver-3:2-1.*", "drift-driver-3:9-1.*"
    return [
        Drift("another version in our locks", subjects, rewritten(lambda text: text.replace(first, moved))),
        Drift("a lock less", subjects, rewritten(lambda text: text.replace(f"{first}\n", ""))),
        Drift("a lock more", subjects, rewritten(lambda text: text.replace(first, f"{first}\nother-0:1-1.*"))),
        Drift("no locks of ours", subjects, rewritten(lambda text: text.partition("# BEGIN")[0])),
        Drift("a lock of others", subjects, rewritten(lambda text: f"{text}other-0:1-1.*\n"), STAYS, others, own),
        Drift("other locks of others", subjects, rewritten(lambda text: text.replace("ht", "x")), STAYS, others, own),
        Drift("no locks at all", subjects, remove, STAYS, others, own),
        Drift("empty locks", subjects, rewritten(lambda _: ""), STAYS, others, own),
        Drift("chmod 0600 locks", subjects, lambda: LOCKS.chmod(0o600), STAYS, lambda: LOCKS.chmod(0o644), own),
    ]  # fmt: skip


def of_stream() -> list[Drift]:
    subjects = (str(STREAM),)

    def state(stream: str, word: str) -> None:
        STREAM.write_text(f"[drift]\nname=drift\nstream={stream}\nprofiles=\nstate={word}\n")

    return [
        Drift("another stream", subjects, lambda: state("other", "enabled")),
        Drift("disabled stream", subjects, lambda: state("", "disabled")),
        Drift("no stream", subjects, STREAM.unlink),
        Drift("another stream by dnf", subjects, switch),
    ]


def switch() -> None:
    for words in (("reset", "drift"), ("enable", "drift:other")):
        output("dnf", "--quiet", "--assumeyes", "module", *words)


def catalogue(written: list[str], folder: Path) -> list[Drift]:
    drifts: list[Drift] = []
    for name in sorted(set(written) - {str(LOCKS)}):
        drifts += of_folder(name) if Path(name).is_dir() else of_file(name)
    for package, versions in json.loads((folder / "versions.json").read_text()).items():
        drifts += of_package(package, versions, folder)
    drifts += [
        *of_locks(folder),
        *of_stream(),
        foreign("/etc/yum.repos.d/other.repo", "[other]\nname=other\nbaseurl=http://none.example\nenabled=0\n"),
        foreign(f"{MODULES}/other.module", "[other]\nname=other\nstream=1\nprofiles=\nstate=enabled\n"),
        foreign("/etc/pki/rpm-gpg/RPM-GPG-KEY-other", "none\n"),
    ]
    # The namespace has only one user, so no other user can own a file.
    # A folder of the system's that is there keeps its mode.
    return [drift for drift in drifts if not drift.name.startswith(("chown", "chmod 0700 /etc/pki/rpm-gpg"))]


def main() -> None:
    folder, count, seed, *only = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    os.environ["LC_ALL"] = "C.UTF-8"
    document = json.loads((folder / "desired.json").read_text())
    rounds = Rounds(Program(str(folder / "gdsdeploy-host.pyz")), watch(), document)
    available = catalogue(rounds.begin(), folder)
    chosen = [drift for drift in available if not only or any(word in drift.name for word in only)]
    for drifts in dealt(chosen, count, seed):
        rounds.play(drifts)
    print(json.dumps(rounds.report()))  # noqa: T201


if __name__ == "__main__":
    main()
