"""Groups that import a verb's module only when the verb runs, so that `--help` is fast; and what they once had."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

import click

from gdsdeploy import console
from gdsdeploy.errors import did_you_mean

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


#: Key of a context for options that stand before the verb: ``gdsdeploy --json plan`` is ``gdsdeploy plan --json``.
EARLY = "gdsdeploy.cli.early"


class Verbs(click.Group):
    """A group over modules that export ``command``, or ``commands`` by verb; verbs defined in place come first."""

    group_class = type

    def __init__(
        self,
        *args: object,
        verbs: Mapping[str, tuple[str, str]] | None = None,
        sections: Mapping[str, Sequence[str]] | None = None,
        **settings: object,
    ) -> None:
        """verbs: verb → (module that exports it, what it does), in the order of use.

        sections: heading in the help → the verbs below it; None: one for all.
        """
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self._verbs, self._sections = verbs or {}, sections

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._verbs:
            module = importlib.import_module(self._verbs[cmd_name][0])
            command = getattr(module, "commands", {}).get(cmd_name) or module.command
        else:
            command = super().get_command(ctx, cmd_name)
        return command if command is None or isinstance(command, click.Group) else _accept_quiet(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            explain_removed(ctx, name)
            ctx.fail(f"No such command {name!r}{did_you_mean(name, self.list_commands(ctx))}")
        resolved = super().resolve_command(ctx, args)
        _require_early(ctx, resolved[0], resolved[1])
        return resolved

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            if error.ctx is not None:
                explain_removed(error.ctx, error.option_name)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        defined = {name: self.commands[name].get_short_help_str(200) for name in super().list_commands(ctx)}
        texts = defined | {name: text for name, (_, text) in self._verbs.items()}
        for heading, names in (self._sections or {"Commands": list(texts)}).items():
            with formatter.section(heading):
                formatter.write_dl([(name, texts[name]) for name in names])


def below(
    package: str, texts: Mapping[str, str], modules: Mapping[str, str], other: str = ""
) -> dict[str, tuple[str, str]]:
    """The ``verbs`` of a package; ``modules``: verb → its module.  Others' is ``other``; empty: named as the verb."""
    return {name: (f"{package}.{modules.get(name, other or name)}", text) for name, text in texts.items()}


def _accept_quiet(command: click.Command) -> click.Command:
    """The command with ``--quiet``, which the group has, too."""
    if not any("--quiet" in parameter.opts for parameter in command.params):
        place = next((at for at, one in enumerate(command.params) if "--json" in one.opts), len(command.params))
        command.params.insert(place, quiet_option(default=None))
    return command


def quiet_option(default: bool | None) -> click.Option:
    """``-q``; default: None where it stays as it is."""

    def configure(_context: click.Context, _option: click.Parameter, value: bool | None) -> None:
        if value is not None:
            console.configure(quiet=value)

    text = "Print only errors and results."
    return click.Option(
        ["-q", "--quiet"], is_flag=True, default=default, expose_value=False, callback=configure, help=text
    )


def _require_early(ctx: click.Context, verb: str | None, command: click.Command | None) -> None:
    """End with a usage error where an option before the verb isn't one of the verb."""
    if command is None or isinstance(command, click.Group):
        return
    flags = {flag for parameter in command.params for flag in parameter.opts}
    for flag in early_flags(ctx):
        if flag not in flags:
            ctx.fail(f"No such option: {flag}: {verb} doesn't have it")


def early(*names: str) -> click.Option:
    """A flag of the group that is the verb's; the last of ``names`` is what the verb calls it."""

    def note(context: click.Context, _option: click.Parameter, value: bool) -> None:
        if value:
            context.meta.setdefault(EARLY, []).append(names[-1])

    return click.Option(names, is_flag=True, expose_value=False, callback=note, hidden=True)


def early_flags(context: click.Context) -> list[str]:
    """The flags that stand before the verb."""
    return list(context.meta.get(EARLY, []))


def or_early(context: click.Context, option: click.Parameter, value: bool) -> bool:
    """The callback of a flag that the group accepts, too."""
    return value or bool(set(option.opts) & set(early_flags(context)))


@click.command("help")
@click.argument("verbs", metavar="[VERB]...", nargs=-1)
def show_help(verbs: tuple[str, ...]) -> None:
    """Show the help of VERB, such as `gdsdeploy help rollout start`; without VERB, the list of verbs."""
    context = click.get_current_context().find_root()
    words = list(verbs)
    while words:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no verbs: leave out {' '.join(words)}")
        name, verb, words = group.resolve_command(context, words)
        assert verb is not None, "resolve_command has ended the program"
        context = click.Context(verb, info_name=name, parent=context)
    console.data(context.get_help())


commands = {"help": show_help}
