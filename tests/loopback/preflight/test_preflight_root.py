"""Throwaway roots of small packages: what is unpacked where, what goes away, and that no privilege is needed."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gdsdeploy.errors import MissingProgram, ProgramFailed
from gdsdeploy.preflight import trial
from gdsdeploy.repo.packages import Kind
from tests.repos.rpmarchive import Rpm, build

#: Says who and where it is; then writes.  Static: the root has nothing else.
PROGRAM = r"""
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words)
{
    FILE *file = fopen(count > 1 ? words[1] : "/build/out", "w");
    if (!file) return 7;
    fprintf(file, "%d %d", (int)getuid(), (int)getpid());
    fclose(file);
    printf("%d", access("/dev/null", W_OK) || access("/proc/self/status", R_OK) || access("/usr/lib/data", R_OK));
    return 0;
}
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two packages: one has a program in /bin and a file in /usr/lib, the other the same file in /lib."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "program.c").write_text(PROGRAM)
    first, second = folder / "first", folder / "second"
    (first / "bin").mkdir(parents=True)
    (first / "usr" / "lib").mkdir(parents=True)
    (first / "usr" / "share" / "doc" / "first").mkdir(parents=True)
    (first / "usr" / "share" / "doc" / "first" / "copyright").write_text("text")
    (second / "lib").mkdir(parents=True)
    subprocess.run(["cc", "-static", "-o", first / "bin" / "program", folder / "program.c"], check=True)
    (first / "usr" / "lib" / "data").write_text("first")
    (second / "lib" / "data").write_text("second")
    return [_pack(first), _pack(second)]


def _pack(content: Path) -> Path:
    control = content / "DEBIAN" / "control"
    control.parent.mkdir()
    control.write_text(
        f"Package: {content.name}\nVersion: 1\nArchitecture: all\n"
        f"Maintainer: nobody <nobody@mirror.example>\nDescription: for a test\n"
    )
    script = content / "DEBIAN" / "postinst"
    script.write_text("#!/bin/sh\ntouch /tmp/a-script-of-a-package-ran\n")
    script.chmod(0o755)
    file = content.with_suffix(".deb")
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", content, file], check=True, capture_output=True)
    return file.rename(file.with_name(hashlib.sha256(file.read_bytes()).hexdigest()))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path / "a cache: with, marks"))
    return tmp_path / "a cache: with, marks"


def layer(files: list[Path]) -> str:
    return trial.layer(files, what="it")


