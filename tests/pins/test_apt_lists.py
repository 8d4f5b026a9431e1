"""A plan knows what the lock's repositories bring before the host has them: apt reads them in a folder of a look.

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
look() { find /etc /var /usr/lib -printf '%p %T+ %s\n' | grep -v '^/var \|^/var/log\|^/var/tmp \|pacct' | sort; }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, signing_key: Key) -> Path:
    """The host program, with the documents and the key's folder beside it."""
    folder = tmp_path_factory.mktemp("lists")
    hostapp.build(folder / "gdsdeploy-host.pyz")
    (folder / "home").symlink_to(signing_key.home)
    key = base64.b64encode(signing_key.keyring.read_bytes()).decode()
    for name, uri in (("more", "file:/srv/more"), ("away", "http://127.0.0.1:9/more")):
        (folder / name).write_text(json.dumps(document(uri, key)))
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
FORESEEN += "say more; say more --check; ls /srv/hook; state"


def test_a_plan_knows_what_repositories_bring_that_the_host_does_not_have(program: Path) -> None:
    """It says exactly what apply then does, the preferences included, and leaves the host as it was."""
    checked, *touched, done, again, hook, state = run(program, FORESEEN)
    assert touched == [], touched
    assert changes(checked) == changes(done)
    assert {"remove stack-library1 1", "upgrade stack-driver 1 2", "install stack-library2 2"} <= set(changes(done))
    assert json.loads(checked)["resources"][-1]["report"] == {"removals": {"known": True, "why": ""}}
    assert changes(again) == []
    assert hook == "/srv/hook", "the update itself runs the host's hooks"
    assert {"hi|stack-driver=2", "hi|stack-library2=2"} <= set(state.split())


def test_a_removal_is_refused_before_the_repositories_are_there(program: Path) -> None:
    """Its next version is in the repository, and stays out: the name matches a pattern."""
    script = OFFER + "cd /srv/stack; apt-get -qq install stack-decode=1 >/dev/null; say more --check; say more; state"
    planned, stopped, state = run(program, script)
    result = json.loads(planned)["resources"][-1]
    (refusal,) = result["refusals"]
    assert refusal["id"] == "removals"
    assert refusal["message"].endswith("doesn't replace: stack-decode 1")
    assert ("remove", "stack-decode") in {(change["kind"], change["subject"]) for change in result["changes"]}
    assert json.loads(stopped)["error"]["message"] == refusal["message"]
    assert "ii|stack-driver=1" in state


def test_what_cannot_be_read_leaves_removals_unknown(program: Path) -> None:
    (planned,) = run(program, OFFER + "say away --check; ls -d /var/tmp/gdsdeploy-look* 2>/dev/null || :")
    result = json.loads(planned)["resources"][-1]
    assert (result["unknown"], result["refusals"]) == ([], [])
    assert [change["kind"] for change in result["changes"]] == ["upgrade", "install", "hold", "hold"]
    removals = result["report"]["removals"]
    assert removals["known"] is False
    assert "127.0.0.1:9" in removals["why"]
