"""``gdsdeploy fits``: what it judges, how it ends, what it says about bad input, and that its text stays narrow."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gdsdeploy import fits
from gdsdeploy.preflight import record
from gdsdeploy.preflight.record import Answer, ModuleResult, PreflightRecord
from tests import commandline
from tests.commandline import Run

SCHEMA = json.loads(resources.files("gdsdeploy").joinpath("fits.schema.json").read_text())
HOSTS = Path(__file__).parents[2] / "evidence" / "hosts"

pytestmark = pytest.mark.usefixtures("own_folders")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "100")

    def call(*words: object) -> tuple[int, str, str]:
        code = commandline.run("fits", *words)
        out, err = capfd.readouterr()
        return code, out, err

    return call


def sets(run: Run, *words: str) -> list[dict[str, Any]]:
    document = json.loads(run(*words, "--json")[1])
    jsonschema.validate(document, SCHEMA)
    return document["sets"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ("nvidia-fs=2.28.4 kernel=6.18.3", 30, "refused: kernel 6.18.3, nvidia-fs 2.28.4"),
        ("nvidia_fs=2.28.4 kernel=6.17.3", 0, "warned: kernel 6.17.3, nvidia-fs 2.28.4"),
        ("libcufile=1.15 nvidia-fs=2.26.6", 0, "fits: nvidia-fs 2.26.6, libcufile 1.15"),
        ("driver=580.126.09 libcufile=1.99", 31, "unknown: driver 580.126.09, libcufile 1.99"),
    ],
)
def test_the_verdict_comes_first_and_decides_the_exit_code(run: Run, words: str, code: int, says: str) -> None:
    ended, out, err = run(*words.split())
    assert (ended, out.splitlines()[0]) == (code, says)
    assert bool(err) is bool(code)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "For example: gdsdeploy fits driver=580.126.09"),
        ("dirver=580.126.09 kernel=6.17", "there is no 'dirver'; did you mean 'driver'?"),
        ("580.126.09", "'580.126.09' isn't written like driver=580.126.09"),
        ("driver= kernel=6.17", "'driver=' isn't written like"),
        ("driver=, kernel=6.17", "'driver=,' isn't written like"),
        ("driver=999 kernel=6.17", "driver: no version of a branch 999 is known"),
        ("driver=580.126.09 kernel=banana", "kernel: 'banana' isn't written like 6.8.0"),
        ("driver=580.126.09 driver=590.44.01", "driver stands there twice"),
        ("driver=580.126.09 --driver 590.44.01", "driver stands there twice"),
        ("driver=580.95.05-0ubuntu1", "A package's version is driver-package=580.95.05-1"),
        ("kernel=6.17 mode=nvidiafs", "mode: there is no 'nvidiafs'; did you mean 'nvidia-fs'?"),
        ("driver=580.1\x1b[31m2 kernel=6.17", "'580.1\\x1b[31m2' isn't written like"),
        ("driver=580.126.09", "driver alone goes together with nothing"),
        ("driver=all kernel=all nvidia-fs=all", "sets ("),
        ("driver=all kernel=all nvidia-fs=all", "Name branches in place of all, such as driver=570,580"),
        ("--here --evidence x.json", "--here does not go with --evidence"),
        ("kernel=6 driver=580.126.09", "kernel: '6' isn't written like"),
        ("gpu=h100 driver=580.126.09", "gpu: there is no 'h100'; its class is 'hopper'"),
    ],
)
def test_bad_input_is_a_usage_error_with_one_sentence(run: Run, words: str, says: str) -> None:
    code, out, err = run(*words.split(" ") if words else ())
    assert (code, out) == (2, "")
    assert says in " ".join(err.split())
    assert "\x1b" not in err


def test_a_series_that_is_refused_as_a_whole_has_one_answer_with_what_fits(run: Run) -> None:
    """Kernel 6.18.40 has a further change: what decides all of 6.18 is shown, and what fits all of it."""
    code, out, _ = run("driver=580.105.08", "kernel=6.18")
    assert (code, out.splitlines()[0]) == (30, "refused: driver 580.105.08, kernel 6.18")
    assert "driver-get-dev-pagemap (source)" in out
    assert "driver-pci-resize" not in out
    assert "  - driver 580.126.09\n" in out
    first, later = sets(run, "driver=580.105.08", "kernel=6.18")
    assert {"driver": "580.119.02"} in first["nearest"]
    assert {"driver": "580.126.09"} in later["nearest"]


def test_the_schema_is_one_and_refuses_what_it_does_not_know() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    choices = fits.read(["driver=580.126.09", "kernel=6.19.2"], alone=True)
    judge = fits.Judge()
    document = json.loads(json.dumps(fits.document(judge.all(choices), choices, judge)))
    (judged,) = document["sets"]
    for change in (
        {"verdict": "runs"},
        {"rules": [{}]},
        {"nearest": [{}]},
        {"unknown": [["driver"]]},
        {"kernel": None},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document, "sets": [{**judged, **change}]}, SCHEMA)


def test_json_has_the_same_verdicts_and_each_rule_with_its_source(run: Run) -> None:
    (judged,) = sets(run, "nvidia-fs=2.28.4", "kernel=6.18.3")
    assert (judged["nvidia_fs"], judged["kernel"], judged["verdict"]) == ("2.28.4", "6.18.3", "refused")
    assert all(rule["source"] and rule["known"] for rule in judged["rules"])
    assert {"kernel": "6.17"} in judged["nearest"]
    assert judged["assumed"]["nvidia_fs_origin"] == "nvidia"


@pytest.mark.parametrize("words", ["--driver all --kernel 6.17", "driver=580.126.09 kernel=6.19.2 nvidia-fs=2.28.4"])
def test_text_fits_into_60_columns(run: Run, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = [line for line in run(*words.split())[1].splitlines() if len(line) > 60]
    assert long == []


def test_what_a_set_needs_to_fit_does(run: Run) -> None:
    """Each change of ``nearest``, tried: a version of the expression fits."""
    words = {"nvidia_fs": "2.28.4", "kernel": "6.18.3"}
    (judged,) = sets(run, *(f"{subject}={version}" for subject, version in words.items()))
    assert judged["nearest"]
    for change in judged["nearest"]:
        changed = [f"{subject}={version}" for subject, version in {**words, **change}.items()]
        assert {each["verdict"] for each in sets(run, *changed)} <= {"fits", "warned"}, change


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("words", ["driver=570,580 kernel=6.17,6.19", "driver=575,590 kernel=6.15,7.0 nvidia-fs=2.28"])
def test_a_row_holds_for_each_of_its_sets(words: str, exact: bool) -> None:
    choices = fits.read(words.split(), alone=True)
    judge = fits.Judge()
    sets = judge.all(choices)
    rows = fits.folded(sets, choices, exact=exact)
    for row in rows:
        for given in row.given:
            judged = judge.judge(given)
            assert judged.kind == row.first.kind, (given, row)
            assert judged.decides >= row.decides
            assert not exact or judged.says == row.first.says
    covered = [tuple(sorted(given.items())) for row in rows for given in row.given]
    assert len(covered) == len(set(covered)) == len(sets)


@pytest.mark.parametrize(
    ("driver", "kernel", "verdict"),
    [
        *((driver, "6.17", "refused") for driver in ("570.172.08", "575.64.05", "580.65.06")),
        ("580.105.08", "6.18", "refused"),
        ("570.211.01", "6.19", "refused"),
        ("580.126.09", "6.19.2", "refused"),
        ("570.211.01", "7.0", "refused"),
        ("580.126.20", "7.0", "warned"),
        ("580.126.20 flavour=proprietary", "7.0", "refused"),
        ("570.190", "6.17", "fits"),
        ("580.119.02", "6.18.1", "fits"),
        ("580.126.18", "6.19.2", "fits"),
        ("580.142", "7.0", "fits"),
    ],
)
def test_drivers_that_lack_a_probe(run: Run, driver: str, kernel: str, verdict: str) -> None:
    words = f"driver={driver} kernel={kernel}".split()
    assert {judged["verdict"] for judged in sets(run, *words)} == {verdict}


def test_a_table_has_each_version_of_a_branch_and_ranges_of_them(run: Run) -> None:
    code, out, _ = run("--driver", "580", "--kernel", "6.17.4")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if " … 580" in line] == ["580.65.06", "580.82.07"]
    assert {judged["driver"] for judged in sets(run, "driver=580", "kernel=6.17.4")} >= {"580.65.06", "580.126.09"}


def test_versions_that_do_not_follow_each_other_are_no_range(run: Run) -> None:
    _, out, _ = run("driver=580.126.18", "kernel=6.15.1,6.18.1,6.19.2,7.0.2")
    rows = [line.split("  ")[0] for line in out.splitlines()[3:5]]
    assert rows == ["6.15.1, 6.18.1, 6.19.2", "7.0.2"]


def test_what_runs_on_a_host_was_built(run: Run) -> None:
    code, out, _ = run("--evidence", HOSTS / "lab-vm-provisioned.json")
    assert code == 0
    assert out.startswith("warned: driver 550.163.01, kernel 6.12.94+deb13-amd64, nvidia-fs 2.19.7, libcufile 1.9.1")
    assert "driver × kernel        runs" in out
    (judged,) = sets(run, "--evidence", str(HOSTS / "lab-vm-provisioned.json"))
    assert judged["runs"] == [["driver", "kernel"], ["nvidia_fs", "kernel"], ["nvidia_fs", "driver"]]


def test_another_kernel_for_a_host_is_judged_anew(run: Run) -> None:
    """Whose driver a Debian host has isn't known, so whether it builds is unknown; a word says it."""
    evidence = ("--evidence", HOSTS / "lab-vm-provisioned.json", "kernel=6.19.2")
    code, out, _ = run(*evidence)
    assert code == 31
    assert "Say who made the driver: driver-origin=nvidia, debian or ubuntu." in out
    assert run(*evidence, "driver-origin=nvidia", "nvidia-fs-origin=nvidia")[0] == 30