def test_a_layer_is_unpacked_once_onto_a_merged_usr(
    packages: list[Path], cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_layers = [layer(packages), layer(packages[::-1])]
    assert made_layers[0] == made_layers[1]
    assert capsys.readouterr().err.count("‣ Unpacking it") == 1
    tree = cache / "preflight" / "layers" / made_layers[0]
    assert (tree / "lib").is_symlink()
    assert (tree / "usr" / "bin" / "program").is_file()
    assert (tree / "usr" / "lib" / "data").read_text() == "second"
    assert not (tree / "usr" / "share" / "doc").exists()
    assert not Path("/tmp/a-script-of-a-package-ran").exists()
    assert layer(packages[:1]) != made_layers[0]


def test_a_package_that_is_damaged_leaves_no_layer(packages: list[Path], tmp_path: Path, cache: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(packages[0].read_bytes()[:-200])
    with pytest.raises(ProgramFailed, match="cannot unpack it"):
        layer([cut])
    assert not list((cache / "preflight" / "layers").iterdir())


def test_what_is_written_inside_stays_out_of_the_layers_and_goes_away(packages: list[Path], cache: Path) -> None:
    layers = [layer(packages[1:]), layer(packages[:1])]
    with trial.throwaway_root(layers) as throwaway:
        done = throwaway.run(["/bin/program"], doing="run it")
        assert done.stdout == "0"
        # Root of its own processes only.
        assert (throwaway.build / "out").read_text() == "0 1"
        assert throwaway.run(["/bin/program", "/usr/lib/data"], doing="write over a layer's file").status == 0
        work = throwaway.build.parent
        assert (work / "upper" / "usr" / "lib" / "data").read_text() == "0 1"
    assert not work.exists()
    assert not list((cache / "preflight" / "work").iterdir())
    tree = cache / "preflight" / "layers" / layers[0]
    assert (tree / "usr" / "lib" / "data").read_text() == "second"


def test_without_overlays_the_layers_are_copied(
    packages: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layers = [layer(packages[1:]), layer(packages[:1])]
    # A mount that refuses overlays, as some file systems do below.
    programs = tmp_path / "programs"
    programs.mkdir()
    real = shutil.which("mount", path="/usr/bin:/bin")
    refusing = programs / "mount"
    refusing.write_text(f'#!/bin/sh\nif [ "$2" = overlay ]; then exit 32; fi\nexec {real} "$@"\n')
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with trial.throwaway_root(layers) as throwaway:
        assert throwaway.run(["/bin/program"], doing="run it").stdout == "0"
        assert throwaway.run(["/bin/program", "/usr/lib/kept"], doing="write").status == 0
        assert throwaway.run(["/bin/program"], doing="run it again").stdout == "0"
        work = throwaway.build.parent
        assert (work / "root" / "usr" / "lib" / "kept").read_text() == "0 1"
        assert (work / "root" / "usr" / "lib" / "data").read_text() == "second"
    assert not work.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_it_goes_away_whatever_happens(packages: list[Path], cache: Path, error: type[BaseException]) -> None:
    made_layers = layer(packages)
    with pytest.raises(error):  # noqa: PT012, SIM117 - what is raised inside is the point
        with trial.throwaway_root([made_layers]) as throwaway:
            throwaway.run(["/bin/program"], doing="run it")
            raise error
    assert not list((cache / "preflight" / "work").iterdir())


def test_an_ordinary_user_needs_no_privilege(packages: list[Path]) -> None:
    made_layers = layer(packages)
    place = Path("/tmp") / f"preflight-of-nobody-{os.getpid()}"
    become = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
    try:
        # Not below the folders of tests, which nobody else may enter.
        shutil.copytree(Path(os.environ["GDSDEPLOY_CACHE_DIR"]) / "preflight", place, symlinks=True)
        (place / "work" / "build").mkdir(parents=True)
        subprocess.run(["chown", "-R", "nobody" if become else str(os.geteuid()), place], check=True)
        script = shutil.copy(Path(trial.__file__).with_name("enter.sh"), place)
        namespaces = ["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]
        argv = ["sh", script, place, f"layers/{made_layers}", "work", ",userxattr", "/bin/program"]
        done = subprocess.run([*become, "unshare", *namespaces, *argv], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "0"), done.stderr
        out = place / "work" / "build" / "out"
        assert out.read_text() == "0 1"
        assert out.stat().st_uid == out.parent.stat().st_uid
        assert bool(become) is (out.stat().st_uid != os.geteuid())
    finally:
        subprocess.run(["rm", "-rf", place], check=True)


@pytest.mark.parametrize(("kind", "program", "package"), [("apt", "dpkg-deb", "dpkg"), ("rpm", "rpm2archive", "rpm")])
def test_a_program_that_is_lacking_is_named_with_the_line_that_installs_it(
    kind: Kind, program: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.require(kind)
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **words: None if name == program else real(name, **words))
    with pytest.raises(MissingProgram, match=f"{program} is not installed") as error:
        trial.require(kind)
    assert error.value.hint == f"apt-get install {package}"


def test_rpm_packages_are_unpacked_onto_a_merged_usr(tmp_path: Path, cache: Path) -> None:
    rpms = [
        Rpm("first", "1-1", files=("/lib/first", "/usr/bin/ld.bfd")),
        Rpm("second", "1-1", files=("/usr/lib/second",)),
    ]
    files = [
        path.rename(path.with_name(hashlib.sha256(path.read_bytes()).hexdigest()))
        for path in build(rpms, tmp_path / "rpms").iterdir()
    ]
    tree = cache / "preflight/layers" / layer(files)
    assert sorted(path.name for path in (tree / "usr/lib").iterdir()) == ["first", "second"]
    assert (tree / "lib").is_symlink()
    assert str((tree / "usr/bin/ld").readlink()) == "ld.bfd", "a script of binutils makes it"


def test_layers_out_of_use_are_removed(packages: list[Path], cache: Path) -> None:
    old, new = layer(packages), layer(packages[:1])
    folder = cache / "preflight" / "layers"
    entry = (folder / old).parent
    os.utime(entry, (0, 0))
    with trial.throwaway_root([new]):
        pass
    assert sorted(folder.iterdir()) == [(folder / new).parent]
