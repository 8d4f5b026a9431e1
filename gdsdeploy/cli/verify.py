"""``gdsdeploy verify``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.attest import policy as policies
from gdsdeploy.attest.verify import Result, Verified, verify
from gdsdeploy.cli import options


@click.command()
@click.argument("paths", type=options.PATH, nargs=-1, required=True, metavar="PATH…")
@click.option("--policy", type=options.PATH, required=True, metavar="FILE", help="Whose signatures are accepted.")
@options.as_json()
def command(paths: tuple[Path, ...], policy: Path, as_json: bool) -> None:
    """Verify signed locks, archives of modules and validations, without a network.

    PATH is a file with its statement FILE.intoto.json beside it, a statement, an archive of modules (*.tar), or a
    folder or a tar file of one. In a folder every file has to be covered by a statement, and every file that a
    statement is about has to be there. What holds is printed with who signed it, when, and every digest; a signed
    validation holds whatever its verdict is, so read that, too. docs/attest.md has the fields.

    \b
    A policy names public keys, in files beside it, and what each may sign:
      version: 1
      keys: {alice: operator.pub, build1: build1.pub}
      accept: {lock: [alice], validation: [alice], modules: [build1]}
    `lock --sign` says where your own operator.pub is; `kmod builders` shows those of machines that build.

    \b
    Exit code, of the last error:
      60  a file is not a signed statement, is not what was signed, is missing or is not covered
      61  no key that the policy accepts for this kind of statement has signed it, or the policy has expired
      62  the policy cannot be used
      19  a key of the policy cannot be used
      0   everything holds

    \b
    Examples:
      gdsdeploy verify gdsdeploy.lock --policy trust.yml
      gdsdeploy verify acceptance/ --policy trust.yml
      gdsdeploy verify modules-6.12.94.tar --policy trust.yml --json
    """
    accepted = policies.read(policy, dt.datetime.now(dt.UTC).date())
    found = Result()
    for path in paths:
        one = verify(path, accepted)
        found.verified += one.verified
        found.errors += one.errors
    if as_json:
        errors = [{"kind": type(e).__name__, "message": e.message, "hint": e.hint} for e in found.errors]
        value = {"policy": str(policy), "verified": [_shown(item) for item in found.verified], "errors": errors}
        console.json(value)
    else:
        for item in found.verified:
            files = f"{len(item.files)} file{'' if len(item.files) == 1 else 's'}"
            console.data(f"{item.place}: {item.kind}, signed by {item.signer} (key {item.key_id[:16]}), {files}")
            digests = [f"sha256:{digest} {name}" for name, digest in item.statement.files().items()]
            for line in (*item.statement.about().lines(), *digests):
                console.data(f"  {line}")
    for error in found.errors[:-1]:
        console.error(error.message, error.hint)
    if found.errors:
        raise found.errors[-1]


def _shown(item: Verified) -> dict[str, object]:
    named = {key: getattr(item, key) for key in ("place", "kind", "signer", "key_id", "files")}
    return {**named, "statement": item.statement.model_dump(by_alias=True)}
