"""What only reads a fleet file runs nothing of it, reads nothing elsewhere, and shows no line of another file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gdsdeploy import cli
from gdsdeploy.errors import FleetInvalid, GdsError, LockInvalid, RepositoryUntrusted, RepositoryUnusable
from gdsdeploy.fleetfile import ansible_inventory
from gdsdeploy.fleetfile.load import CONFINED, TRUSTED, confined, load_fleet, names_in, own_blocks
from gdsdeploy.lock import lockfile
from gdsdeploy.repo import fetch, repository
from tests import commandline
from tests.loopback.verbs import verbs

#: Verb with the words that make it load FLEET → how it loads it.  ``lock`` and the like are safe for unreviewed files.
MODES = {
    "init --inventory FOLDER/hosts -o FOLDER/new.yml": "confined",
    "lock FLEET": "confined",
    "lock --check FLEET": "confined",
    "lock --explain driver FLEET": "confined",
    "lock --upgrade FLEET": "confined",
    "lock --adopt gpu1 FLEET": "confined",
    "lock --prove FLEET": "confined",
    "cufile render FLEET gpu1": "confined",
    "explain gpu1 --fleet FLEET": "confined",
    "kmod builders FLEET": "confined",
    "kmod preflight FLEET": "trusted",
    "plan FLEET": "trusted",
    "provision FLEET": "trusted",
    "remove FLEET --limit gpu1": "trusted",
    "inventory FLEET -o FOLDER/out": "trusted",
    "validate FLEET": "trusted",
    "validate FLEET --pytest": "trusted",
    "support-bundle FLEET -o FOLDER/x.tar.gz": "trusted",
    "watch FLEET --once": "trusted",
    "topology FLEET": "trusted",
    "rollout start FLEET --yes": "trusted",
    "rollout start FLEET --dry-run": "trusted",
    "rollout status FLEET": "trusted",
    "rollout history FLEET": "trusted",
    "rollout resume FLEET": "trusted",
    "rollout pause FLEET": "trusted",
    "rollout abort FLEET": "trusted",
    "rollout rollback FLEET --yes": "trusted",
}
#: Verbs that load the fleet file beside a lock, and no inventory.
WITHOUT_INVENTORY = {"mirror"}
#: Verbs that load no fleet file.
NONE = {
    "cufile check", "diff", "doctor", "fits", "gdscheck parse", "help", "kmod audit", "kmod build", "kmod sign",
    "kmod keygen",
    "kmod enrol", "kmod unenrol", "kmod trees", "kmod cache list", "kmod cache prune", "kmod cache verify",
    "prometheus alerts", "prometheus dashboard", "sudoers",
    *(f"lab {name}" for name in ("demo", "down", "list", "mokmanager", "plug", "setup", "ssh", "up")),
}  # fmt: skip

Monkey = pytest.MonkeyPatch
SECRET = "hunter2"
#: What a root-only file may look like: of accounts, of keys and values, of keys alone, of one word, of JSON.
CONTENTS = (
    "root:$6$hunter2salt$hunter2:19000:0:99999:7:::\nhunter2:*:19000:0:99999:7:::\n",
    "DatabaseHunter2: x\nPassword.Hunter2/a: hunter2\n",
    "hunter2+/=: \nhunter2+/=: \n? [hunter2]\n: x\n",
    "hunter2",
    '{"hunter2 x": ["hunter2"], "hunter2 y": 1}',
    "*HUNTER2 !hunter2 %hunter2\n",
    "a: *HUNTER2\n",
    "a: !!int hunter2\n",
    "Hunter2: 1\nHunter2: 1\n",
    "'hunter2' hunter2: x\n",
)
OWN = {
    "uri": "file://FOLDER/none",
    "suites": ["trixie"],
    "components": ["main"],
    "keyring": "/etc/ssl/none.gpg",
    "fingerprints": ["A" * 40],
}


def fleet_file(folder: Path, **more: object) -> Path:
    """A fleet file whose only repository is in ``folder``, and isn't there; ``more``: other keys."""
    value = {
        "version": 1,
        "profiles": {"gds": {"os": "debian-13", "repositories": ["own"]}},
        "repositories": {"own": OWN},
        "hosts": {"gpu1": "gds"},
        **more,
    }
    path = folder / "fleet.yml"
    path.write_text(yaml.safe_dump(value).replace("FOLDER", str(folder)))
    return path


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Beside an inventory that is a program, which makes it."""
    program = tmp_path / "hosts"
    program.write_text(f'#!/bin/sh\ntouch {tmp_path}/marker\necho \'{{"all": {{"hosts": ["gpu1"]}}}}\'\n')
    program.chmod(0o755)
    return tmp_path / "marker"


@pytest.fixture(autouse=True)
def _own_folder(own_folders: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GDSDEPLOY_FLEET", raising=False)
    monkeypatch.chdir(tmp_path)


def verb_of(line: str, everything: set[str]) -> str:
    return max((verb for verb in everything if f"{line} ".startswith(f"{verb} ")), key=len)


def test_every_verb_is_listed() -> None:
    """A new verb goes into one of the lists above."""
    everything = set(verbs(cli.group))
    named = {verb_of(line, everything) for line in MODES}
    assert named | NONE | WITHOUT_INVENTORY == everything
    assert not named & NONE


@pytest.mark.parametrize("line", MODES)
def test_how_a_verb_loads_a_fleet_file(
    line: str, marker: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each verb says no to an inventory that is a program, or would run it."""
    path = fleet_file(marker.parent, inventory={"file": "hosts", "groups": {"all": "gds"}})

    def asked(*_: object, **__: object) -> None:
        raise FleetInvalid("ansible-inventory would run now")

    monkeypatch.setattr(ansible_inventory, "hosts_of", asked)
    words = line.replace("FLEET", str(path)).replace("FOLDER", str(path.parent)).split()
    code, text = commandline.run(*words), "".join(capfd.readouterr())
    assert code == FleetInvalid.exit_code, text
    if MODES[line] == "trusted":
        assert "ansible-inventory would run now" in text
        return
    assert "hosts is a program, which isn't run here" in text
    assert "--run-inventory" in text
    assert line.startswith("init") or "fleet.yml:4:9: inventory.file: " in text


