"""What dnf would change is known before it installs anything: the real dnf resolves, apply then does the same.

The real dnf and rpm, above this machine's folders, in memory.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.zipapp import hostapp
from tests.pins.inplace import in_place
from tests.pins.test_dnf_pins import plugins
from tests.repos.archive import Key, serve
from tests.repos.rpmarchive import Rpm, RpmArchive, Stream, build

__all__ = ["plugins"]

RPMS = [
    *(
        rpm
        for version in "123"
        for rpm in (
            Rpm("driver", f"3:{version}-1", requires=(f"common = {version}-1",), recommends=("weak",)),
            Rpm("common", f"{version}-1"),
            Rpm("kernel", f"{version}-1"),
        )
    ),
    # Nothing replaces it: it goes with the driver that it belongs to.
    Rpm("decode", "1-1", requires=("driver = 3:1-1",)),
    # One excludes the other, and both are a library.
    Rpm("library1", "1-1", provides=("library = 1",), conflicts=("library2",)),
    Rpm("library2", "2-1", provides=("library = 2",), conflicts=("library1",)),
    Rpm("tools", "1-1"),
    Rpm("tools-new", "2-1", obsoletes=("tools",)),
    Rpm("source", "1-1"),
    Rpm("needs-source", "1-1", requires=("source",)),
    # Its next version could stay, but dnf removes it with the source before that comes.
    Rpm("addon", "1-1", requires=("source",)),
    Rpm("addon", "2-1"),
    # No repository has what it requires.
    Rpm("impossible", "1-1", requires=("nothing",)),
    Rpm("weak", "1-1"),
]
DRIVERS = {rpm.version: rpm for rpm in RPMS if rpm.name == "driver"}
STREAMS = (Stream("drv", "one", (DRIVERS["3:1-1"],)), Stream("drv", "two", (DRIVERS["3:2-1"],)))
KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-site"
PREPARE = """
export LC_ALL=C
mkdir -p /etc/dnf/modules.d /etc/dnf/plugins /etc/yum.repos.d /var/lib/gdsdeploy /var/cache/dnf
for folder in /run /var/tmp /var/lib/gdsdeploy /var/cache/dnf; do mount -t tmpfs tmpfs $folder; done
cp -r "$1/etc/." /etc/
cd "$1/rpms"
for names in $2; do
    rpm --justdb --nodeps --noscripts --nosignature --install $(echo "$names" | sed 's/[^,]*/&.x86_64.rpm/g; y/,/ /')
done
cd "$1"
say() { name=$1; shift; python3 -I -S host.pyz apply --json --desired "$name.json" "$@" || :; echo; }
remove() { python3 -I -S host.pyz remove --json "$@" || :; echo; }
have() { rpm -qa --qf '%{NAME}-%{VERSION}\n' | grep -v gpg-pubkey | sort | tr '\n' ' '; echo; }
"""


@dataclass(frozen=True)
class Site:
    """A folder that is served at ``uri``, with the repository, the program, and the host's configuration."""

    folder: Path
    uri: str
    plugins: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, signing_key: Key, plugins: Path) -> Iterator[Site]:
    www = tmp_path_factory.mktemp("transaction")
    build(RPMS, www / "rpms")
    defines = ("__gpg /usr/bin/gpg", f"_gpg_name {signing_key.fingerprint}", f"_gpg_path {signing_key.home}")
    options = [word for define in defines for word in ("--define", define)]
    subprocess.run(["rpmsign", "--addsign", *options, *(www / "rpms").glob("*.rpm")], check=True, capture_output=True)
    RpmArchive(www / "rpms", streams=STREAMS).publish(signing_key)
    (www / "key").write_text(signing_key.armoured())
    files = {
        "dnf/dnf.conf": f"[main]\npluginpath={plugins}\nmodule_platform_id=platform:el9\ngpgcheck=1\nbest=1\n"
        "installonlypkgs=kernel\ninstallonly_limit=2\n",
        "dnf/plugins/versionlock.conf": "[main]\nenabled=1\nlocklist=/etc/dnf/plugins/versionlock.list\n",
    }
    for name, text in files.items():
        (www / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (www / "etc" / name).write_text(text)
    hostapp.build(www / "host.pyz")
    with serve(www) as server:
        yield Site(www, server.uri, plugins)


def packages(*words: str) -> list[dict[str, str]]:
    return [dict(zip(("package", "version"), word.split("="), strict=True)) for word in words]


def document(site: Site, *locked: str, pinned: bool = True, uri: str = "", **more: Any) -> dict[str, Any]:
    """The resource packages, by default after the repository and pins that it needs."""
    index = {"repository": "site", "uri": uri or f"{site.uri}/rpms", "suite": "", "components": [], "host_keyring": KEY}
    content = base64.b64encode((site.folder / "key").read_bytes()).decode()
    pins = packages(*locked)
    resources: list[tuple[str, dict[str, Any]]] = [
        ("repositories", {"indices": [index], "keys": [{"dest": KEY, "content": content}], "pins": pins}),
        (
            "pins",
            {
                "indices": [index],
                "pins": pins,
                "deny": more.pop("deny", []),
                "modules": [more.pop("stream", "drv:two")],
            },
        ),
        ("packages", {"packages": pins, **more}),
    ]
    chosen = resources if pinned else resources[2:]
    return {
        "version": 1,
        "resources": [{"resource": name, "desired": {"manager": "dnf", **desired}} for name, desired in chosen],
    }


def sources(whole: dict[str, Any]) -> dict[str, Any]:
    """Its repository and pins alone."""
    return {**whole, "resources": whole["resources"][:2]}


def run(site: Site, tmp: Path, installed: str, script: str, **documents: Any) -> list[str]:
    """The lines that a script prints on a host; installed: names of files, those after a blank in a later step."""
    for name, value in documents.items():
        (site.folder / f"{name}.json").write_text(json.dumps(value))
    env = {**os.environ, "HOME": str(tmp), "PYTHONPATH": str(site.plugins), "no_proxy": "127.0.0.1"}
    argv = in_place(PREPARE + script, site.folder, installed, over=("etc", "var", "srv"), processes=True)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line]


