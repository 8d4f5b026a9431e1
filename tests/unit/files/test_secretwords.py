"""Secrets in free text: each way to write one is a probe, with what has to be gone and what has to stay."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gdsdeploy.files.secret import REDACTED, hide
from gdsdeploy.validate.redact import Redactor

#: A text that has to be gone between two lines that have to stay, or a text with what has to be left of it.  Everything
#: that begins with hunter2 is secret.
PROBES: dict[str, str | list[str]] = json.loads(Path(__file__).with_name("secret_probes.json").read_text())


@pytest.mark.parametrize("name", PROBES)
def test_a_secret_is_gone_and_its_surroundings_stay(name: str) -> None:
    probe, redactor = PROBES[name], Redactor()
    text, stays = (f"x: before\n{probe}\n\nx: after\n", "x: after\n") if isinstance(probe, str) else probe
    output = redactor.text(text)
    assert "hunter2" not in output.lower()
    assert REDACTED in output
    assert stays in output
    assert not isinstance(probe, str) or output.startswith("x: before\n")
    assert redactor.summary()["secret"] >= 1
    assert hide(output, list) == output, "once is enough"


def test_an_access_key_is_known_by_its_form() -> None:
    assert Redactor().text("key AKIAIOSFODNN7EXAMPLE used") == f"key {REDACTED} used"


@pytest.mark.parametrize(
    "name",
    ["json", "json compact", "json escaped", "json in json", "Authorization in JSON", "pem in JSON", "docker config",
     "json list", "json nested", "k8s env json", "gcp sa json", "nvme config json", "bmc json"],
)  # fmt: skip
def test_json_stays_json(name: str) -> None:
    probe = PROBES[name]
    json.loads(Redactor().text(probe if isinstance(probe, str) else probe[0]))


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ({"tokens": ["hunter2", 1, ""]}, {"tokens": [REDACTED, 1, ""]}),
        ({"secret": {"value": "hunter2", "n": [2]}}, {"secret": {"value": REDACTED, "n": [2]}}),
        ({"name": "DB_PASSWORD", "value": "hunter2"}, {"name": "DB_PASSWORD", "value": REDACTED}),
        ({"name": "COLOUR", "value": "red"}, {"name": "COLOUR", "value": "red"}),
    ],
)
def test_everything_below_a_key_of_a_secret_is_masked(value: object, masked: object) -> None:
    assert Redactor().value(value) == masked


def test_json_is_masked_by_its_keys() -> None:
    document = {"env": {"TOKEN": "hunter2", "client-key-data": "hunter2", "pass": 3, "a": ["b"]}, "pass": "hunter2"}
    redactor = Redactor()
    output = redactor.value(document)
    assert output == {
        "env": {"TOKEN": REDACTED, "client-key-data": REDACTED, "pass": 3, "a": ["b"]},
        "pass": REDACTED,
    }
    assert redactor.summary() == {"secret": 3}
    assert redactor.value(output) == output


@pytest.mark.parametrize(
    "text",
    [
        "pass: 3, fail: 0",
        "CONFIG_SECRETMEM=y\nCONFIG_MODULE_SIG_KEY=\"certs/signing_key.pem\"",
        "sig_id: PKCS#7\nsigner: Debian\nsig_key: 3A:B2:C0\nsig_hashalgo: sha256\nsignature: 30:45:02",
        "signed-by=/usr/share/keyrings/a.gpg keyring: /etc/k",
        "keys: 3\nkey: value\nauthor: a\nauthenticated\ntokens",
        "prog -p 22 -P 3 -u root",
        "ssh -p 2222 root@gpu1",
        "mailto:a@b and a@b:/c",
        "a basic test of the bearer",
        "PASS: everything\ncompass=3",
        "nvme: no password, and no secret was given",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize(
    "text",
    ["token" * 20_000, "mysql " * 20_000, "a.b-c_" * 20_000, "password='" * 5_000,
     "''" * 30_000 + "password=''" * 2_000,
     "eyJ" * 30_000, "://" * 30_000, '\\"token\\":' * 5_000, "-----BEGIN PRIVATE KEY-----" * 4_000, "key=" * 20_000,
     "--secret " * 10_000, "token:\n  a\n" * 5_000, " token: [" * 10_000, "token={" * 10_000, "<token>" * 10_000,
     "a:b@" * 20_000, "%3A%2F%2F" * 20_000, "echo a " * 20_000, "sudo " * 20_000, "ceph --key" * 10_000,
     "Private-Lines: 1\n" * 10_000, "$ANSIBLE_VAULT;1 a" * 10_000, "token \\\n" * 10_000, "user=" * 20_000,
     "name: token\n" * 10_000, " " * 40_000 + "token:\n" + " " * 40_000, "authorization: a\n " * 5_000,
     "authorization" * 8_000, "A_" * 40_000],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    begin = time.process_time()
    hide(text, lambda: None)
    assert time.process_time() - begin < 5
