"""Which filesystems each real libcufile takes files of, and the error that it returns for the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdsdeploy.host.explain.cause import numbers
from gdsdeploy.host.explain.config import registration_error
from tests.cufile import libraries, standin
from tests.loopback.host.odirect.filesystems import inside

#: Makes the mounts without a disk, and udev's records of the disks if asked to; then registers a file on each.
BODY = r"""
library, with_udev, standin = sys.argv[5:8]
os.mkdir("tmpfs")
run("mount", "-t", "tmpfs", "tests", "tmpfs")
for name in ("lower", "upper", "scratch"):
    os.mkdir("ext4/" + name)
os.mkdir("overlay")
layers = "lowerdir=ext4/lower,upperdir=ext4/upper,workdir=ext4/scratch"
run("mount", "-t", "overlay", "overlay", "-o", layers, "overlay")
names = ("ext4", "xfs", "btrfs", "tmpfs", "overlay")
os.makedirs("/run/udev", exist_ok=True)
run("mount", "-t", "tmpfs", "tests", "/run/udev")
if with_udev == "yes":
    os.mkdir("/run/udev/data")
    for name in names:
        number = os.stat(name).st_dev
        with open(f"/run/udev/data/b{os.major(number)}:{os.minor(number)}", "w") as file:
            file.write("E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=%s\n" % name)
os.mkdir("work")
request = {
    "library": library, "standin": standin, "work": os.path.join(folder, "work"),
    "folders": {name: os.path.join(folder, name) for name in names},
}
argv = [sys.executable, "-m", "tests.cufile.register", json.dumps(request)]
done = subprocess.run(argv, capture_output=True, text=True, cwd=sys.argv[1])
answer = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr[-2000:]}
"""


#: Filesystem without a disk of its own → the first release that takes its files.
SINCE = {"tmpfs": "1.16", "overlay": "1.16", "btrfs": "1.17"}
#: Releases on both sides of each change.
CASES = [(version, "yes") for version in ("1.9.1.3", "1.14.1.1", "1.15.1.6", "1.16.1.26", "1.17.1.22", "1.20.0.107")]
CASES += [(version, "no") for version in ("1.14.1.1", "1.20.0.107")]


def measured(folder: Path, version: str, udev: str) -> dict[str, list[int | None]]:
    library = libraries.library(version)
    words = (str(library.path), udev, str(standin.libcuda(library.path)))
    answer: dict[str, list[int | None]] = inside(folder, ["ext4", "xfs", "btrfs"], BODY, *words)
    return answer


@pytest.mark.parametrize(("version", "udev"), CASES)
def test_registration_is_as_the_rules_say(tmp_path: Path, version: str, udev: str) -> None:
    answers = measured(tmp_path, version, udev)
    error = registration_error(version)
    on_disk = 0 if udev == "yes" else error
    expected = {name: [0, 0 if numbers(version) >= numbers(since) else error] for name, since in SINCE.items()}
    assert answers == {"ext4": [0, on_disk], "xfs": [0, on_disk], **expected}, json.dumps(answers)
