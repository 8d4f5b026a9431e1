"""The host program with the real apt and dpkg, above this machine's own folders, in memory.

Packages are real: they depend on each other, and one of them fails to be configured.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.zipapp import hostapp
from tests.lab.empty_packages import DEB, OFFER
from tests.pins.inplace import in_place

#: A private machine's folders, in memory.
_START = r"""
for folder in /srv /run /etc/apt /var/lib/apt /var/cache/apt /var/log /var/tmp; do mount -t tmpfs tmpfs $folder; done
rm -rf /var/lib/gdsdeploy
mkdir -p /srv/stack /run/lock /etc/apt/sources.list.d /etc/apt/preferences.d /etc/apt/apt.conf.d
mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial /var/log/apt
printf 'APT::Sandbox::User "root";\n' >/etc/apt/apt.conf.d/90test
cd /srv/stack
"""
#: A repository of two versions of a stack in /srv, and what scripts call.
MACHINE = r"""
{
    for version in 1 2; do
        deb stack-driver "$version" "Depends: stack-common"
        deb stack-source "$version" "Depends: stack-driver (= $version)"
        deb "stack-library$version" "$version" "Conflicts: stack-library
Provides: stack-library"
        deb stack-decode "$version" "Depends: stack-driver (= $version)"
        deb nvidia-fs-dkms "$version" "Section: misc" "" "grep -q ^nvidia_fs /run/modules || exit 0; rmmod nvidia_fs"
    done
    deb stack-common 1
    deb stack-broken 1 "Section: misc" "test -e /srv/mended"
    deb stack-broken 2
    deb linux-image-stack 1
} >Packages
# As the pins have it: no other version of a package that isn't in the lock.
out_of_the_lock() {
    printf '# Rendered by gdsdeploy\nPackage: %s\nPin: release *\nPin-Priority: -1\n' "$1" \
        >/etc/apt/preferences.d/00-gdsdeploy.pref
}
remove() { python3 "$program" remove --json "$@" || :; echo; }
say() { name=$1; shift; python3 "$program" apply --json --desired "$documents/$name" "$@" || :; echo; }
state() {
    dpkg-query -W -f '${db:Status-Abbrev}|${Package}=${Version}\n' | sed 's/ *|/|/' \
        | grep '|\(stack\|nvidia\|linux-image-stack\)' | tr '\n' ' '; echo
}
"""


def resource(number: int, *names: str) -> list[dict[str, str]]:
    return [{"package": name, "version": str(number)} for name in names]


def packages(**desired: Any) -> dict[str, Any]:
    options = {"manager": "apt", **desired}
    return {"version": 1, "resources": [{"resource": "packages", "instance": "driver", "desired": options}]}


DOCUMENTS = {
    "first": packages(packages=resource(1, "stack-driver", "stack-source", "stack-library1", "linux-image-stack")),
    "second": packages(
        packages=resource(2, "stack-driver", "stack-library2"),
        superseded=resource(2, "stack-source"),
        locked=["stack-driver", "stack-source", "stack-library2"],
    ),
    "back": packages(
        packages=resource(1, "stack-driver", "stack-library1"),
        superseded=[*resource(1, "stack-source"), {"package": "stack-library2", "version": ""}],
        locked=["stack-driver", "stack-source", "stack-library1"],
    ),
    "pins": {
        "version": 1,
        "resources": [
            {
                "resource": "pins",
                "desired": {"manager": "apt", "pins": resource(1, "stack-driver"), "deny": ["nvidia-driver*"]},
            }
        ],
    },
    "fs1": packages(packages=resource(1, "nvidia-fs-dkms")),
    "fs2": packages(packages=resource(2, "nvidia-fs-dkms")),
    "driver2": packages(packages=resource(2, "stack-driver", "stack-library2")),
    "allowed": packages(packages=resource(2, "stack-driver", "stack-library2"), removes=["stack-dec*"]),
    "broken": packages(packages=resource(1, "stack-broken")),
    "restore": {
        "version": 1,
        "resources": [
            {
                "resource": "restore",
                "desired": {"manager": "apt", "step": "remove", "has_record": True, "installed": [], "holds": []},
            }
        ],
    },
    "mended": packages(packages=[*resource(2, "stack-broken"), *resource(1, "stack-common")]),
    "driver": packages(packages=resource(1, "stack-driver")),
    "built2": packages(packages=resource(2, "stack-source")),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("program"), DOCUMENTS)


def pack(folder: Path, documents: Mapping[str, Any]) -> Path:
    """The host program, with the documents beside it."""
    hostapp.build(folder / "gdsdeploy-host.pyz")
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    return folder / "gdsdeploy-host.pyz"


def run(program: Path, script: str, machine: str = MACHINE) -> list[str]:
    """The lines that a script printed on the machine."""
    names = f"program={program}\ndocuments={program.parent}\n"
    argv = in_place(names + _START + DEB + machine + OFFER + script, over=("etc", "var", "usr"), processes=True)
    env = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line]


def changes(line: str) -> list[str]:
    answer = json.loads(line)
    assert answer["error"] is None, answer
    entries = [entry for result in answer["resources"] for entry in result["changes"]]
    assert all(not result.get("unknown") for result in answer["resources"]), answer
    return [" ".join(filter(None, (e["kind"], e["subject"], e["before"], e["after"]))) for e in entries]


def reasons(line: str) -> dict[str, tuple[str, str]]:
    """Name → why it leaves, and by which package."""
    entries = [entry for result in json.loads(line)["resources"] for entry in result["changes"]]
    return {entry["subject"]: (entry["reason"], entry["by"]) for entry in entries if entry["kind"] == "remove"}


def converge(program: Path, *names: str, before: str = "", machine: str = MACHINE) -> tuple[list[str], list[str]]:
    """The changes that the last of these documents made, after the others, and the packages then."""
    script = before + "\n".join(f"say {n} --check; say {n}; say {n} --check; state" for n in names)
    lines = run(program, script, machine)
    for number in range(0, len(lines), 4):
        checked, done, again = map(changes, lines[number : number + 3])
        assert checked == done != []
        assert again == []
    return sorted(changes(lines[-3])), lines[-1].split()


def test_a_fresh_host_gets_what_apt_says_it_will_get(program: Path) -> None:
    names = ["stack-driver", "stack-source", "stack-library1", "linux-image-stack"]
    done, state = converge(program, "first")
    assert done == sorted(
        [*(f"install {name} 1" for name in [*names, "stack-common"]), *(f"hold {name} held" for name in names)]
    )
    assert state == [
        *("hi|linux-image-stack=1", "ii|stack-common=1", "hi|stack-driver=1"),
        *("hi|stack-library1=1", "hi|stack-source=1"),
    ]


def test_another_driver_comes_and_takes_its_place(program: Path) -> None:
    """The kernel before stays, and so does its hold: it may be the one that runs."""
    done, state = converge(program, "first", "second")
    assert done == sorted(
        [
            *("unhold stack-library1 held", "remove stack-library1 1", "remove stack-source 1"),
            *("upgrade stack-driver 1 2", "install stack-library2 2", "hold stack-library2 held"),
        ]
    )
    assert state == ["hi|linux-image-stack=1", "ii|stack-common=1", "hi|stack-driver=2", "hi|stack-library2=2"]


def test_the_driver_before_comes_again(program: Path) -> None:
    done, state = converge(program, "first", "second", "back")
    assert {"downgrade stack-driver 2 1", "remove stack-library2 2", "install stack-library1 1"} <= set(done)
    assert state == ["hi|linux-image-stack=1", "ii|stack-common=1", "hi|stack-driver=1", "hi|stack-library1=1"]


def test_what_was_built_for_this_version_may_stay(program: Path) -> None:
    built, again = run(program, "say second >/dev/null; say built2; say second")
    assert "install stack-source 2" in changes(built)
    assert changes(again) == []


TAKE_BACK = r"""
take_back() {
    PYTHONPATH=$program python3 - "$1" <<'END'
import json, sys
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.host import ManagedHost
host = ManagedHost(check=sys.argv[1] == "check")
print(json.dumps([f"{c.kind} {c.subject}" for c in registry.resource("packages").revert(host)]))
END
}
say first >/dev/null
take_back check; take_back now; take_back now; state; ls /var/lib/gdsdeploy
"""


def test_everything_that_was_installed_goes_again(program: Path) -> None:
    checked, done, again, remains = run(program, TAKE_BACK)
    assert checked == done
    assert "remove stack-driver" in json.loads(done)
    assert json.loads(again) == []
    assert remains == "ii|stack-common=1 ", "what apt installed for others is apt's to remove"


def test_what_cannot_be_configured_is_said_and_finished_the_next_time(program: Path) -> None:
    script = """
