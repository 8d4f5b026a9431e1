"""``gdsdeploy mirror``."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import click

from gdsdeploy import console
from gdsdeploy.cli import options
from gdsdeploy.lock import lockfile
from gdsdeploy.mirror import writing
from gdsdeploy.mirror.fill import KEYRING, mirror, work
from gdsdeploy.repo.fetch import Fetcher


@click.command()
@click.argument("lock", type=options.PATH)
@click.argument("directory", type=options.PATH)
@click.option("--key", metavar="FINGERPRINT", help="Your secret key to sign with; without it, your keys are listed.")
@click.option(
    "--keyring",
    "keyrings",
    type=options.PATH,
    multiple=True,
    metavar="FILE",
    help="Keys of the original indices.",
)
@click.option("--no-dependencies", is_flag=True, help="Only the locked files, without the packages that they need.")
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
    """Write LOCK's files to DIRECTORY as a repository that hosts can use instead of the original ones.

    Every file is checked against the lock's sha256. The mirror includes the system packages that the locked packages
    need, so that provisioning from it needs no other network. gpg signs the indices with your key; hosts trust that
    key for this mirror only. A second run fetches only missing or damaged files. For locks of rpm systems,
    createrepo_c must be installed on this machine.

    \b
    Then serve DIRECTORY with any web server, or mount it on the hosts, and add to the fleet file:
      mirror: {uri: 'http://mirror.example/gds', keyring: DIRECTORY/gdsdeploy-mirror.gpg}

    \b
    Examples:
      gdsdeploy mirror gdsdeploy.lock /srv/gds                      # lists your signing keys
      gdsdeploy mirror gdsdeploy.lock /srv/gds --key 0123…CDEF
    """
    content = lockfile.read(lock)
    fingerprint = writing.signing_key(key)
    unfinished = work(directory)
    with Fetcher() as indices, Fetcher(cache=unfinished) as files:
        result = mirror(
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
        console.json({**asdict(result), "directory": str(result.directory), "keyring": str(result.keyring)})
        return
    for suite in result.suites:
        console.data(f"{suite.os} {suite.architecture}: {suite.stack} locked packages, {suite.system} that they need")
    console.data(f"{result.downloaded} files downloaded ({result.bytes / 1e6:.0f} MB), {result.present} present")
    console.say(f"Next, in the fleet file: mirror: {{uri: …, keyring: {result.directory / KEYRING}}}")
