"""Foreign installs with real files, the real package manager and real mounts; and apt itself decides about pins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host.facts.document import Document
from gdsdeploy.host.subjects.foreign import Locked, findings
from gdsdeploy.host.subjects.foreign_files import ForeignFacts
from tests.unit.host.kmod.kmod_elf import write_module

RELEASE = "9.8.7-foreign"
#: Looks at the machine as this mount namespace has it, and prints the document.
LOOK = f"""
import json
from gdsdeploy.host.subjects import foreign_files, packages
from gdsdeploy.host.evidence.recorder import NOTHING, Recorder
recorder = Recorder()
packages.collect_packages(recorder, NOTHING)
foreign_files.look(recorder, "{RELEASE}")
print(json.dumps(recorder.finish()))
"""
#: Folders of files over this machine's own, for this process and its children alone.
NAMESPACE = """
set -e
for name in usr/lib usr/bin; do
    mkdir -p "$1/upper/$name" "$1/work/$name"
    mount -t overlay overlay -o "lowerdir=$2/$name:/$name,upperdir=$1/upper/$name,workdir=$1/work/$name" "/$name"
done
if [ "$3" ]; then
    mount -t tmpfs tmpfs /run
    mkdir -p "$3"
    mount -t tmpfs tmpfs "$3"
fi
shift 3
exec "$@"
"""
ROOT = Path(__file__).parents[4]


def installs(tmp_path: Path, files: Path, mount: str = "") -> dict[str, Any]:
    """Kind → what is found with ``files`` over those of this machine."""
    for name in ("usr/lib", "usr/bin"):
        (files / name).mkdir(parents=True, exist_ok=True)
    # The overlay's own folders can't lie on another overlay.
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(scratch)], check=True)
    try:
        argv = ["unshare", "--mount", "--propagation", "private", "sh", "-c", NAMESPACE, "sh"]
        argv += [str(scratch), str(files), mount, sys.executable, "-c", LOOK]
        done = subprocess.run(
            argv, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    finally:
        subprocess.run(["umount", str(scratch)], check=True)
    results, unknown = findings(ForeignFacts(Document(json.loads(done.stdout))), Locked(RELEASE))
    assert unknown == ()
    return {install.kind: install for install in results}


def test_a_run_file_s_driver_and_its_module(tmp_path: Path) -> None:
    """dpkg's own lists say that no package has them, and that one has a file beside them."""
    files = tmp_path / "files"
    write_module(files / f"usr/lib/modules/{RELEASE}/kernel/drivers/video/nvidia.ko", "nvidia")
    (files / "usr/bin").mkdir(parents=True)
    (files / "usr/bin/nvidia-uninstall").symlink_to("nvidia-installer")
    results = installs(tmp_path, files)
    assert set(results) == {"runfile-driver", "module-without-record"}
    assert all(install.breaks for install in results.values())
    (trace,) = results["module-without-record"].traces
    assert trace.name == f"/lib/modules/{RELEASE}/kernel/drivers/video/nvidia.ko"


def test_a_machine_as_it_is_has_none(tmp_path: Path) -> None:
    assert installs(tmp_path, tmp_path / "files") == {}


def test_a_driver_container_s_root_is_a_mount_point(tmp_path: Path) -> None:
    results = installs(tmp_path, tmp_path / "files", "/run/nvidia/driver")
    assert set(results) == {"driver-container"}
    assert not results["driver-container"].breaks, "no nvidia is loaded here"


def test_a_mount_beside_it_is_none(tmp_path: Path) -> None:
    assert installs(tmp_path, tmp_path / "files", "/run/nvidia/toolkit") == {}


# apt's own answer about pins

