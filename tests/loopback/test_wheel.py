"""The source archive and the wheel, not only the checkout: built, installed, and used from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from gdsdeploy import __version__

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
#: Most bytes of the wheel, and of an installation with all dependencies and their compiled files.
WHEEL_BYTES, INSTALLED_BYTES = 3 << 20, 150 << 20
#: Folders of which the source archive has every file; programs leave others beside these files.
FOLDERS = (
    "benchmarks", "changelogs", "docs", "examples", "extensions", "gdsdeploy", "lab", "packaging", "roles", "tests",
)  # fmt: skip
CACHES = re.compile(r"(^|/)(__pycache__|\.[^/]*|[^/]*\.egg-info)/")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the source archive and of the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("built")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True, env=environment(folder))
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sources(built: Path) -> set[str]:
    """The files of the source archive, below its folder."""
    with tarfile.open(*built.glob("*.tar.gz")) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def environment(home: Path) -> dict[str, str]:
    """Variables of a program that sees neither this checkout nor this user's state."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**env, "XDG_STATE_HOME": str(home / "state"), "XDG_CACHE_HOME": str(home / "cache")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Folder of programs of a virtual environment with the wheel and, from this one, its dependencies.

    The folder of this environment is added by a path file; path files in it are not read again, so the checkout
    that is installed here in editable form is not seen there.
    """
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv", with_pip=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    programs = folder / "venv" / "bin"
    argv = [programs / "pip", "install", "--quiet", "--no-deps", wheel]
    subprocess.run(argv, check=True, capture_output=True, env=environment(folder))
    return programs


def run(argv: list[str | Path], cwd: Path, status: int = 0) -> str:
    env = {**environment(cwd), "HOME": str(cwd)}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_it_is_the_wheel_that_is_imported(installed: Path, tmp_path: Path) -> None:
    where = run([installed / "python", "-c", "import gdsdeploy; print(gdsdeploy.__file__)"], tmp_path)
    assert where.startswith(str(installed.parent))


def test_its_dependencies_are_those_it_declares(installed: Path, tmp_path: Path) -> None:
    assert "No broken requirements" in run([installed / "pip", "check"], tmp_path)


def test_the_collection_and_the_templates_are_found(installed: Path, tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from gdsdeploy import resources, run
from gdsdeploy.converge import ansible
collection = resources.collections() / "ansible_collections" / "gdsdeploy" / "gds"
for path in ("galaxy.yml", "meta/runtime.yml", "plugins/action/gds_apply.py", "roles/gds_repo/tasks", "gdsdeploy/host"):
    assert collection.joinpath(path).exists(), path
assert resources.templates().joinpath("cufile.json.j2").is_file()
inventory = Path("inventory.yml")
inventory.write_text("all: {children: {hosts: {hosts: {gpu1: {}}}, builders: {hosts: {build1: {}}}}}")
made = ansible.environment(control_dir=Path("cm"), program=Path("none"))
played = {name: value for name, value in made.items() if value is not None}
for playbook in ("provision", "remove"):
    command = ansible.argv(playbook, inventory, limit=[], extra=["--syntax-check"])
    run.run(command, doing="check", env=played)
"""
    run([installed / "python", "-c", script], tmp_path)


def test_a_fleet_is_provisioned_as_far_as_its_unreachable_host(installed: Path, tmp_path: Path) -> None:
    for name in ("fleet.yml", "gdsdeploy.lock"):
        (tmp_path / name).write_bytes((ROOT / "tests" / "golden" / "lab" / name).read_bytes())
    (tmp_path / "known_hosts").touch()
    (tmp_path / "fleet.yml").write_text(
        (tmp_path / "fleet.yml").read_text().replace("22011", "1").replace("22001", "2")
    )
    output = run([installed / "gdsdeploy", "provision", "fleet.yml"], tmp_path, status=20)
    assert "build1, gpu1: refused\n" in output
    assert output.count("the identity file") == 1


def test_the_suite_runs_from_it(installed: Path, tmp_path: Path) -> None:
    for name in ("fleet.yml", "gdsdeploy.lock"):
        (tmp_path / name).write_bytes((ROOT / "tests" / "golden" / "lab" / name).read_bytes())
    (tmp_path / "known_hosts").touch()
    (tmp_path / "fleet.yml").write_text((tmp_path / "fleet.yml").read_text().replace("22011", "1"))
    output = run([installed / "gdsdeploy", "validate", "fleet.yml", "--pytest", "--", "-q"], tmp_path, status=30)
    assert "test_check[ssh://gpu1-reachable]" in output
    assert "this host could not be asked" in output


@pytest.mark.parametrize("name", ["report/report.schema.json", "fits.schema.json"])
def test_the_schemas_of_outputs_come_along(name: str, installed: Path, tmp_path: Path) -> None:
    script = f"from importlib import resources; print(resources.files('gdsdeploy') / '{name}')"
    assert Path(run([installed / "python", "-c", script], tmp_path).strip()).is_file()


