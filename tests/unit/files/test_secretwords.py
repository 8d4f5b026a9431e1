"""Secrets in free text: each way to write one is a probe, with what has to be gone and what has to stay."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from gdsdeploy.files.secret import REDACTED, hide
from gdsdeploy.validate.redact import Redactor

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2_hunter2-hunter2"
PEM = "-----BEGIN {}PRIVATE KEY-----\nMIIEhunter2\n-----END {}PRIVATE KEY-----"

#: Text in which everything that begins with hunter2 is secret, and what has to be left of it.
PROBES: dict[str, tuple[str, str]] = {
    # Names with values.
    "password=": ("password=hunter2,rw", ",rw"),
    "passwd=": ("mount -o username=x,passwd=hunter2 //h/s", "//h/s"),
    "pass=": ("//h/s /mnt cifs rw,user=x,pass=hunter2,vers=3.0 0 0", ",vers=3.0 0 0"),
    "pwd=": ("Server=h;Uid=x;Pwd=hunter2;Timeout=5", ";Timeout=5"),
    "psk=": ("  psk=hunter2hunter2", "psk="),
    "psk quoted": ('network={ ssid="a" psk="hunter2 hunter2" }', 'ssid="a"'),
    "psk:": ("psk: hunter2", "psk:"),
    "passphrase:": ("wifi:\n  passphrase: hunter2 hunter2 hunter2\n  band: 5", "band: 5"),
    "export TOKEN=": ("export TOKEN=hunter2; ls", "; ls"),
    "export quoted": ("export AWS_SECRET_ACCESS_KEY=\"hunter2 hunter2\"\nls", "ls"),
    "shell joined": ("TOKEN='hunter2'\\''hunter2' ls", " ls"),
    "shell escaped": ("TOKEN=hunter2\\ hunter2 ls", " ls"),
    "shell concatenated": ("TOKEN=hunter2'hunter2 x'", "TOKEN="),
    "comment in a shell": ("MY_API_KEY=hunter2  # of the mirror", "# of the mirror"),
    "upper _KEY": ("RESTIC_KEY=hunter2 x", " x"),
    "upper _PW": ("DB_PW=hunter2 x", " x"),
    "yaml single": ("password: 'it''s hunter2'\nuser: a", "user: a"),
    "yaml double": ('password: "a\\"hunter2"\nuser: a', "user: a"),
    "yaml words": ("password: correct horse hunter2\nuser: a", "user: a"),
    "yaml apostrophe": ("password: it's hunter2\nuser: a", "user: a"),
    "yaml flow": ("{password: hunter2, user: a}", "user: a"),
    "yaml comma": ("password: a,hunter2\nuser: a", "user: a"),
    "yaml block": ("token: |\n  hunter2\nuser: a", "user: a"),
    "json": ('{"token": "hunter2", "user": "a"}', '"user": "a"}'),
    "json compact": ('{"auth_token":"hunter2","user":"a"}', '"user":"a"}'),
    "json escaped": ('{"password": "a\\"hunter2\\\\", "user": "a"}', '"user": "a"}'),
    "json in json": (json.dumps({"m": json.dumps({"password": 'a"hunter2', "u": "a"})}), "u"),
    "json cut": ('{"user": "a", "token": "hunter2', '"user": "a"'),
    "python": ("{'secret': 'hunter2', 'user': 'a'}", "'user': 'a'"),
    "ruby": (":password => 'hunter2', :user => 'a'", ":user => 'a'"),
    "ini": ("[db]\nclient_secret = hunter2\nuser = a", "user = a"),
    "properties": ("spring.datasource.password=hunter2\na=b", "a=b"),
    "kubeconfig": ("users:\n- user:\n    client-key-data: hunter2hunter2==\n    x: a", "x: a"),
    "kubeconfig token": ("    token: hunter2\n    x: a", "x: a"),
    "ceph": ("[client.admin]\n\tkey = AQhunter2hunter2hunter2hunter2==\n\tcaps", "caps"),
    "ceph secret": ("h:/ /mnt ceph name=a,secret=hunter2==,rw", ",rw"),
    "wireguard": ("PrivateKey = hunter2hunter2hunter2=\nAddress", "Address"),
    "cifs credentials": ("credentials=/root/hunter2,rw", ",rw"),
    "netrc": ("machine h login a password hunter2\nmachine i", "machine i"),
    "docker auth": ('{"auths": {"r": {"auth_key": "hunter2"}}}', '"auths"'),
    # Options.
    "--password X": ("prog --password hunter2 --user a", "--user a"),
    "--password=X": ("prog --password=hunter2 --user a", "--user a"),
    "--token quoted": ("prog --api-token 'hunter2 x' --user a", "--user a"),
    "-password X": ("keytool -storepass a -password hunter2 -v", "-v"),
    "sshpass -p X": ("sshpass -p hunter2 ssh h", "ssh h"),
    "sshpass -pX": ("sshpass -phunter2 ssh h", "ssh h"),
    "mysql -pX": ("mysql -u root -phunter2 db", " db"),
    "docker login": ("docker login -u a -p hunter2 h", " h"),
    "ipmitool -P X": ("ipmitool -H h -U a -P hunter2 power cycle", "power cycle"),
    "curl -u": ("curl -s -u a:hunter2 https://h/", "https://h/"),
    "smbclient -U": ("smbclient -U a%hunter2 //h/s", "//h/s"),
    "ldapsearch -w": ("ldapsearch -D cn=a -w hunter2 -b dc=b", "-b dc=b"),
    "redis-cli -a": ("redis-cli -h h -a hunter2 ping", "ping"),
    "openssl pass:": ("openssl rsa -passin pass:hunter2 -in k", "-in k"),
    # Headers.
    "Authorization: token": ("Authorization: token hunter2\nAccept: a", "Accept: a"),
    "Authorization: Basic": ("curl -H 'Authorization: Basic aHVudGVyMg==hunter2' https://h", "https://h"),
    "Authorization: Digest": ('Authorization: Digest response=hunter2, nonce=hunter2\nAccept: a', "Accept: a"),
    "Authorization in JSON": ('{"Authorization": "Bearer hunter2hunter2", "a": 1}', '"a": 1'),
    "bearer": ("sent bearer hunter2hunter2 to h", "to h"),
    "X-Auth-Token": ("X-Auth-Token: hunter2\nAccept: a", "Accept: a"),
    "Cookie": ("Cookie: session=hunter2; a=hunter2\nAccept: a", "Accept: a"),
    # Addresses.
    "user:pass@": ("https://joe:hunter2@mirror.example/debian", "mirror.example/debian"),
    "pass with @": ("https://joe:a@hunter2@mirror.example/", "mirror.example/"),
    "token@": ("git+https://hunter2@h/r.git", "@h/r.git"),
    "proxy": ("http_proxy=http://joe:hunter2@proxy:3128/", "proxy:3128"),
    "?sig=": ("https://a.blob.example/c?sv=1&sig=hunter2%2F&se=2", "https://a.blob.example/c?sv=1"),
    "?token=": ("GET /x?token=hunter2&a=b HTTP/1.1", "GET /x?token="),
    "presigned": ("https://s3/o?X-Amz-Credential=hunter2&X-Amz-Signature=hunter2", "https://s3/o"),
    "slack": ("posted to https://hooks.slack.com/services/T0/B0/hunter2 twice", "twice"),
    "teams": ("https://x.webhook.office.com/webhookb2/hunter2@hunter2/y ok", " ok"),
    "power automate": ("https://prod-1.westus.logic.azure.com:443/workflows/hunter2?sig=hunter2 ok", " ok"),
    "discord": ("https://discord.com/api/webhooks/1/hunter2 ok", " ok"),
    "pkcs11 pin": ("pkcs11:token=hsm;pin-value=hunter2;x=1", ";x=1"),
    # Forms.
    "pem": (f"a\n{PEM.format('', '')}\nb", "\nb"),
    "pem rsa": (f"a\n{PEM.format('RSA ', 'RSA ')}\nb", "\nb"),
    "pem openssh": (f"a\n{PEM.format('OPENSSH ', 'OPENSSH ')}\nb", "\nb"),
    "pem in JSON": (json.dumps({"k": PEM.format("EC ", "EC "), "u": "a"}), '"u": "a"'),
    "pem cut": ("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIEhunter2", "a\n"),
    "jwt": (f"got {JWT} from h", "from h"),
    "github": ("clone with ghp_hunter2hunter2hunter2 now", " now"),
    "gitlab": ("glpat-hunter2hunter2hunter2 now", " now"),
    "slack token": ("xoxb-hunter2-hunter2 now", " now"),
    "ngc": ("nvapi-hunter2hunter2hunter2 now", " now"),
    "shadow": ("root:$6$salt$hunter2./hunter2:19000:0", ":19000:0"),
}  # fmt: skip

#: Likewise; each is a text of its own between two lines that have to stay.
MORE: dict[str, str] = json.loads(Path(__file__).with_name("secret_probes.json").read_text())


@pytest.mark.parametrize("name", PROBES)
def test_a_secret_is_gone_and_its_surroundings_stay(name: str) -> None:
    text, stays = PROBES[name]
    redactor = Redactor()
    output = redactor.text(text)
    assert "hunter2" not in output
    assert REDACTED in output
    assert stays in output
    assert redactor.summary()["secret"] >= 1
    assert redactor.text(output) == output, "once is enough"


@pytest.mark.parametrize("name", MORE)
def test_a_secret_between_other_lines_is_gone(name: str) -> None:
    redactor = Redactor()
    output = redactor.text(f"x: before\n{MORE[name]}\n\nx: after\n")
    assert "hunter2" not in output.lower()
    assert REDACTED in output
    assert output.startswith("x: before\n")
    assert output.endswith("x: after\n")
    assert redactor.text(output) == output, "once is enough"


def test_there_are_enough_probes() -> None:
    assert len({*PROBES, *MORE}) >= 200


def test_an_access_key_is_known_by_its_form() -> None:
    assert Redactor().text("key AKIAIOSFODNN7EXAMPLE used") == f"key {REDACTED} used"


@pytest.mark.parametrize(
    "name", ["json", "json compact", "json escaped", "json in json", "Authorization in JSON", "pem in JSON"]
)
def test_json_stays_json(name: str) -> None:
    json.loads(Redactor().text(PROBES[name][0]))


@pytest.mark.parametrize(
    "name", ["docker config", "json list", "json nested", "k8s env json", "gcp sa json", "nvme config json", "bmc json"]
)
def test_json_with_lists_and_objects_stays_json(name: str) -> None:
    json.loads(Redactor().text(MORE[name]))


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