say broken; state; say driver; state; touch /srv/mended; say driver; state; say broken --check
cat /var/lib/gdsdeploy/installed
"""
    first, half, second, same, third, whole, last, *recorded = run(program, script)
    error = json.loads(first)["error"]
    assert (error["kind"], "stack-broken" in error["message"]) == ("failed", True), error
    assert half == same == "iF|stack-broken=1 "
    error = json.loads(second)["error"]
    assert (error["kind"], "stack-broken" in error["message"]) == ("half-installed", True)
    assert "dpkg --configure -a" in error["hint"]
    assert "install stack-driver 1" in changes(third)
    assert "ii|stack-broken=1" in whole.split()
    assert changes(last) == ["hold stack-broken held"]
    assert recorded == ["stack-broken", "stack-driver"]


REPAIRED = r"""
say broken >/dev/null; state
say mended --check; say mended; state
# Its unpacking was interrupted.
sed -i '/^Package: stack-common$/{n;s/.*/Status: install reinstreq half-installed/}' /var/lib/dpkg/status; state
say driver --check; say driver; state
"""


def test_what_an_earlier_run_left_half_way_is_replaced_or_installed_again(program: Path) -> None:
    """A package that can't be configured, in a version that the lock no longer has; and one that dpkg began with."""
    half, checked, done, whole, lost, planned, repaired, last = run(program, REPAIRED)
    assert half == "iF|stack-broken=1 "
    assert changes(checked) == changes(done)
    assert "hi|stack-broken=2" in whole.split()
    assert "iHR|stack-common=1" in lost.split()
    assert changes(planned) == changes(repaired)
    assert "install stack-common 1" in changes(repaired)
    assert {"ii|stack-common=1", "hi|stack-driver=1"} <= set(last.split())


