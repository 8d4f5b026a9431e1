"""A fleet file for others: what is private is masked by its place, whatever it looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gdsdeploy.files.secret import REDACTED
from gdsdeploy.model.fleet import Fleet
from gdsdeploy.validate.redact import Redactor, mask_fleet, private_keys

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yml"))

#: Each key of a fleet file that a bundle shows.  A new key goes here or is marked as SECRET in the schema.
_PUBLIC = """
signers revoked_signers fleet_id
version repositories mirror ssh profiles builders hosts inventory groups waivers rollout kind uri suites components
keyring
metadata package_keys why
fingerprints signed_by max_age os arch kernel driver flavour options nvidia_fs libcufile mode rdma companions
cuda removes doca gpu cufile fit addresses family pools storage mount path scratch load read write random_read seconds
topology nvme nic golden signing certificate builder builder_fallback modules reboot own_kernel gate enabled before
required_by file slurm metrics measured_boot profile labels port check until reason canary per_kind soak batches
strategy size factor largest max_unavailable apart order skip windows timezone failures later drain by timeout node
on_failure reboot_timeout console reload parallel notify events gpus nics count model link
cufile_stats read_only watch every boot preset arguments module_options imex domain
"""
PUBLIC = frozenset(_PUBLIC.split())

SECRETS = """\
# the old password was hunter2
version: 1
ssh: &site {user: hunter2, identity_file: ~/.ssh/hunter2, config: hunter2, port: 2222}
repositories:
  cuda: {uri: "https://hunter2:hunter2@mirror.example/x?sig=hunter2#hunter2", fingerprints: [AB]}
  odd: {uri: "http://[hunter2/"}
profiles:
  gds:
    os: debian-13
    signing: {key: "pkcs11:hunter2", signer: [/bin/sign, hunter2]}
    driver: {version: "550", options: {key: x}}
hosts:
  gpu1: {<<: *site, profile: gds, address: hunter2, known_hosts: hunter2, labels: {user: a, rack: r1}}
rollout:
  drain: {by: command, out: [drain, hunter2], back: &b [undrain, hunter2], idle: *b, program: [ssh, hunter2]}
  power_cycle: [ipmi, -P, hunter2]
  notify:
    webhook: "https://chat.example/hunter2"  # hunter2
    token_file: hunter2
    command: [page, hunter2]
    events: [halted]
"""


def test_every_private_value_is_masked_and_counted() -> None:
    values: list[str] = []
    text = mask_fleet(SECRETS, values.append)
    assert "hunter2" not in text
    assert "#" not in text
    value = yaml.safe_load(text)
    assert value["repositories"]["cuda"] == {
        "uri": f"https://{REDACTED}@mirror.example/x?{REDACTED}",
        "fingerprints": ["AB"],
    }
    assert value["repositories"]["odd"]["uri"] == REDACTED
    assert value["ssh"]["port"] == 2222
    assert value["rollout"]["notify"]["events"] == ["halted"]
    assert value["rollout"]["drain"]["by"] == "command"
    assert value["profiles"]["gds"]["driver"]["options"] == {"key": "x"}
    assert value["hosts"]["gpu1"]["labels"] == {"user": "a", "rack": "r1"}
    assert "https://chat.example/hunter2" in values


def test_a_webhook_is_taken_out_of_other_texts_too() -> None:
    redactor = Redactor()
    mask_fleet(SECRETS, redactor.secret)
    assert redactor.text("POST https://chat.example/hunter2 failed") == f"POST {REDACTED} failed"
    assert redactor.summary()["secret"] > 10


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_what_is_public_stays(path: Path) -> None:
    before, after = yaml.safe_load(path.read_text()), yaml.safe_load(mask_fleet(path.read_text(), lambda _: None))

    def compare(old: Any, new: Any, key: str) -> None:
        if key in private_keys():
            return
        if isinstance(old, dict):
            assert old.keys() == new.keys()
            for name in old:
                compare(old[name], new[name], name)
        else:
            assert old == new

    compare(before, after, "")


def test_every_key_of_a_fleet_file_is_public_or_private() -> None:
    schema = Fleet.model_json_schema()
    keys = set(schema["properties"])
    for definition in schema["$defs"].values():
        keys |= set(definition.get("properties", {}))
    assert keys - PUBLIC - private_keys() == set(), "say whether a support bundle may show it"
    assert private_keys() - keys == set()


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_stays_empty(text: str) -> None:
    assert mask_fleet(text, lambda _: None) == ""