def test_the_tables_come_along_for_itself_and_for_hosts(installed: Path, tmp_path: Path) -> None:
    assert "CU_FILE_HANDLE_NOT_REGISTERED" in run([installed / "gdsdeploy", "explain", "--error", "5027"], tmp_path)
    script = """
import io, zipfile
from gdsdeploy.zipapp import hostapp
print(*zipfile.ZipFile(io.BytesIO(hostapp.build())).namelist(), sep="\\n")
"""
    names = run([installed / "python", "-c", script], tmp_path).split()
    tables = {path.name for path in (ROOT / "gdsdeploy" / "host" / "data").glob("*.json")}
    assert {name.removeprefix("gdsdeploy/host/data/") for name in names} >= tables != set()


def test_pages_and_their_generators_stay_behind(installed: Path, tmp_path: Path) -> None:
    script = "import importlib.util; print(importlib.util.find_spec('docs'))"
    assert run([installed / "python", "-c", script], tmp_path).strip() == "None"
    assert not list(installed.parent.rglob("gdsdeploy/_share/docs"))


def test_the_wheel_is_small_and_has_the_licenses_and_no_tests(wheel: Path) -> None:
    assert wheel.stat().st_size <= WHEEL_BYTES
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = f"gdsdeploy-{__version__}.dist-info"
    assert names >= {f"{metadata}/licenses/LICENSE", f"{metadata}/licenses/NOTICE", "gdsdeploy/py.typed"}
    assert {name.partition("/")[0] for name in names} == {"gdsdeploy", metadata}
    assert [name for name in names if "/tests/" in name and "/tests/host/" not in name] == []


def test_the_source_archive_has_what_make_test_needs(sources: set[str]) -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    tree = {name for name in (path.relative_to(ROOT).as_posix() for path in paths) if not CACHES.search(name)}
    assert tree - sources == set()
    assert sources >= {".ci/run", "LICENSE", "Makefile", "NOTICE", "SECURITY.md", "galaxy.yml", "requirements-dev.lock"}


def test_uv_installs_it_as_a_tool(wheel: Path, tmp_path: Path) -> None:
    env = {**environment(tmp_path), "UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    # The cache of this user spares the downloads.
    del env["XDG_CACHE_HOME"]
    argv = [BIN / "uv", "tool", "install", "--quiet", "--python", sys.executable, wheel]
    subprocess.run(argv, cwd=tmp_path, env=env, check=True, capture_output=True)
    answers(tmp_path / "bin" / "gdsdeploy", tmp_path)


def test_pipx_installs_it_and_it_is_not_large(wheel: Path, tmp_path: Path) -> None:
    folders = {f"PIPX_{name}": str(tmp_path / name) for name in ("HOME", "BIN_DIR", "MAN_DIR")}
    env = {**environment(tmp_path), **folders}
    del env["XDG_CACHE_HOME"]
    argv = [BIN / "pipx", "install", "--quiet", "--backend", "pip", "--python", sys.executable, wheel]
    subprocess.run(argv, cwd=tmp_path, env=env, check=True, capture_output=True)
    answers(tmp_path / "BIN_DIR" / "gdsdeploy", tmp_path)
    blocks = sum(path.lstat().st_blocks for path in (tmp_path / "HOME").rglob("*"))
    assert 512 * blocks <= INSTALLED_BYTES


@pytest.fixture(scope="module")
def lab_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT / "lab"]
    subprocess.run(build, check=True, capture_output=True, env=environment(folder))
    (path,) = folder.glob("*.whl")
    return path


def test_the_lab_is_a_wheel_of_its_own(wheel: Path, lab_wheel: Path) -> None:
    tree = {path.relative_to(ROOT / "lab").as_posix() for path in (ROOT / "lab/gdslab").rglob("*") if path.is_file()}
    names = set(zipfile.ZipFile(lab_wheel).namelist())
    assert {name for name in tree if not CACHES.search(name)} == {name for name in names if name.startswith("gdslab/")}
    assert lab_wheel.name.startswith(f"gdslab-{__version__}-")
    metadata = zipfile.ZipFile(lab_wheel).read(f"gdslab-{__version__}.dist-info/METADATA").decode()
    assert f"Requires-Dist: gdsdeploy=={__version__}\n" in metadata
    assert [name for name in zipfile.ZipFile(wheel).namelist() if "gdslab" in name or "/lab/" in name] == []


def test_with_the_labs_wheel_its_verbs_are_verbs(installed: Path, lab_wheel: Path, tmp_path: Path) -> None:
    pip = [installed / "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site", lab_wheel]
    subprocess.run(pip, check=True, capture_output=True, env=environment(tmp_path))
    for program in ([installed / "gdsdeploy", "lab"], [tmp_path / "site/bin/gdslab"]):
        argv = ["env", f"PYTHONPATH={tmp_path / 'site'}", *program, "list"]
        assert "There is no lab. Create one: gdsdeploy lab up" in run(argv, tmp_path)


def answers(program: Path, cwd: Path) -> None:
    assert run([program, "--version"], cwd) == f"gdsdeploy, version {__version__}\n"
    assert "Usage: gdsdeploy explain" in run([program, "explain", "--help"], cwd)
    for words in ("lab", "lab up --yes", "lab --help"):
        assert run([program, *words.split()], cwd, status=4).splitlines() == [
            "error: gdsdeploy lab is part of gdslab, which isn't installed here",
            "hint: In a checkout of gdsdeploy: pip install . ./lab",
        ]