def test_a_host_with_a_gpu(run: Run) -> None:
    code, out, _ = run("--evidence", HOSTS / "h100-libcufile-1.20.0.json")
    assert (code, out.splitlines()[2].split()) == (0, ["driver", "×", "kernel", "runs"])
    assert "Not there: nvidia-fs" in out


def test_a_host_without_a_driver_is_told_how_to_find_one(run: Run) -> None:
    code, out, _ = run("--evidence", HOSTS / "lab-vm-bare.json")
    assert code == 31
    assert "Not there: driver" in out
    assert "add --driver all" in out
    assert run("--evidence", HOSTS / "lab-vm-bare.json", "--driver", "all")[0] == 0


def test_a_part_that_a_host_lacks_is_judged_as_anywhere(run: Run) -> None:
    words = ("driver=580.119.02", "nvidia-fs=2.28.4", "kernel=6.18.44")
    (on_host,) = sets(run, "--evidence", str(HOSTS / "lab-vm-bare.json"), *words)
    (alone,) = sets(run, *words)
    assert alone["verdict"] == "refused"
    assert {rule["id"]: rule["verdict"] for rule in alone["rules"]}.items() <= {
        rule["id"]: rule["verdict"] for rule in on_host["rules"]
    }.items()


def test_a_maker_of_a_part_that_is_not_there(run: Run) -> None:
    code, out, _ = run("driver-origin=debian", "nvidia-fs=2.28.4", "kernel=6.18.3")
    assert code == 30
    assert "driver-package" not in out