@pytest.mark.parametrize("line", [line for line, mode in MODES.items() if mode == "confined"])
def test_run_inventory_says_yes_for_one_run(line: str, marker: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = fleet_file(marker.parent, inventory={"file": "hosts", "groups": {"all": "gds"}})
    words = line.replace("FLEET", str(path)).replace("FOLDER", str(path.parent)).split()
    (marker.parent / "gdsdeploy.lock").write_text("x")
    assert commandline.run(*words) == FleetInvalid.exit_code
    assert not marker.exists()
    capfd.readouterr()
    if "kmod" in line or "--check" in line:
        commandline.run(*words, "--run-inventory")
        assert marker.exists(), capfd.readouterr().err


#: What leads out of the fleet file's folder → what of the fleet file names it.
NAMED: dict[str, Callable[[Path], dict[str, object]]] = {
    "fleet.yml": lambda _: {},
    "gdsdeploy.lock": lambda _: {},
    "gdsdeploy.lock.sig": lambda _: {},
    "fleet.compat.yml": lambda _: {},
    "golden.json": lambda _: {"profiles": {"gds": {"os": "debian-13", "topology": {"golden": "golden.json"}}}},
    "keys.gpg": lambda folder: {"repositories": {"own": {**OWN, "keyring": f"{folder}/keys.gpg"}}},  # type: ignore[index]
    "mirror.gpg": lambda _: {"mirror": {"uri": "http://127.0.0.1:1/", "keyring": "mirror.gpg"}},
    "allowed": lambda _: {"signers": "allowed", "fleet_id": "0" * 32},
    "revoked": lambda _: {"signers": "fleet.yml", "revoked_signers": "revoked", "fleet_id": "0" * 32},
    "list": lambda _: {"inventory": {"file": "list", "groups": {"all": "gds"}}},
    "credentials": lambda _: {"credentials": "credentials"},
}
READERS = (
    "lock fleet.yml", "lock --check fleet.yml", "lock --explain driver fleet.yml", "lock --upgrade fleet.yml",
    "lock --allow-file-repositories fleet.yml", "mirror gdsdeploy.lock out", "kmod builders fleet.yml",
    "cufile render fleet.yml gpu1", "explain gpu1 --fleet fleet.yml", "diff fleet.yml gdsdeploy.lock",
    "validate --evidence fleet.yml",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("number", [0, 1])
def test_no_line_of_a_file_elsewhere_is_shown(
    name: str, number: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    os.chdir(folder)
    secret = tmp_path / "secret"
    secret.write_text(CONTENTS[number])
    secret.chmod(0o600)
    fleet_file(folder, **NAMED[name](folder))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    for line in READERS:
        code, text = commandline.run(*line.split()), "".join(capfd.readouterr())
        assert SECRET not in text.lower(), line
        assert code in (0, *range(10, 20), 1, 20, 30, 60), (line, text)
        assert "Traceback" not in text
    if name not in ("golden.json", "credentials", "list", "gdsdeploy.lock.sig"):
        commandline.run("lock", "fleet.yml")
        assert f"{'is a link that leads out of'} " in capfd.readouterr().err
    assert (folder / name).is_symlink(), "and nothing replaced it"
    assert secret.read_text() == CONTENTS[number]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMED)
def test_a_pipe_with_a_writer_is_not_waited_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet_file(tmp_path, **NAMED[name](tmp_path))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    writer = os.open(tmp_path / name, os.O_RDWR)
    # Reports and recordings may come out of a pipe: diff <(ssh …) new.json.
    for line in (line for line in READERS if not line.startswith(("diff", "validate"))):
        code, text = commandline.run(*line.split()), "".join(capfd.readouterr())
        assert code in (0, *range(10, 20), 1, 20, 30, 60), (line, text)
        assert "Traceback" not in text
    os.close(writer)


@pytest.mark.parametrize("content", CONTENTS)
def test_a_file_that_is_none_of_these_is_never_quoted(content: str, tmp_path: Path) -> None:
    """Also where the link is followed, or somebody names the wrong file."""
    path = tmp_path / "fleet.yml"
    path.write_text(content)
    (tmp_path / "fleet.compat.yml").write_text(content)
    readers: list[Callable[[], object]] = [
        lambda: load_fleet(path, TRUSTED), lambda: lockfile.read(path), lambda: own_blocks(path)
    ]  # fmt: skip
    for read in readers:
        with pytest.raises((FleetInvalid, LockInvalid)) as caught:
            read()
        words = caught.value.message + str(caught.value.hint)
        assert "hunter2" not in words.lower()


def test_links_that_stay_in_the_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    fleet_file(tmp_path).rename(tmp_path / "real" / "x.yml")
    (tmp_path / "fleet.yml").symlink_to("real/x.yml")
    assert list(load_fleet(tmp_path / "fleet.yml").hosts) == ["gpu1"]
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "y.yml").symlink_to("../fleet.yml")
    (tmp_path / "fleet.yml").unlink()
    fleet_file(tmp_path)
    with pytest.raises(FleetInvalid, match="leads out of its folder"):
        load_fleet(tmp_path / "link" / "y.yml")
    assert list(load_fleet(tmp_path / "link" / "y.yml", TRUSTED).hosts) == ["gpu1"]


def test_names_elsewhere_that_fleets_need(tmp_path: Path) -> None:
    """A distribution's keyring, and signers that the fleet's authors can't change."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    (tmp_path / "keys").write_text("x")
    own = {**OWN, "uri": f"file://{folder}/repo", "keyring": str(tmp_path / "keys")}
    path = fleet_file(folder, repositories={"own": own}, signers="../keys", fleet_id="0" * 32)
    assert load_fleet(path, confined(file_repositories=False)).signers == "../keys"


@pytest.mark.parametrize("key", ["suites", "components"])
@pytest.mark.parametrize("word", ["../../else/", "a/../../else", "%2e%2e/%2E./else/", ".."])
def test_no_suite_leads_out_of_its_repository(key: str, word: str, tmp_path: Path) -> None:
    path = fleet_file(tmp_path, repositories={"own": {**OWN, "uri": f"file://{tmp_path}/repo", key: [word]}})
    with pytest.raises(FleetInvalid, match=rf"repositories.own.{key}.0: leave \.\. out"):
        load_fleet(path)


@pytest.mark.parametrize("way", ["{0}", "/proc/self/cwd"])
def test_no_link_in_a_repository_leads_out_of_the_folder(way: str, tmp_path: Path, monkeypatch: Monkey) -> None:
    folder = tmp_path / "fleet"
    (folder / "repo" / "inner").mkdir(parents=True)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "secret").write_text(SECRET)
    (folder / "repo" / "file").symlink_to(tmp_path / "else" / "secret")
    (folder / "repo" / "folder").symlink_to("../../else")
    (folder / "repo" / "inner" / "good").symlink_to("../real")
    (folder / "repo" / "real").write_text("good")
    monkeypatch.chdir(folder)
    uri = f"file://{way.format(folder)}/repo"
    with fetch.Fetcher(tmp_path / "cache", apt={}, within=Path()) as fetcher:
        assert fetcher.small(f"{uri}/inner/good") == b"good"
        for name in ("file", "folder/secret", "folder/none"):
            for read in (fetcher.small, fetcher.has, lambda it: fetcher.file(it, sha256="0" * 64, size=7)):
                with pytest.raises(RepositoryUnusable, match="is a link that leads out of"):
                    read(f"{uri}/{name}")


@pytest.mark.parametrize("uri", ["file:///etc", "file://{0}/../else", "file://{0}/link", "file://{0}/%2e%2e/else"])
def test_a_repository_in_a_folder_elsewhere_needs_a_word(
    uri: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    (tmp_path / "else").mkdir()
    (folder / "link").symlink_to("../else")
    own = {**OWN, "uri": uri.format(folder)}
    path = fleet_file(folder, repositories={"own": own})
    assert commandline.run("lock", path) == FleetInvalid.exit_code
    err = capfd.readouterr().err
    assert f"{path}:" in err
    assert "repositories.own.uri: is a folder of this machine outside the fleet file's" in " ".join(err.split())
    commandline.run("lock", path, "--allow-file-repositories")
    assert "outside the fleet file's" not in capfd.readouterr().err
    assert load_fleet(path, CONFINED), "who fetches nothing has nothing to allow"


@pytest.mark.parametrize(
    "files",
    [
        {"list": "plugin: ansible.builtin.generator\nhosts: {name: gpu1}\nlayers: {}\n"},
        {"list": "{plugin: ansible.builtin.constructed}\n"},
        {"list": "#!/bin/sh\necho {}\n"},
        {"list/a.ini": "[all]\ngpu1\n", "list/b.yml": "\nplugin: ansible.builtin.constructed\n"},
        {"list": "[all]\ngpu1\n", "group_vars/all": "-> ../../secret"},
        {"list": "[all]\ngpu1\n", "host_vars": "-> ../folder"},
        {"list/a.ini": "-> ../../secret"},
        {"list/more": "-> ../other", "other/a.ini": "[all]\ngpu1\n"},
        {"list": "-> ../secret"},
    ],
    ids=str,
)
def test_inventories_that_are_no_list_in_the_folder(files: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "gpu1.yml").write_text("ansible_user: hunter2\n")
    (tmp_path / "secret").write_text("hunter2 hunter2\n")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if content.startswith("-> "):
            (folder / name).symlink_to(content[3:])
        else:
            (folder / name).write_text(content)
    path = fleet_file(folder, inventory={"file": "list", "groups": {"all": "gds"}})
    with pytest.raises(FleetInvalid) as caught:
        load_fleet(path)
    assert caught.value.message.startswith(f"{path}:4:9: inventory.file: ")
    assert "--run-inventory" in str(caught.value.hint)
    assert SECRET not in caught.value.message


@pytest.mark.parametrize("place", ["list", "group_vars/all.yml", "list/inner/hosts"])
def test_a_pipe_as_an_inventory_is_not_waited_for(place: str, tmp_path: Path) -> None:
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / place)
    if not place.startswith("list"):
        (tmp_path / "list").write_text("[all]\ngpu1\n")
    path = fleet_file(tmp_path, inventory={"file": "list", "groups": {"all": "gds"}})
    with pytest.raises(FleetInvalid, match="is not a file"):
        load_fleet(path)


ALIASES = ", ".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 40)}]" for n in range(1, 6))


@pytest.mark.parametrize(
    "text",
    ["[all]\ngpu[1:900000000]\n", f"all: {{hosts: {{gpu1: {{}}}}, vars: {{a0: &a0 [{'x, ' * 40}x], {ALIASES}}}}}\n"],
)
def test_a_short_list_that_becomes_a_long_one_takes_bounded_memory(
    text: str, tmp_path: Path, monkeypatch: Monkey
) -> None:
    monkeypatch.setattr(ansible_inventory, "MEMORY", 300 << 20)
    (tmp_path / "list.yml").write_text(text)
    path = fleet_file(tmp_path, inventory={"file": "list.yml", "groups": {"all": "gds"}})
    with pytest.raises(FleetInvalid, match=r"becomes more than the 300 MiB|cannot read it"):
        load_fleet(path)


def test_a_list_of_hosts_is_read_with_its_variables(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("[gpu]\ngpu[1:2]\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gpu.yml").write_text("ansible_user: someone\n")
    path = fleet_file(tmp_path, inventory={"file": "list", "groups": {"gpu": "gds"}}, hosts={})
    assert {name: host.user for name, host in load_fleet(path).hosts.items()} == {"gpu1": "someone", "gpu2": "someone"}


def test_a_programs_configuration_in_disguise_is_not_run(tmp_path: Path) -> None:
    """What the look beforehand doesn't see, Ansible's readers of lists refuse: no plugin is enabled beside them."""
    (tmp_path / "list.yml").write_text("{hosts: {name: gpu9}, layers: {a: [b]}, plugin: ansible.builtin.generator}\n")
    path = fleet_file(tmp_path, inventory={"file": "list.yml", "groups": {"all": "gds"}})
    with pytest.raises(FleetInvalid, match="ansible-inventory cannot read it") as caught:
        load_fleet(path)
    assert "--run-inventory" in str(caught.value.hint)


def test_completion_reads_no_inventory_and_no_link(marker: Path) -> None:
    folder = marker.parent
    path = fleet_file(
        folder, inventory={"file": "hosts", "groups": {"all": "gds"}}, hosts={"gpu1": "gds", "gpu 2": "gds"}
    )
    environment = {
        **os.environ,
        "_GDSDEPLOY_COMPLETE": "bash_complete",
        "COMP_WORDS": "gdsdeploy plan --limit g",
        "COMP_CWORD": "3",
    }
    program = Path(sys.executable).with_name("gdsdeploy")

    def complete() -> str:
        return subprocess.run(
            [program], cwd=folder, env=environment, capture_output=True, text=True, check=False
        ).stdout

    assert complete() == "plain,gpu1\n"
    assert not marker.exists()
    (folder / "sub").mkdir()
    path.rename(folder / "sub" / "other.yml")
    (folder / "fleet.yml").symlink_to("/etc/hosts")
    assert complete().strip() == ""
    with pytest.raises(GdsError, match="leads out"):
        names_in(folder / "fleet.yml")


ARMOURED = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nhunter2=\n-----END PGP PUBLIC KEY BLOCK-----"


@pytest.mark.parametrize("content", [b"hunter2", ARMOURED, None])
def test_any_file_may_be_named_as_a_keyring(content: bytes | None, tmp_path: Path) -> None:
    ring = tmp_path / "ring"
    ring.touch()
    if content is None:
        os.truncate(ring, 1 << 40)
    else:
        ring.write_bytes(content)
    with pytest.raises((RepositoryUnusable, RepositoryUntrusted)) as caught:
        repository.verify(b"x", keyring=ring, fingerprints=["A" * 40], name="index")
    assert SECRET not in str(caught.value)