def of_packages(line: str) -> dict[str, Any]:
    answer = json.loads(line)
    assert answer["error"] is None, answer["error"]
    result: dict[str, Any] = answer["resources"][-1]
    return result


def moves(line: str) -> list[str]:
    result = of_packages(line)
    assert result["unknown"] == [], result
    changes = [change for change in result["changes"] if change["kind"] not in ("hold", "unhold")]
    keys = ("kind", "subject", "before", "after", "reason", "by")
    return [" ".join(filter(None, (change[key] for key in keys))) for change in changes]


EVERYTHING = "driver-1-1,common-1-1,library1-1-1,tools-1-1,kernel-1-1 kernel-2-1"
#: What a look must leave as it is: all but the audit trail.  dnf makes and removes locks in folders of its cache.
#: Only the layer that the script writes to, because other programs change this machine meanwhile.
LOOK = r"""
look() {
    find /mnt/etc /mnt/var ! '(' -type d -path '/mnt/var/cache/dnf*' ')' -printf '%p %T+ %s\n' |
        grep -v '^/mnt/var\(/log\(/gdsdeploy.*\)\?\|/tmp\)\? ' | sort
}
unchanged() { look >/srv/before; say all --check; look >/srv/after; diff /srv/before /srv/after || :; }
unchanged; say sources >/dev/null; unchanged
say all; say all --check; have
"""


def test_a_look_foresees_everything_once_the_repositories_are_there(site: Site, tmp_path: Path) -> None:
    """New and moved dependencies, what is obsoleted, excluded, and the oldest kernel of too many."""
    whole = document(site, "driver=3:2-1", "library2=2-1", "tools-new=2-1", "kernel=3-1")
    lines = run(site, tmp_path, EVERYTHING, LOOK, all=whole, sources=sources(whole))
    assert [line for line in lines if line.startswith((">", "<"))] == [], "a look touches nothing"
    before, checked, done, again, have = lines
    assert of_packages(before)["report"]["removals"]["known"] is False
    assert moves(before) == [
        "upgrade driver 3:1-1 3:2-1 version",
        "install library2 2-1 missing",
        "install tools-new 2-1 missing",
        "upgrade kernel 2-1 3-1 version",
    ]
    assert of_packages(checked)["refusals"] == []
    assert of_packages(checked)["report"] == {"removals": {"known": True, "why": ""}}
    assert moves(checked) == moves(done)
    assert sorted(moves(done)) == [
        "install library2 2-1 missing",
        "install tools-new 2-1 missing",
        "remove kernel 1-1 replaced-by kernel",
        "remove library1 1-1 replaced-by library2",
        "remove tools 1-1 replaced-by tools-new",
        "upgrade common 1-1 2-1 dependency",
        "upgrade driver 3:1-1 3:2-1 version",
        "upgrade kernel 2-1 3-1 version",
    ]
    assert moves(again) == []
    assert have.split() == ["common-2", "driver-2", "kernel-2", "kernel-3", "library2-2", "tools-new-2"]