def test_evidence_that_cannot_be_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert run("--evidence", tmp_path / "x.json")[0] == 1
    assert run("--evidence", tmp_path / "none.json")[0] == 1


def test_a_kernel_of_a_distribution_tells_what_it_is(run: Run) -> None:
    (judged,) = sets(run, "kernel=5.14.0-611.el9.aarch64+64k", "nvidia-fs=2.28.4")
    assumed = {name: judged["assumed"][name] for name in ("arch", "kernel_flavour", "kernel_package", "family")}
    assert assumed == {
        "arch": "aarch64",
        "kernel_flavour": "64k",
        "kernel_package": "5.14.0-611.el9",
        "family": "rhel",
    }


@pytest.mark.parametrize(("answer", "kind"), [(Answer.YES, "fits"), (Answer.NO, "refused")])
def test_what_was_built_on_this_machine_decides(run: Run, answer: Answer, kind: str) -> None:
    words = ("driver=599.1.1", "kernel=6.12.94+deb13-amd64", "driver-origin=debian")
    assert run(*words)[0] == 31
    modules = (ModuleResult("nvidia", answer, answer, error="nv.c:1: error"),)
    made = {"kernel": "6.12.94+deb13-amd64", "driver": "599.1.1", "flavour": "open", "nvidia_fs": ""}
    packages = {"driver_package": "599.1.1-1", "driver_origin": "debian"}
    record.keep(
        PreflightRecord(
            **made,
            ingredients="sha256:" + "7" * 64,
            builds=answer,
            loads=answer,
            modules=modules,
            seconds=1.0,
            time="2026-11-21T07:00:00Z",
            gdsdeploy="0",
            packages=packages,
        )
    )
    (judged,) = sets(run, *words)
    assert [rule["verdict"] for rule in judged["rules"] if rule["id"].startswith("local-")] == [kind]
    code, out, _ = run(*words)
    assert (code, out.split(":")[0]) == (30 if kind == "refused" else 0, kind)
    assert "on this machine on 2026-11-21" in " ".join(out.split())