STANZA = "Package: libcufile-12-8\nVersion: {}\nArchitecture: all\nMaintainer: x\nFilename: ./x\nSize: 1\nSHA256: {}\n"
OURS = (
    "Package: libcufile-12-8\nPin: version 1.13.1-1\nPin-Priority: 1001\n\n"
    "Package: libcufile-12-8\nPin: release *\nPin-Priority: -1\n"
)
FIRST, LATER = "preferences", "preferences.d/nvidia.pref"
#: Where a record is, and what it has after the package.
PINS = {
    "forbids everything": (FIRST, "Package: libcufile*\nPin: release *\nPin-Priority: -1"),
    "forbids everything, later": (LATER, "Package: libcufile*\nPin: release *\nPin-Priority: -1"),
    "forbids the version": (FIRST, "Package: libcufile-12-8\nPin: version 1.13*\nPin-Priority: -10"),
    "prefers another": (FIRST, "Package: libcufile-12-8\nPin: version 1.14*\nPin-Priority: 1100"),
    "prefers another as much": (FIRST, "Package: libcufile-12-8\nPin: version 1.14*\nPin-Priority: 1001"),
    "prefers another less": (FIRST, "Package: libcufile-12-8\nPin: version 1.14*\nPin-Priority: 1000"),
    "prefers another, in a file before": (
        "preferences.d/00-aaa", "Package: libcufile-12-8\nPin: version 1.14*\nPin-Priority: 1100"
    ),
    "prefers another, later": (LATER, "Package: libcufile-12-8\nPin: version 1.14*\nPin-Priority: 1100"),
    "a regular expression": (FIRST, "Package: /^libcu/\nPin: version 1.14*\nPin-Priority: 1100"),
    "for everything": (FIRST, "Package: *\nPin: release *\nPin-Priority: -1"),
    "an ending that apt doesn't read": (
        "preferences.d/00-aaa.save", "Package: libcufile-12-8\nPin: version 1.14*\nPin-Priority: 1100"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PINS)
def test_apt_takes_another_version_exactly_where_a_pin_is_said_to_win(name: str, tmp_path: Path) -> None:
    path, record = PINS[name]
    texts = {"preferences.d/00-gdsdeploy.pref": OURS, path: record + "\n"}
    assert (candidate(tmp_path, texts) != "1.13.1-1") is wins(texts)


def candidate(folder: Path, texts: Mapping[str, str]) -> str:
    """The version that the real apt would install."""
    repository = folder / "repository"
    for place in (repository, folder / "etc/preferences.d", folder / "state/lists/partial", folder / "cache"):
        place.mkdir(parents=True)
    versions = ("1.13.1-1", "1.14.0-1")
    (repository / "Packages").write_text("\n".join(STANZA.format(version, "0" * 64) for version in versions))
    (folder / "etc/sources.list").write_text(f"deb [trusted=yes] file:{repository} ./\n")
    (folder / "status").touch()
    for path, text in texts.items():
        (folder / "etc" / path).write_text(text)
    options = {
        "Dir::Etc": folder / "etc", "Dir::State": folder / "state", "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache", "APT::Sandbox::User": "root",
    }  # fmt: skip
    words = [f"--option={name}={value}" for name, value in options.items()]
    subprocess.run(["apt-get", *words, "update"], check=True, capture_output=True)
    shown = subprocess.run(
        ["apt-cache", *words, "policy", "libcufile-12-8"], check=True, capture_output=True, text=True
    )
    return shown.stdout.split("Candidate: ")[1].split()[0]


def wins(texts: Mapping[str, str]) -> bool:
    """What the recognizer says of the same files."""
    folder, names = "/etc/apt/preferences.d", [path.partition("/")[2] for path in texts if "/" in path]
    files = {f"/etc/apt/{path}": text for path, text in texts.items()}
    document = {
        "files": {"/etc/apt/preferences": {"error": "ENOENT"}, **files},
        "listings": {folder: names},
        "commands": {},
    }
    facts = ForeignFacts(Document(document)).but(installed={})
    results, _ = findings(facts, Locked(RELEASE, {"libcufile-12-8": "1.13.1-1"}))
    return any(install.breaks for install in results)