REFUSED = """
say new; have
say new --check; say bare --check; say bare; have
rpm --erase --justdb decode
say bare; have; cat /var/lib/gdsdeploy/removed
"""


def test_a_package_that_the_lock_does_not_replace_never_leaves(site: Site, tmp_path: Path) -> None:
    """Neither with the repositories, which stay, nor afterwards."""
    locked = ("driver=3:2-1", "library2=2-1")
    installed = "driver-1-1,common-1-1,library1-1-1,decode-1-1"
    documents = {"new": document(site, *locked), "bare": document(site, *locked, pinned=False)}
    stopped, same, planned, checked, refused, still, done, have, *removed = run(
        site, tmp_path, installed, REFUSED, **documents
    )
    (refusal,) = of_packages(planned)["refusals"]
    assert refusal["id"] == "removals"
    assert refusal["message"].endswith("that the lock doesn't replace: decode 1-1")
    assert "removes: [decode]; or remove them on this host: dnf remove decode" in refusal["hint"]
    assert "remove decode 1-1 needs driver" in moves(planned)
    assert of_packages(checked)["refusals"] == [refusal]
    for answer in (stopped, refused):
        assert json.loads(answer)["error"] == {"kind": "refused", **{key: refusal[key] for key in ("message", "hint")}}
    assert same == still
    assert {"driver-1", "decode-1", "library1-1"} <= set(still.split())
    assert "remove library1 1-1 replaced-by library2" in moves(done)
    assert have.split() == ["common-2", "driver-2", "library2-2"]
    assert removed == ["driver=3:1-1 manual moved", "library1=1-1 manual"]


RETURN = r"""
mount -t tmpfs tmpfs /var/lib/dpkg
umount /var/lib/gdsdeploy
printf '[drv]\nname=drv\nstream=one\nprofiles=\nstate=enabled\n' >/etc/dnf/modules.d/drv.module
touch /etc/dnf/plugins/versionlock.list
printf '[vendor]\nname=vendor\nbaseurl=%s/rpms\ngpgcheck=0\n' "$uri" >/etc/yum.repos.d/vendor.repo
before=$(have); have
say sources >/dev/null; say allowed --check; say allowed; have; sort /var/lib/gdsdeploy/removed
echo REMOVE
remove --check; remove; have
test "$before" = "$(have)" && echo same
ls -d /var/lib/gdsdeploy/* 2>/dev/null || echo clean
"""


def test_what_left_comes_back_when_the_lock_goes(site: Site, tmp_path: Path) -> None:
    """The locks and repositories of the lock are gone by then; the host's own repository has what it had."""
    locked = ("driver=3:2-1", "common=2-1", "library2=2-1")
    installed = "driver-1-1,common-1-1,library1-1-1,decode-1-1"
    allowed = document(site, *locked, removes=["dec*"], deny=["decode"])
    script = f"uri={site.uri}\n{RETURN}"
    first, checked, done, meanwhile, *rest = run(
        site, tmp_path, installed, script, allowed=allowed, sources=sources(allowed)
    )
    assert moves(checked) == moves(done)
    assert {"remove decode 1-1 allowed driver", "remove library1 1-1 replaced-by library2"} <= set(moves(done))
    assert meanwhile.split() == ["common-2", "driver-2", "library2-2"]
    assert rest[:5] == [
        "common=1-1 manual moved", "decode=1-1 manual", "driver=3:1-1 manual moved", "library1=1-1 manual", "REMOVE"
    ]  # fmt: skip
    planned, removed, back, *ends = rest[5:]
    assert {"install decode 1-1 left", "install library1 1-1 left", "downgrade driver 3:2-1 3:1-1 left"} <= set(
        moves(removed)
    )
    assert {line for line in moves(removed) if line.endswith("left")} == {
        line for line in moves(planned) if line.endswith("left")
    }
    assert (back, ends) == (first, ["same", "clean"])


ROLLBACK = r"""
mount -t tmpfs tmpfs /var/lib/dpkg
printf '[vendor]\nname=vendor\nbaseurl=%s/rpms\ngpgcheck=0\nmodule_hotfixes=1\n' "$uri" >/etc/yum.repos.d/vendor.repo
touch /etc/dnf/plugins/versionlock.list
say earlier >/dev/null; have
say allowed >/dev/null; have
say earlier >/dev/null; have
say restore --check; say restore; have; cat /var/lib/gdsdeploy/removed 2>/dev/null || echo none
"""


