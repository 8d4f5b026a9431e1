"""Arguments and options that several verbs share."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gdsdeploy import console, paths
from gdsdeploy.cli.verbs import early_flags, or_early
from gdsdeploy.errors import GdsError
from gdsdeploy.report import model
from gdsdeploy.ssh import endpoint

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


def fleet_argument(*, before: str = "", alone: str = "") -> Decorator:
    """The argument FLEET, which the commands in errors then name.  Its default is ``paths.default_fleet()``.

    before: the argument behind it.  If FLEET is left out, the command line's first word is that argument's: where it is
    the only word, or, of an argument with any number of words, where it is an option.
    alone: a parameter with which the command needs no fleet.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*arguments: Any, **options: Any) -> Any:
            if before:
                _shift(options, before)
            if options["fleet"] is None and not (alone and options[alone]):
                options["fleet"] = _default_fleet()
            if before and options[before] is None:
                raise click.UsageError(f"Missing argument '{before.upper()}'.")
            try:
                return command(*arguments, **options)
            except GdsError as error:
                if options["fleet"] is not None:
                    error.name_fleet(options["fleet"])
                raise

        return click.argument("fleet", required=False, type=PATH)(run)

    return decorate


fleet = fleet_argument()
#: Of verbs whose argument is a host.
fleet_of_host = click.option(
    "--fleet",
    type=FILE,
    default=paths.DEFAULT_FLEET,
    envvar=paths.FLEET_SETTING,
    show_default=True,
    show_envvar=True,
    metavar="FILE",
    help="HOST's fleet file.",
)


def _default_fleet() -> Path:
    path = paths.default_fleet()
    if path == paths.DEFAULT_FLEET and not path.exists():
        words = f"Missing argument 'FLEET': this folder has no {path}, and ${paths.FLEET_SETTING} isn't set."
        raise click.UsageError(words)
    return path


def _shift(options: dict[str, Any], name: str) -> None:
    """Move what stands in FLEET's place and isn't a fleet to the argument ``name`` behind it."""
    word, behind = options["fleet"], options[name]
    if behind is None:
        options["fleet"], options[name] = None, word
    elif isinstance(behind, tuple) and str(word or "").startswith("-"):
        options["fleet"], options[name] = None, (str(word), *behind)


def complete_hosts(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Hosts and builders, for the last name of a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _names(context) if name.startswith(last)]