LOCKED = r"""
python3 - <<'END' &
import fcntl, time
file = open("/var/lib/dpkg/lock-frontend", "w")
fcntl.lockf(file, fcntl.LOCK_EX)
open("/run/locked", "w").close()
time.sleep(100)
END
while ! test -e /run/locked; do sleep 0.1; done
PYTHONPATH=$program python3 - <<'END'
import json, os
from gdsdeploy.host.apply import engine
from gdsdeploy.host.apply.host import ManagedHost
from gdsdeploy.host.apply.packages import managers
from gdsdeploy.host.cli import apply as cli
from gdsdeploy.host.errors import ApplyError
managers.LOCK_SECONDS = 3.0
try:
    engine.run(ManagedHost(), engine.read_resources(cli.read(os.environ["documents"] + "/driver")))
except ApplyError as error:
    print(error.kind, error.message)
END
kill $!
state
"""


def test_a_lock_that_another_process_holds_is_named(program: Path) -> None:
    (document,) = run(program, "export documents\n" + LOCKED)
    assert document.startswith("package-manager-locked python3 (process ")
    assert document.endswith("which holds /var/lib/dpkg/lock-frontend, is changing packages on this host")


REMOVALS = r"""
apt-get -qq install stack-driver=1 stack-library1=1 stack-decode=1 >/dev/null
out_of_the_lock stack-decode
say driver2 --check; say driver2; state
apt-get -qq remove stack-decode >/dev/null
say driver2; state; cat /var/lib/gdsdeploy/removed
"""


def test_a_package_that_the_lock_does_not_replace_never_leaves_with_the_old_driver(program: Path) -> None:
    """The administrator installed everything; of the two that would leave, the locked library replaces one."""
    checked, refused, same, done, after, *removed = run(program, REMOVALS)
    (result,) = json.loads(checked)["resources"]
    (refusal,) = result["refusals"]
    assert refusal["id"] == "removals"
    assert refusal["message"].endswith("that the lock doesn't replace: stack-decode 1")
    assert "removes: [stack-decode]; or remove them on this host: apt-get remove stack-decode" in refusal["hint"]
    assert reasons(checked) == {
        "stack-decode": ("needs", "stack-driver"),
        "stack-library1": ("replaced-by", "stack-library2"),
    }
    assert json.loads(refused)["error"] == {"kind": "refused", **{key: refusal[key] for key in ("message", "hint")}}
    assert {"ii|stack-decode=1", "ii|stack-driver=1", "ii|stack-library1=1"} <= set(same.split())
    assert "remove stack-library1 1" in changes(done)
    assert {"hi|stack-driver=2", "hi|stack-library2=2"} <= set(after.split())
    assert removed == ["stack-driver=1 manual moved", "stack-library1=1 manual"]


