"""A host whose last transaction of dnf was interrupted isn't changed: the real rpm and dnf answer."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.pins.inplace import in_place
from tests.pins.test_dnf_pins import plugins
from tests.repos.rpmarchive import Rpm, build

__all__ = ["plugins"]
RPMS = [Rpm("driver", "3:1-1"), Rpm("driver", "3:2-1"), Rpm("kernel", "5-1"), Rpm("kernel", "6-1")]
ASK = """

mkdir -p /etc/dnf
printf '[main]\\ninstallonlypkgs=kernel\\nreleasever=9\\n' >/etc/dnf/dnf.conf
rpm --justdb --nodeps --nosignature --force --install $1
eval "$2"
exec python3 - <<'END'
import json
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages.dnf import Dnf
print(json.dumps([[r.id, r.message, r.hint] for r in Dnf().half_installed(ManagedHost())]))
END
"""


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(RPMS, tmp_path_factory.mktemp("interrupted") / "rpms")


def ask(rpms: Path, home: Path, names: str, damage: str = ":") -> list[list[str]]:
    files = " ".join(str(rpms / f"{name}.x86_64.rpm") for name in names.split())
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "LC_ALL": "C", "HOME": str(home)}
    argv = in_place(ASK, files, damage, over=("etc", "var"), processes=True)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    answer: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_several_kernels_are_no_interruption(rpms: Path, tmp_path: Path) -> None:
    assert ask(rpms, tmp_path, "driver-1-1 kernel-5-1 kernel-6-1") == []


def test_an_old_version_beside_the_new_one_is_refused(rpms: Path, tmp_path: Path) -> None:
    ((name, message, hint),) = ask(rpms, tmp_path, "driver-1-1 driver-2-1 kernel-5-1")
    assert name == "half-installed"
    assert "two versions: driver-3:" in message
    assert "then run: dnf remove --duplicates;" in hint


def test_a_damaged_database_is_refused(rpms: Path, tmp_path: Path) -> None:
    damage = 'dd if=/dev/zero of="$(rpm --eval %_dbpath)/rpmdb.sqlite" bs=512 count=2 conv=notrunc status=none'
    ((name, message, hint),) = ask(rpms, tmp_path, "driver-1-1", damage)
    assert name == "half-installed"
    assert message.startswith("the database of rpm is damaged: ")
    assert "--rebuilddb" in hint