def complete_host_or_file(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    """Hosts; where the word can't be one, files."""
    if "/" not in incomplete and (names := complete_hosts(context, parameter, incomplete)):
        return [click.shell_completion.CompletionItem(name) for name in names]
    return [click.shell_completion.CompletionItem(incomplete, type="file")]


def complete_checks(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[click.shell_completion.CompletionItem]:
    """Checks, with what they mean."""
    # Checks import what facts are made of, which other verbs do without.
    from gdsdeploy.host.checks import listed

    return [
        click.shell_completion.CompletionItem(check.id, help=check.title)
        for check in listed()
        if check.id.startswith(incomplete)
    ]


def _names(context: click.Context) -> list[str]:
    from gdsdeploy.fleetfile.load import names_in

    # Behind an option that lacks its value, click leaves arguments unparsed.
    unparsed = next((Path(word) for word in context.args if word.endswith((".yml", ".yaml"))), None)
    with contextlib.suppress(GdsError):
        return names_in(context.params.get("fleet") or unparsed or paths.default_fleet())
    return []


def listed(name: str, text: str, metavar: str = "HOST[,HOST…]", *more: str) -> Decorator:
    """An option that is a list with commas; given twice, both lists count."""

    def join(_context: click.Context, _option: click.Parameter, lists: tuple[str, ...]) -> str | None:
        return ",".join(lists) if lists else None

    completion = complete_hosts if metavar.startswith("HOST") else None
    return click.option(
        name, *more, metavar=metavar, multiple=True, callback=join, shell_complete=completion, help=text
    )


limit = listed("--limit", "Only these hosts; shell patterns and node[1-3,7] work.")
limit_with_builders = listed("--limit", "Only these hosts or builders; shell patterns and node[1-3,7] work.")
run_inventory = click.option(
    "--run-inventory", is_flag=True, help="Run an inventory that is a program or a plugin; the others are read anyway."
)
allow_file_repositories = click.option(
    "--allow-file-repositories",
    is_flag=True,
    help="Use repositories (file://) outside the fleet file's folder on this machine.",
)
allow_older_lock = click.option(
    "--allow-older-lock", is_flag=True, help="Accept a lock that is older than the one that a host has."
)
#: The folder of an image, in place of the hosts.
root = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Work in the root folder of an image; --limit names the host whose state it gets.",
)
verbose = click.option(
    "-v", "--verbose", is_flag=True, callback=or_early, help="Show everything: all names, causes and lines of evidence."
)
saved_evidence = click.option(
    "--evidence", "--from", "file", type=PATH, metavar="FILE", help="Read saved evidence; no host is asked."
)
#: of the verbs that change a rollout
reason = click.option(
    "--reason", metavar="TEXT", default="", help="Why; recorded in the journal and sent in notifications."
)
yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
events_as_json = click.option(
    "--json", "as_json", is_flag=True, callback=or_early, help="Print each new event as one line of JSON."
)
html_of_rollout = click.option(
    "--html", type=FILE, metavar="FILE", help="Also write the rollout's report when it ends."
)


def as_json(text: str = "Print one JSON object instead of text.") -> Decorator:
    """``--json``, with another help ``text`` where it prints something else."""
    return click.option("--json", "as_json", is_flag=True, callback=or_early, help=text)


def timeout(seconds: float, text: str = "Seconds for each host.", least: float = 1) -> Decorator:
    """``--timeout`` with its default in ``seconds``."""
    return click.option("--timeout", type=click.FloatRange(min=least), default=seconds, show_default=True, help=text)


#: Of the verbs that ask many hosts.
at_once = click.option(
    "--connections",
    type=click.IntRange(1, endpoint.MOST_AT_ONCE),
    default=endpoint.AT_ONCE,
    show_default=True,
    metavar="N",
    expose_value=False,
    callback=lambda _context, _option, number: endpoint.limit_connections(number),
    help="Hosts to talk to at the same time.",
)


def output(text: str, *names: str, required: bool = False) -> Decorator:
    """``--output``, and further ``names`` of it."""
    return click.option(*names, "--output", type=FILE, metavar="FILE", required=required, help=text)


#: Options, and arguments as OPTIONS, of a command line → their values.
Given = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """Which options do nothing where ``holds`` is true of a command line, and so are refused."""

    #: as a user writes it
    mode: str
    holds: Callable[[Given], bool]
    refuses: Callable[[str], bool]
    #: {} is the refused option
    words: str


def alone(mode: str, *takes: str, hint: str = "") -> Rule:
    """With ``mode``, an option or an option with a value, only the options ``takes`` do something."""
    allowed = {mode.split()[0], "--quiet", *takes}
    return Rule(mode, _has(mode), lambda name: name not in allowed, f"{{}} does not go with {mode}{hint}")


def without(mode: str, *options: str, holds: Callable[[Given], bool] | None = None) -> Rule:
    """With ``mode``, which ``holds`` finds where it is no option, ``options`` do nothing."""
    return Rule(mode, holds or _has(mode), options.__contains__, f"{{}} does not go with {mode}")


def needs(mode: str, *options: str, holds: Callable[[Given], bool] | None = None) -> Rule:
    """``options`` do something only with ``mode``, which ``holds`` finds where it is no option."""
    has = holds or _has(mode)
    return Rule(mode, lambda given: not has(given), options.__contains__, f"{{}} needs {mode}")


def _has(mode: str) -> Callable[[Given], bool]:
    name, _, value = mode.partition(" ")
    return lambda given: name in given and value in ("", given[name])


def combined(*rules: Rule) -> Decorator:
    """End with a usage error for an option that does nothing beside the others, before the command begins."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(*arguments: Any, **options: Any) -> Any:
            given = _given(click.get_current_context())
            for rule in rules:
                if rule.holds(given):
                    for name in filter(rule.refuses, (name for name in given if name.startswith("--"))):
                        raise click.UsageError(rule.words.format(name))
            return command(*arguments, **options)

        run.rules = rules  # type: ignore[attr-defined] # for the test of all of them
        return run

    return decorate


def _given(context: click.Context) -> Given:
    def is_given(parameter: click.Parameter) -> bool:
        source = context.get_parameter_source(str(parameter.name))
        return source is ParameterSource.COMMANDLINE or bool({*parameter.opts} & {*early_flags(context)})

    return {
        long_name(parameter): context.params.get(str(parameter.name))
        for parameter in context.command.params
        if is_given(parameter)
    }


def long_name(parameter: click.Parameter) -> str:
    """``--timeout`` of an option, ``HOST`` of an argument."""
    return next((name for name in parameter.opts if name.startswith("--")), str(parameter.name).upper())


def require(holds: bool, problem: str) -> None:
    """End with a usage error that says ``problem`` unless ``holds``."""
    if not holds:
        raise click.UsageError(problem)


def raise_last(failures: dict[str, GdsError], fleet: Path) -> None:
    """Print every failure once, with its hosts; the last one ends the command with its exit code."""
    errors = model.errors_alike(failures)
    for error in errors:
        error.name_fleet(fleet)
    end_with(errors)


def end_with(errors: Sequence[GdsError | None]) -> None:
    """Print the errors that there are; the last one ends the command with its exit code."""
    there = [error for error in errors if error is not None]
    for error in there[:-1]:
        console.error(error.message, error.hint)
    for error in there[-1:]:
        raise error