RETURN = r"""
apt-get -qq install stack-driver=1 stack-library1=1 stack-decode=1 >/dev/null
apt-mark auto stack-decode >/dev/null
out_of_the_lock stack-decode
before=$(state)
say allowed --check; say allowed; state; cat /var/lib/gdsdeploy/removed
echo REMOVE
remove --check; remove; state; apt-mark showauto | grep stack
test "$before" = "$(state)" && echo same
ls -d /var/lib/gdsdeploy 2>/dev/null || echo clean
"""


def test_what_left_comes_back_with_the_versions_and_marks_that_it_had(program: Path) -> None:
    """The allowed package needs the driver's version before: the driver goes back, too."""
    lines = run(program, RETURN)
    number = lines.index("REMOVE")
    checked, done, meanwhile, *recorded = lines[:number]
    assert changes(checked) == changes(done)
    assert json.loads(checked)["resources"][0]["refusals"] == []
    assert reasons(done) == {
        "stack-decode": ("allowed", "stack-driver"),
        "stack-library1": ("replaced-by", "stack-library2"),
    }
    assert "stack-decode" not in meanwhile
    assert recorded == [
        "stack-decode=1 automatic", "stack-driver=1 manual moved", "stack-library1=1 manual"
    ]  # fmt: skip
    checked, done, back, *automatic, same, clean = lines[number + 1 :]
    assert sorted(changes(checked)) == sorted(changes(done))
    assert {"install stack-decode 1", "install stack-library1 1", "downgrade stack-driver 2 1"} <= set(changes(done))
    assert (same, clean) == ("same", "clean")
    assert "ii|stack-library1=1" in back.split()
    assert "stack-decode" in automatic
    assert "stack-driver" not in automatic


ROLLBACK = r"""
apt-get -qq install stack-driver=1 stack-library1=1 stack-decode=1 >/dev/null
out_of_the_lock stack-decode
say allowed >/dev/null; state
say back >/dev/null; state
say restore --check; say restore; state; cat /var/lib/gdsdeploy/removed 2>/dev/null || echo none
"""


def test_a_rollback_brings_back_what_pins_keep_out(program: Path) -> None:
    later, earlier, checked, done, back, record = run(program, ROLLBACK)
    assert {"hi|stack-driver=2", "hi|stack-library2=2"} <= set(later.split())
    assert "stack-decode" not in later + earlier
    assert changes(checked) == changes(done)
    assert "install stack-decode 1" in changes(done)
    assert {"ii|stack-decode=1", "hi|stack-driver=1", "hi|stack-library1=1"} <= set(back.split())
    assert record == "none"


LOST = r"""
apt-get -qq install stack-driver=1 stack-library1=1 stack-decode=1 >/dev/null
out_of_the_lock stack-decode
say allowed >/dev/null
# The repository has only the newest version, as Debian's has.
sed -i '/^Package: stack-driver$/{n;s/^Version: 1$/Version: 0/}' Packages; apt-get -qq update
remove --check; remove; state; cat /var/lib/gdsdeploy/removed; remove
"""


def test_what_cannot_come_back_is_said_and_stays_on_record(program: Path) -> None:
    checked, done, state, recorded, again = run(program, LOST)
    assert "install stack-decode 1" in changes(checked), "what its repositories have then isn't known yet"
    assert "install stack-library1 1" in changes(done)
    for line in (done, again):
        notes = json.loads(line)["notes"]
        (note,) = (note for note in notes if note.startswith("stack-decode=1 left for the lock and can't come back: "))
        assert "stack-driver (= 1)" in note
        assert note.endswith("to try it: apt-get install stack-decode=1")
        # That line goes: the driver is there.
        assert any(note.startswith("stack-driver=1 was there before") for note in notes) is (line is not again)
    assert "ii|stack-driver=2" in state.split()
    assert recorded == "stack-decode=1 manual"
    assert changes(again) == []