def test_a_rollback_brings_back_what_the_locks_of_the_earlier_lock_keep_out(site: Site, tmp_path: Path) -> None:
    """The earlier lock denies the package that was there beside it; nothing else moves for it."""
    earlier = document(site, "driver=3:1-1", "common=1-1", deny=["decode"], stream="drv:one")
    later = document(site, "driver=3:2-1", "common=2-1", removes=["decode"], deny=["decode"])
    desired = {"manager": "dnf", "step": "remove", "has_record": True, "installed": [], "holds": [], "removed": []}
    restore = {"version": 1, "resources": [{"resource": "restore", "desired": desired}]}
    script = f"uri={site.uri}\n{ROLLBACK}"
    first, second, third, checked, done, back, record = run(
        site, tmp_path, "driver-1-1,common-1-1,decode-1-1", script, earlier=earlier, allowed=later, restore=restore
    )
    assert first.split() == ["common-1", "decode-1", "driver-1"]
    assert second.split() == ["common-2", "driver-2"]
    assert third.split() == ["common-1", "driver-1"]
    assert moves(checked) == moves(done) == ["install decode 1-1 left"]
    assert (back, record) == (first, "none")


def test_what_leaves_takes_what_needs_it_and_that_is_refused(site: Site, tmp_path: Path) -> None:
    leaving = {"superseded": packages("source=0-1")}
    script = "say all; say all --check; have; rpm --erase --justdb needs-source addon; say all; have"
    refused, checked, same, done, have = run(
        site, tmp_path, "driver-1-1,common-1-1,source-1-1,needs-source-1-1,addon-1-1", script,
        all=document(site, "driver=3:2-1", **leaving),
    )  # fmt: skip
    assert [entry["id"] for entry in of_packages(checked)["refusals"]] == ["removals"]
    assert json.loads(refused)["error"]["message"].endswith("doesn't replace: addon 1-1, needs-source 1-1")
    assert "needs-source-1" in same
    assert "remove source 1-1 leaving" in moves(done)
    assert have.split() == ["common-2", "driver-2"]


def test_names_that_stay_out_and_what_has_no_solution_are_known_before(site: Site, tmp_path: Path) -> None:
    """The locked versions are installed or nothing is; a denied name is no way to meet a requirement."""
    script = "say denied; say denied --check; say impossible; say impossible --check; have"
    documents = {
        "denied": document(site, "driver=3:2-1", deny=["common"]),
        "impossible": document(site, "impossible=1-1"),
    }
    stopped, denied, failed, planned, have = run(site, tmp_path, "driver-1-1,common-1-1", script, **documents)
    for line in (denied, planned):
        result = of_packages(line)
        assert result["report"]["removals"]["known"] is False
        assert result["report"]["removals"]["why"].startswith("dnf can't install the locked packages: ")
        assert result["unknown"] == [result["report"]["removals"]["why"]]
    assert "common = 2-1" in of_packages(denied)["report"]["removals"]["why"]
    assert "nothing provides nothing" in of_packages(planned)["report"]["removals"]["why"]
    for line in (stopped, failed):
        error = json.loads(line)["error"]
        assert error["kind"] == "refused", error
        assert "dnf can't install the locked packages" in error["message"]
    assert have.split() == ["common-1", "driver-1"]


def test_without_lists_in_dnfs_cache_removals_are_unknown(site: Site, tmp_path: Path) -> None:
    """A look loads nothing."""
    whole = document(site, "driver=3:2-1")
    script = (
        "say sources >/dev/null; dnf --quiet clean all >/dev/null; say all --check; find /var/cache/dnf -name '*.xml*'"
    )
    (line,) = run(site, tmp_path, "driver-1-1,common-1-1,decode-1-1", script, all=whole, sources=sources(whole))
    (result,) = [one for one in json.loads(line)["resources"] if one["name"] == "packages"]
    assert (result["changes"], len(result["unknown"])) == ([], 1)
    assert "gdsdeploy-site" in result["report"]["removals"]["why"]


PURGE = """
mount -t tmpfs tmpfs /var/lib/dpkg
say all >/dev/null
rpm --justdb --nodeps --nosignature --install rpms/decode-1-1.x86_64.rpm
python3 -I -S host.pyz remove packages --json --check; echo; have
"""


def test_a_removal_says_what_goes_along(site: Site, tmp_path: Path) -> None:
    state = document(site, "driver=3:1-1")
    state["resources"][1]["desired"]["modules"] = ["drv:one"]
    answer, have = run(site, tmp_path, "tools-1-1", PURGE, all=state)
    assert moves(answer) == ["remove driver 3:1-1 remove", "remove decode 1-1 remove"]
    assert have.split() == ["common-1", "decode-1", "driver-1", "tools-1"]
