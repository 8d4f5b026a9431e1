"""``gdsdeploy mirror``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror import KEYRING, Mirrored, mirror, openpgp, work
from gdsdeploy.repo.fetch import Fetcher


@click.command()
@click.argument("lock", type=options.PATH)
@click.argument("directory", type=options.PATH)
@click.option(
    "--key", metavar="FINGERPRINT", help="Your secret key to sign with; without it, those you have are listed."
)
@click.option(
    "--keyring", "keyrings", type=options.PATH, multiple=True, metavar="FILE", help="Keys of the original indices."
)
@click.option("--no-dependencies", is_flag=True, help="Only the locked files, without what they need of the system.")
@click.option("--jobs", type=click.IntRange(1, 16), default=4, show_default=True, help="Downloads at a time.")
@options.as_json()
def command(
    lock: Path,
    directory: Path,
    key: str | None,
    keyrings: tuple[Path, ...],
    no_dependencies: bool,
    jobs: int,
    as_json: bool,
) -> None:
    """Write the files of LOCK to DIRECTORY as a repository that hosts can use instead of the original ones.

    Every file is checked against the lock's sha256. What the locked packages need of the operating system is
    carried too, so that a provision from the mirror needs no other network. The indices are signed with your own
    key, by gpg; hosts trust that key for this mirror alone. Run again, it fetches only what is missing or damaged.
    For locks of rpm systems, createrepo_c has to be installed on this machine.

    \b
    Then serve DIRECTORY with any web server, or mount it on the hosts, and put into the fleet file:
      mirror: {uri: 'http://mirror.example/gds', keyring: DIRECTORY/gdsdeploy-mirror.gpg}

    \b
    Examples:
      gdsdeploy mirror gdsdeploy.lock /srv/gds                      # lists the keys you could sign with
      gdsdeploy mirror gdsdeploy.lock /srv/gds --key 0123…CDEF
    """
    content = lockfile.read(lock)
    fingerprint = openpgp.signing_key(key)
    unfinished = work(directory)
    with Fetcher() as indices, Fetcher(cache=unfinished) as files:
        made = mirror(
            content,
            directory,
            fingerprint,
            indices=indices,
            files=files,
            dependencies=not no_dependencies,
            keyrings=keyrings,
            jobs=jobs,
            step=console.step,
            progress=console.say,
        )
    shutil.rmtree(unfinished)
    if as_json:
        console.data(_json(made))
        return
    for suite in made.suites:
        console.data(f"{suite.os} {suite.architecture}: {suite.stack} locked packages, {suite.system} that they need")
    console.data(f"{made.downloaded} files downloaded ({made.bytes / 1e6:.0f} MB), {made.present} were there")
    console.say(f"Next, in the fleet file: mirror: {{uri: …, keyring: {made.directory / KEYRING}}}")


def _json(made: Mirrored) -> str:
    suites = [
        {"os": suite.os, "architecture": suite.architecture, "stack": suite.stack, "system": suite.system}
        for suite in made.suites
    ]
    found = {
        "directory": str(made.directory),
        "keyring": str(made.keyring),
        "fingerprint": made.fingerprint,
        "suites": suites,
        "downloaded": made.downloaded,
        "bytes": made.bytes,
        "present": made.present,
    }
    return json.dumps(found, indent=2)
