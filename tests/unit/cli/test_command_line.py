"""What holds for every verb: the list of verbs, FLEET, options before and after the verb, completion; ``--root``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result

from docs.gen import cli
from gdsdeploy import console
from gdsdeploy.cli import SECTIONS, VERBS, group, kmod, options, provision
from gdsdeploy.converge import ansible
from gdsdeploy.errors import HostUnfit

FLEET = """\
version: 1
repositories: {debian: {suites: [trixie]}}
profiles: {gds: {os: debian-13, repositories: [debian]}}
hosts: {gpu1: gds, gpu2: gds, login: gds}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GDSDEPLOY_FLEET", raising=False)
    yield tmp_path
    console.configure(quiet=False)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(group, words)


def contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from contexts(click.Context(command, info_name=name, parent=context))


ROOT = click.Context(group, info_name="gdsdeploy")
LEAVES = [context for context in contexts(ROOT) if not isinstance(context.command, click.Group)]


def test_each_verb_is_in_one_section_of_the_help() -> None:
    assert sorted(verb for verbs in SECTIONS.values() for verb in verbs) == sorted(VERBS)
    lines = invoke("--help").output.splitlines()
    assert [line.removesuffix(":") for line in lines if line.endswith(":") and line[0] != " "] == ["Options", *SECTIONS]


@pytest.mark.parametrize(
    ("words", "nearest"), [("valdate", "validate"), ("rollout strt", "start"), ("kmod adit", "audit")], ids=str
)
def test_a_mistyped_verb_is_answered_with_the_nearest_one(words: str, nearest: str) -> None:
    result = invoke(*words.split())
    assert result.exit_code == 2
    assert f"No such command {words.split()[-1]!r}; did you mean {nearest!r}?" in result.output


def test_help_is_also_a_verb() -> None:
    assert invoke("help", "rollout", "start").output.strip() == invoke("rollout", "start", "--help").output.strip()
    assert invoke("help", "plan", "nothing").exit_code == 2
    assert "did you mean 'plan'?" in invoke("help", "plna").output


@pytest.mark.parametrize("context", LEAVES, ids=lambda context: context.command_path)
def test_every_verb_takes_quiet(context: click.Context) -> None:
    assert [option for option in context.command.params if "--quiet" in option.opts]


def test_quiet_stands_before_or_behind_the_verb() -> None:
    for words in (("-q", "help"), ("help", "-q")):
        console.configure(quiet=False)
        assert invoke(*words).exit_code == 0
        assert console._quiet


def test_options_of_the_verb_stand_before_it_too() -> None:
    assert (
        invoke("--json", "explain", "--error", "5027").output == invoke("explain", "--error", "5027", "--json").output
    )
    assert (
        invoke("--json", "kmod", "trees").output
        == invoke("kmod", "trees", "--json").output
        != invoke("kmod", "trees").output
    )
    refused = invoke("--json", "help")
    assert (refused.exit_code, "No such option: --json: help doesn't have it" in refused.output) == (2, True)
    assert "No such option: --verbose: lock doesn't have it" in invoke("-v", "lock").output


#: The host program's parser judges the other verbs of kmod, and gdslab has its own.
OPTIONS = yaml.safe_load((Path(__file__).parents[2] / "cases" / "options.yml").read_text())
OURS = [c for c in LEAVES if not isinstance(c.command, kmod._Mirror) and " lab " not in c.command_path]
#: What names a mode, where it is an argument.
ARGUMENTS = {"FLEET": ["fleet.yml"], "HOST": ["gpu1"]}


def rules(context: click.Context) -> tuple[options.Rule, ...]:
    return getattr(context.command.callback, "rules", ())


def named(context: click.Context) -> dict[str, click.Option]:
    found = (option for option in context.command.params if isinstance(option, click.Option))
    return {options.long_name(option): option for option in found if "--quiet" not in option.opts}


def value(option: click.Option) -> list[str]:
    if option.is_flag:
        return []
    return [option.type.choices[0] if isinstance(option.type, click.Choice) else "5"]


