"""The wheel, not only the checkout: built, installed, and used from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from gdsdeploy import __version__
from gdsdeploy.zipapp import sbom

pytestmark = pytest.mark.wheel

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of programs of a virtual environment with the wheel and, from this one, its dependencies.

    The folder of this environment is added by a path file; path files in it are not read again, so the checkout
    that is installed here in editable form is not seen there.
    """
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    programs = folder / "venv" / "bin"
    subprocess.run([programs / "pip", "install", "--quiet", "--no-deps", wheel], check=True, capture_output=True)
    return programs


def run(argv: list[str | Path], cwd: Path, status: int = 0) -> str:
    env = {**os.environ, "HOME": str(cwd), "XDG_STATE_HOME": str(cwd / "state"), "XDG_CACHE_HOME": str(cwd / "cache")}
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_it_is_the_wheel_that_is_imported(installed: Path, tmp_path: Path) -> None:
    where = run([installed / "python", "-c", "import gdsdeploy; print(gdsdeploy.__file__)"], tmp_path)
    assert where.startswith(str(installed.parent))


def test_its_dependencies_are_those_it_declares(installed: Path, tmp_path: Path) -> None:
    assert "No broken requirements" in run([installed / "pip", "check"], tmp_path)


def test_every_verb_has_help(installed: Path, tmp_path: Path) -> None:
    for verb in ("lock", "provision", "validate", "diff", "support-bundle", "remove", "lab"):
        assert "Usage: gdsdeploy" in run([installed / "gdsdeploy", verb, "--help"], tmp_path)


def test_the_collection_and_the_templates_are_found(installed: Path, tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from gdsdeploy import resources, run
from gdsdeploy.converge import ansible
collection = resources.collections() / "ansible_collections" / "gdsdeploy" / "gds"
for path in ("galaxy.yml", "meta/runtime.yml", "plugins/action/apply.py", "roles/gds_repo/tasks", "gdsdeploy/host"):
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
    assert "build1, gpu1: refused: the identity file" in output


def test_the_suite_for_hosts_comes_along(installed: Path, tmp_path: Path) -> None:
    script = "from gdsdeploy import resources; print(resources.share() / 'tests' / 'host')"
    suite = run([installed / "python", "-c", script], tmp_path).strip()
    assert (Path(suite) / "test_checks.py").is_file()


def test_the_suite_runs_from_it(installed: Path, tmp_path: Path) -> None:
    for name in ("fleet.yml", "gdsdeploy.lock"):
        (tmp_path / name).write_bytes((ROOT / "tests" / "golden" / "lab" / name).read_bytes())
    (tmp_path / "known_hosts").touch()
    (tmp_path / "fleet.yml").write_text((tmp_path / "fleet.yml").read_text().replace("22011", "1"))
    output = run([installed / "gdsdeploy", "validate", "fleet.yml", "--pytest", "--", "-q"], tmp_path, status=30)
    assert "test_check[ssh://gpu1-reachable]" in output
    assert "this host could not be asked" in output


def test_the_schema_of_reports_comes_along(installed: Path, tmp_path: Path) -> None:
    script = "from importlib import resources; print(resources.files('gdsdeploy.report') / 'report.schema.json')"
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


def test_generators_of_pages_stay_behind(installed: Path, tmp_path: Path) -> None:
    script = "import importlib.util; print(importlib.util.find_spec('docs'))"
    assert run([installed / "python", "-c", script], tmp_path).strip() == "None"


def test_the_bill_of_materials_comes_along(installed: Path) -> None:
    (file,) = (installed.parent / "lib").glob("python*/site-packages/gdsdeploy-*.dist-info/sboms/*")
    assert file.name == "gdsdeploy.cdx.json"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert file.read_bytes() == sbom.of_wheel(__version__, project["dependencies"])
