"""What the command line once had: the errors about it say what to use now."""

from __future__ import annotations

import click

SUPPORT = "Read docs/filesystems.md: each filesystem's modes, and what they need"
PROMETHEUS = "Ask your Prometheus server: docs/prometheus.md has the queries. Or read the gates with --since-boot"
REPORT = "Save the report with validate --json, and sign it with ssh-keygen -Y sign: docs/lock.md shows how"
#: Verb, or verb and option, as a user types it after ``gdsdeploy`` → what to use now.
REMOVED = {
    "completion": 'Run eval "$(_GDSDEPLOY_COMPLETE=bash_source gdsdeploy)"; docs/command-line.md has other shells',
    "docs": "Read the folder docs/ of gdsdeploy's sources, or gdsdeploy VERB --help",
    "kmod build --units": "Leave it out: gdsdeploy kmod build builds the driver",
    "kmod preflight --full": "Leave it out: gdsdeploy kmod preflight builds and audits every module",
    "cufile effective": "Run gdsdeploy cufile check FILE --libcufile VERSION for keys without effect; on a host, "
    "gdsdeploy validate compares the file with what its libcufile uses",
    "cufile migrate": "Run gdsdeploy cufile check FILE --libcufile NEW, which names what NEW reads differently",
    "explain --for": "Read docs/consumers.md for what each library needs, and run gdsdeploy explain for this host",
    "explain --launch": "Copy the command for your container manager from docs/containers.md",
    "explain --gpu": SUPPORT,
    "explain --kernel": SUPPORT,
    "explain --libcufile": SUPPORT,
    "explain --mode": SUPPORT,
    "explain --redact": "Pack what others may see with gdsdeploy support-bundle, which replaces names and addresses",
    "explain --ticket": "Pack one file for a vendor's support with gdsdeploy support-bundle FLEET -o FILE --limit HOST",
    "explain --support": SUPPORT,
    "lock --key": "Name the key behind --sign: gdsdeploy lock --sign KEY FLEET",
    "mode": "Run gdsdeploy explain HOST for what keeps a host from a path; docs/modes.md says how to change the mode",
    "validate --attest": REPORT,
    "validate --key": REPORT,
    "validate --prometheus": PROMETHEUS,
    "validate --prometheus-config": PROMETHEUS,
    "validate --prometheus-label": PROMETHEUS,
    "verify": "Check a lock with gdsdeploy lock --check FLEET, and a signed report with ssh-keygen: see docs/lock.md",
    "watch --probe": "Set cufile_stats: 3 for the profile: gdsdeploy watch then counts the bytes of each program",
    "rollout render": "Write a static inventory for these engines with gdsdeploy inventory FLEET -o DIR",
}


def explain_removed(context: click.Context, word: str) -> None:
    """End with a usage error if ``word``, a verb or an option, once stood behind ``context``'s command."""
    # The first word is the program's name.
    removed = " ".join([*context.command_path.split()[1:], word])
    if removed in REMOVED:
        raise click.UsageError(f"gdsdeploy {removed} was removed. {REMOVED[removed]}", ctx=context)