def useless() -> Iterator[tuple[str, list[str], str, str]]:
    """Verb, words that choose a mode, the mode, and each option that does nothing with it, or without it."""
    for context in OURS:
        own = named(context)
        for rule in rules(context):
            mode, *chosen = ARGUMENTS.get(rule.mode) or rule.mode.split()
            words = [] if rule.holds({}) else [mode, *(chosen or (value(own[mode]) if mode in own else []))]
            for name in filter(rule.refuses, own):
                yield context.command_path, words, rule.mode, name


@pytest.mark.parametrize("context", OURS, ids=lambda context: context.command_path)
def test_every_option_does_something_or_has_a_rule(context: click.Context) -> None:
    own = set(named(context))
    needing = {name for rule in rules(context) if rule.holds({}) for name in own if rule.refuses(name)}
    assert own - needing == set(OPTIONS[context.command_path.partition(" ")[2]])
    modes = {rule.mode.split()[0] for rule in rules(context)} - set(ARGUMENTS)
    assert modes <= own


@pytest.mark.parametrize(("verb", "words", "mode", "option"), list(useless()), ids=lambda value: str(value))
def test_an_option_that_does_nothing_is_refused(verb: str, words: list[str], mode: str, option: str) -> None:
    (context,) = (context for context in OURS if context.command_path == verb)
    done = invoke(*verb.split()[1:], *words, option, *value(named(context)[option]))
    refusal = done.output.splitlines()[-1]
    assert (done.exit_code, option in refusal, mode.split()[0] in refusal) == (2, True, True), done.output
    assert re.search("does not go with|needs", refusal)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("explain --log x --fleet fleet.yml", "--fleet does not go with --log"),
        ("explain --evidence x --timeout 5", "--timeout does not go with --evidence"),
        ("lock fleet.yml --check --upgrade kernel", "--upgrade does not go with --check"),
        ("plan fleet.yml --root / --timeout 5", "--timeout does not go with --root"),
        ("provision fleet.yml --root / --connections 5", "--connections does not go with --root"),
        ("validate --evidence x --load", "--load does not go with --evidence"),
        ("validate fleet.yml --since-boot --load", "--load does not go with --since-boot"),
        ("--json validate fleet.yml --pytest", "--json does not go with --pytest; pytest has -k"),
        ("topology fleet.yml --golden write --json", "--json does not go with --golden write"),
        ("topology fleet.yml --golden check --json", ""),
        ("rollout start fleet.yml --dry-run --html x", "--html does not go with --dry-run"),
    ],
)
def test_what_the_rules_refuse(words: str, refusal: str) -> None:
    """The test above takes the options from the rules themselves."""
    done = invoke(*words.split())
    assert (done.exit_code == 2, refusal in done.output) == (bool(refusal), True), done.output


def test_lists_of_hosts_are_joined(folder: Path) -> None:
    (folder / "fleet.yml").write_text(FLEET)
    assert "has no host 'gpu8'" in str(invoke("topology", "--limit", "gpu1", "--limit", "gpu8").exception)
    assert "has no host 'gpu8'" in str(invoke("topology", "--limit", "gpu8", "--limit", "gpu1").exception)


FLEETS = [
    *(
        "lock",
        "plan",
        "provision",
        "remove --limit gpu1",
        "validate",
        "topology",
        "support-bundle --output x",
        "inventory --output out",
        "kmod preflight",
    ),
    *(
        "kmod builders",
        "rollout start --dry-run",
        "rollout status",
        "rollout history",
        "rollout pause",
        "rollout abort",
    ),
    *("cufile render gpu1", "provision --check", "validate --pytest -- -k storage"),
]


@pytest.mark.parametrize("words", FLEETS)
def test_without_fleet_it_is_fleet_yml_here_or_what_the_setting_names(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ansible, "flags", lambda words: ansible.Flags(tuple(words)))
    missing = invoke(*words.split())
    assert (missing.exit_code, "Missing argument 'FLEET': this folder has no fleet.yml" in missing.output) == (2, True)
    monkeypatch.setenv("GDSDEPLOY_FLEET", "other.yml")
    assert "other.yml" in str(invoke(*words.split()).exception)
    monkeypatch.delenv("GDSDEPLOY_FLEET")
    (folder / "fleet.yml").write_text("version: 1\nnonsense: true\n")
    assert "fleet.yml:2" in str(invoke(*words.split()).exception)


