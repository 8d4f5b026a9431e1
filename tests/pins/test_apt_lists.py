"""A plan names what leaves once the host has the lock's repositories and pins; provision refuses before it installs.

The real apt and dpkg, above this machine's own folders, in memory.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.zipapp import hostapp
from tests.pins.test_apt_apply import changes, resource, run
from tests.repos.archive import Key

KEYRING = "/etc/apt/keyrings/gdsdeploy-more.gpg"
#: Version 1 of the stack is installed and in the host's repository; version 2 is in another one, which is signed.
OFFER = r"""
apt-get -qq install stack-driver=1 stack-library1=1 >/dev/null
mkdir /srv/more
cp ./*_2.deb /srv/more/
awk -v RS= -v ORS='\n\n' '/\nVersion: 2\n/' Packages >/srv/more/Packages
awk -v RS= -v ORS='\n\n' '!/\nVersion: 2\n/' Packages >left; mv left Packages
apt-get -qq update
cd /srv/more
printf 'Origin: More\nSuite: stack\nDate: %s\nSHA256:\n %s %s Packages\n' "$(date -Ru)" \
    "$(sha256sum Packages | cut -d' ' -f1)" "$(stat -c %s Packages)" >Release
gpg --homedir "$documents/home" --quiet --clearsign --output InRelease Release
echo 'APT::Update::Post-Invoke { "touch /srv/hook"; };' >/etc/apt/apt.conf.d/91hook
# Only what the script itself writes to, because other programs change this machine meanwhile.
look() {
    find /mnt/etc /mnt/var /mnt/usr /etc/apt /var/lib/apt /var/cache/apt -printf '%p %T+ %s\n' |
        grep -v '^/mnt/var \|^/mnt/var/log\|^/mnt/var/tmp ' | sort
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, signing_key: Key) -> Path:
    """The host program, with the documents and the key's folder beside it."""
    folder = tmp_path_factory.mktemp("lists")
    hostapp.build(folder / "gdsdeploy-host.pyz")
    (folder / "home").symlink_to(signing_key.home)
    key = base64.b64encode(signing_key.keyring.read_bytes()).decode()
    whole = document("file:/srv/more", key)
    for name, value in {"more": whole, "sources": {**whole, "resources": whole["resources"][:2]}}.items():
        (folder / name).write_text(json.dumps(value))
    return folder / "gdsdeploy-host.pyz"


def document(uri: str, key: str) -> dict[str, Any]:
    pins = resource(2, "stack-driver", "stack-library2")
    index = {
        "repository": "more", "uri": uri, "suite": "./", "components": [], "host_keyring": KEYRING, "exclusive": True,
    }  # fmt: skip
    resources: list[tuple[str, dict[str, Any]]] = [
        ("repositories", {"indices": [index], "keys": [{"dest": KEYRING, "content": key}], "pins": pins}),
        ("pins", {"indices": [index], "pins": pins, "deny": ["stack-decode*"]}),
        ("packages", {"packages": pins}),
    ]
    return {
        "version": 1,
        "resources": [{"resource": name, "desired": {"manager": "apt", **desired}} for name, desired in resources],
    }


FORESEEN = (
    OFFER
    + "look >/srv/before; say more --check; look >/srv/after; diff /srv/before /srv/after || :; ls /srv/hook || :\n"
)
FORESEEN += "say sources >/dev/null; say more --check; say more; say more --check; ls /srv/hook; state"


def removals(line: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(line)["resources"][-1]["report"]["removals"]
    return report


def test_a_plan_says_what_apply_does_once_the_repositories_are_there(program: Path) -> None:
    """Before, it compares versions; it leaves the host as it was."""
    early, *touched, checked, done, again, hook, state = run(program, FORESEEN)
    assert touched == [], touched
    assert removals(early)["known"] is False
    assert changes(early)[-4:] == [
        *("upgrade stack-driver 1 2", "install stack-library2 2", "hold stack-driver held", "hold stack-library2 held")
    ]
    assert removals(checked) == {"known": True, "why": ""}
    assert changes(checked) == changes(done)
    assert {"remove stack-library1 1", "upgrade stack-driver 1 2", "install stack-library2 2"} <= set(changes(done))
    assert changes(again) == []
    assert hook == "/srv/hook", "the update itself runs the host's hooks"
    assert {"hi|stack-driver=2", "hi|stack-library2=2"} <= set(state.split())


def test_a_removal_is_refused_when_the_repositories_are_there_and_nothing_is_installed(program: Path) -> None:
    """Its next version is in the repository, and stays out: the name matches a pattern."""
    script = OFFER + "cd /srv/stack; apt-get -qq install stack-decode=1 >/dev/null; say more; say more --check; state"
    stopped, planned, state = run(program, script)
    result = json.loads(planned)["resources"][-1]
    (refusal,) = result["refusals"]
    assert refusal["id"] == "removals"
    assert refusal["message"].endswith("doesn't replace: stack-decode 1")
    assert ("remove", "stack-decode") in {(change["kind"], change["subject"]) for change in result["changes"]}
    assert json.loads(stopped)["error"]["message"] == refusal["message"]
    assert {"ii|stack-driver=1", "ii|stack-decode=1"} <= set(state.split())


HELD = (
    OFFER
    + r"""
apt-mark hold stack-library1 >/dev/null
say more | sed 's/.*"message": "\([^"]*\)".*/\1/'; state
"""
)


def test_what_others_hold_is_refused_by_its_name(program: Path) -> None:
    message, state = run(program, HELD)
    assert "held on this host would have to change or leave: stack-library1 1" in message
    assert {"hi|stack-library1=1", "ii|stack-driver=1"} <= set(state.split())
