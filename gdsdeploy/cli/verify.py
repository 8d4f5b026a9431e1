"""``gdsdeploy verify``."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.attest import policy as policies
from gdsdeploy.attest.verify import VerifiedStatement, verify
from gdsdeploy.cli import options


@click.command()
@click.argument("paths", type=options.PATH, nargs=-1, required=True, metavar="PATH…")
@click.option("--policy", type=options.PATH, required=True, metavar="FILE", help="Whose signatures are accepted.")
@options.as_json()
def command(paths: tuple[Path, ...], policy: Path, as_json: bool) -> None:
    """Verify signed locks, archives of modules and validations, without a network.

    PATH is a file with its statement FILE.intoto.json beside it, a statement, an archive of modules (*.tar), or a
    folder or its tar file. In a folder, a statement must cover every file, and every file that a statement names must
    be present. Each valid statement is printed with its signer, time and digests. A signed validation is valid
    whatever its verdict is, so read the verdict too. docs/attest.md describes the fields.

    \b
    A policy names public keys, in files beside it, and what each may sign:
      version: 1
      keys: {alice: operator.pub, build1: build1.pub}
      accept: {lock: [alice], validation: [alice], modules: [build1]}
    `lock --sign` prints the path of your operator.pub; `kmod builders` shows the keys of machines that build.

    \b
    Exit code, of the last error:
      60  a file isn't a signed statement, was changed, is missing or isn't covered
      61  the policy accepts no signature for this kind of statement, or the policy has expired
      62  the policy cannot be used
      19  a key of the policy cannot be used
      0   everything is valid

    \b
    Examples:
      gdsdeploy verify gdsdeploy.lock --policy trust.yml
      gdsdeploy verify acceptance/ --policy trust.yml
      gdsdeploy verify modules-6.12.94.tar --policy trust.yml --json
    """
    accepted = policies.read(policy, dt.datetime.now(dt.UTC).date())
    results = [verify(path, accepted) for path in paths]
    verified = [valid for result in results for valid in result.verified]
    errors = [error for result in results for error in result.errors]
    if as_json:
        problems = [{"kind": type(e).__name__, "message": e.message, "hint": e.hint} for e in errors]
        console.json({"policy": str(policy), "verified": list(map(_document, verified)), "errors": problems})
    else:
        for valid in verified:
            files = f"{len(valid.files)} file{'' if len(valid.files) == 1 else 's'}"
            console.data(f"{valid.place}: {valid.kind}, signed by {valid.signer} (key {valid.key_id[:16]}), {files}")
            digests = [f"sha256:{digest} {name}" for name, digest in valid.statement.files().items()]
            for line in (*valid.statement.about().lines(), *digests):
                console.data(f"  {line}")
    for error in errors[:-1]:
        console.error(error.message, error.hint)
    if errors:
        raise errors[-1]


def _document(valid: VerifiedStatement) -> dict[str, object]:
    fields = {key: getattr(valid, key) for key in ("place", "kind", "signer", "key_id", "files")}
    return {**fields, "statement": valid.statement.model_dump(by_alias=True)}