def test_a_word_that_is_missing_behind_fleet_is_named(folder: Path) -> None:
    (folder / "fleet.yml").write_text(FLEET)
    assert "Missing argument 'HOST'" in invoke("cufile", "render").output


def completions(*words: str) -> list[str]:
    *before, incomplete = words
    results = ShellComplete(group, {}, "gdsdeploy", "_GDSDEPLOY_COMPLETE").get_completions(before, incomplete)
    return [completion.value for completion in results]


def test_hosts_and_checks_are_completed(folder: Path) -> None:
    assert completions("plan", "--limit", "") == []
    (folder / "fleet.yml").write_text(FLEET)
    assert completions("plan", "--limit", "g") == ["gpu1", "gpu2"]
    assert completions("validate", "--limit", "login,gpu") == ["login,gpu1", "login,gpu2"]
    assert completions("explain", "l") == ["login"]
    assert "secure-boot.signatures" in completions("validate", "--check", "secure")
    (folder / "other.yml").write_text(FLEET.replace("login", "storage"))
    assert completions("plan", "other.yml", "--limit", "s") == ["storage"]
    (folder / "fleet.yml").write_text("{")
    assert completions("plan", "--limit", "g") == []


LAB = Path(__file__).parents[2] / "golden" / "lab"
ROOT_VERBS = {"plan": provision.plan, "provision": provision.provision_hosts, "remove": provision.remove_hosts}


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    for name in ("fleet.yml", "gdsdeploy.lock"):
        shutil.copyfile(LAB / name, tmp_path / name)
    return tmp_path / "fleet.yml"


def result(verb: str, *words: str | Path) -> tuple[int, str, BaseException | None]:
    done = CliRunner().invoke(ROOT_VERBS[verb], [str(word) for word in words])
    return done.exit_code, done.output, done.exception


@pytest.mark.parametrize("verb", ["plan", "provision"])
def test_an_image_gets_the_state_of_one_host(verb: str, fleet: Path, tmp_path: Path) -> None:
    status, output, _ = result(verb, fleet, "--root", tmp_path)
    assert (status, "--root needs --limit HOST" in output) == (2, True)
    status, output, _ = result(verb, fleet, "--root", tmp_path, "--limit", "*")
    assert (status, "--limit names 2: build1, gpu1" in output) == (2, True)


@pytest.mark.parametrize("verb", ["provision", "remove"])
def test_flags_of_ansible_have_no_effect_on_an_image(
    verb: str, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ansible, "flags", lambda words: ansible.Flags(tuple(words), frozenset({"check"})))
    status, output, _ = result(verb, fleet, "--root", tmp_path, "--limit", "gpu1", "--check")
    assert (status, "without flags for ansible-playbook" in output) == (2, True)


@pytest.mark.parametrize("verb", list(ROOT_VERBS))
def test_a_folder_that_is_no_image_is_refused(verb: str, fleet: Path, tmp_path: Path) -> None:
    error = result(verb, fleet, "--root", tmp_path / "nowhere", "--limit", "gpu1")[2]
    assert isinstance(error, HostUnfit)


SOURCES = Path(__file__).parents[3]
#: Variables that gdsdeploy sets for programs that it starts.
INTERNAL = {"GDSDEPLOY_CONTROLLER", "GDSDEPLOY_EVENTS"}


def test_every_variable_is_on_the_page() -> None:
    sources = [path.read_text() for folder in ("gdsdeploy", "lab") for path in (SOURCES / folder).rglob("*.py")]
    used = {name for text in sources for name in re.findall(r"\bGDSDEPLOY_[A-Z_]+\b", text)}
    assert used - INTERNAL == {name for name in cli.VARIABLES if name.startswith("GDSDEPLOY_")}