IN_USE = r"""
mkdir /run/dev
mount -t tmpfs tmpfs /run/dev
for name in null zero random urandom; do touch /run/dev/$name; mount --bind /dev/$name /run/dev/$name; done
ln -s /proc/self/fd /run/dev/fd
touch /run/dev/nvidia-fs0 /run/modules
mount --rbind /run/dev /dev
module() { echo "nvidia_fs 262144 $1 - Live 0x0000000000000000 (OE)" >/run/modules; }
cat >/usr/local/sbin/rmmod <<'END'
#!/bin/sh
grep -q "^$1 [0-9]* 0 " /run/modules || { echo "rmmod: ERROR: Module $1 is in use" >&2; exit 1; }
: >/run/modules
END
chmod 755 /usr/local/sbin/rmmod
# The kernel's table of modules is imitated; all else is as it is.
cat >/run/program.py <<'END'
import sys
from gdsdeploy.host import __main__ as program
from gdsdeploy.host.apply import gpu
read = gpu.read_text
gpu.read_text = lambda root, path: read(root, path.replace("/proc/modules", "/run/modules"))
sys.exit(program.main(sys.argv[1:]))
END
say() {
    name=$1; shift
    PYTHONPATH=$program python3 /run/program.py apply --json --desired "$documents/$name" "$@" || :; echo
}
say fs1 >/dev/null
module 1
sleep 100 </dev/nvidia-fs0 &
apt-get -qq install --allow-change-held-packages nvidia-fs-dkms=2 >/dev/null 2>&1 || echo dpkg aborts
state
say fs2; state
kill $!
module 3
say fs2; state
module 0
say fs2 --check; say fs2; state; wc -c </run/modules; cat /run/gdsdeploy/unloaded
"""


def test_nvidia_fs_is_unloaded_before_its_package_changes_and_named_with_its_users_if_that_fails(program: Path) -> None:
    """The package's prerm runs rmmod, as NVIDIA's does."""
    aborts, before, busy, same, unknown, still, checked, done, after, modules, unloaded = run(program, IN_USE)
    assert aborts == "dpkg aborts", "the imitated prerm has to fail while the module is in use"
    assert before == same == still == "ii|nvidia-fs-dkms=1 ", "apt itself drops the hold"
    error = json.loads(busy)["error"]
    assert error["kind"] == "in-use"
    assert error["message"].startswith("nvidia_fs can't be unloaded: sleep (process ")
    assert error["message"].endswith(") has /dev/nvidia-fs0 open")
    assert "Drain this host" in error["hint"]
    assert json.loads(unknown)["error"]["message"].endswith(
        "nvidia_fs has 3 references that belong to no visible process"
    )
    moved = ["unload nvidia_fs loaded", "upgrade nvidia-fs-dkms 1 2", "hold nvidia-fs-dkms held"]
    assert changes(checked) == changes(done) == moved
    assert (after, modules, unloaded) == ("hi|nvidia-fs-dkms=2 ", "0", "nvidia_fs")


NEW_NAME = r"""
say pins; say pins --check
mkdir -p /usr/lib/gdsdeploy
cp "$program" /usr/lib/gdsdeploy/
{ deb nvidia-driver-999 1; deb unrelated 1; } >>Packages
apt-get -qq update; echo "updated $?"
for name in nvidia-driver-999 unrelated; do apt-cache policy $name | sed -n 's/ *Candidate: //p'; done
apt-get -qq --simulate install nvidia-driver-999 >/dev/null 2>&1 || echo refused
say pins --check
rm /usr/lib/gdsdeploy/*
apt-get -qq update; echo "updated $?"
"""


def test_a_name_that_a_repository_has_later_is_refused_after_the_update_that_brings_it(program: Path) -> None:
    done, checked, *lines, again, without = run(program, NEW_NAME)
    assert [line.split()[1] for line in changes(done)] == [
        "/etc/apt/preferences.d/00-gdsdeploy.pref",
        "/etc/apt/apt.conf.d/99gdsdeploy",
    ]
    assert changes(checked) == changes(again) == []
    assert lines == ["updated 0", "(none)", "1", "refused"]
    assert without == "updated 0", "a host without the program reads its lists all the same"


HALF = r"""
apt-get -qq install stack-driver=1 stack-library1=1 stack-decode=1 >/dev/null
apt-get -qq install stack-broken=1 >/dev/null 2>&1 || :
printf 'Package: stack-decode\nPin: release *\nPin-Priority: -1\n' >/etc/apt/preferences.d/00-gdsdeploy.pref
touch /srv/mended
say driver2; state
"""


def test_what_was_half_configured_hides_no_removal(program: Path) -> None:
    """apt resolves the transaction all the same; a refusal comes before anything changes."""
    refused, state = run(program, HALF)
    assert json.loads(refused)["error"]["message"].endswith("doesn't replace: stack-decode 1")
    assert {"iF|stack-broken=1", "ii|stack-decode=1", "ii|stack-driver=1"} <= set(state.split())
