"""What was counted of a job stands in its AdminComment, in the real Slurm, while the job runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from gdsdeploy.host.io import scontrol
from gdsdeploy.host.libcufile import route
from gdsdeploy.host.watch import slurm as watch_slurm
from gdsdeploy.host.watch.owner import JOB, UNIT, Owner
from gdsdeploy.host.watch.slurm import EVERY, Comments
from gdsdeploy.host.watch.totals import READ, Sum, Sums
from tests.loopback import loopback_slurm
from tests.loopback.loopback_slurm import Slurm

NODE = "node7"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with loopback_slurm.cluster(NODE) as started:
        yield started


@pytest.fixture
def job(cluster: Slurm) -> Iterator[str]:
    """A running job."""
    argv = ["sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 600"]
    number = subprocess.run(argv, check=True, capture_output=True, text=True, cwd="/").stdout.strip()
    cluster.until(lambda node: "ALLOCATED" in node.states)
    yield number
    subprocess.run(["scancel", number], check=False)
    cluster.until(lambda node: node.states == ["IDLE"])


def sums(compat: int, direct: int = 97) -> Sums:
    operations = tuple({route.NVIDIA_FS: direct, route.COMPAT: compat}.get(way, 0) for way in route.WAYS)
    return {("GPU-1", READ): Sum(operations, (compat + direct) << 30, compat << 30, 0)}


def comment(cluster: Slurm, job: str) -> str:
    text = cluster.scontrol("--oneliner", "show", "job", job)
    _, _, rest = text.partition(" AdminComment=")
    return rest.partition(" StdErr=")[0].strip()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every call of scontrol."""
    listed: list[list[str]] = []
    real: Callable[[list[str]], str] = scontrol.scontrol

    def call(argv: list[str]) -> str:
        listed.append(argv)
        return real(argv)

    monkeypatch.setattr(watch_slurm, "scontrol", call)
    # The name of the node comes from there.
    monkeypatch.setattr(scontrol, "scontrol", call)
    return listed


def test_a_running_job_gets_a_line_that_is_renewed(cluster: Slurm, job: str, calls: list[list[str]]) -> None:
    comments = Comments()
    owner = Owner(JOB, job)
    assert comments.write({owner: sums(3), Owner(UNIT, "train.service"): sums(3)}, 0.0) == []
    assert comment(cluster, job) == f"gds {NODE}: 97 % nvidia-fs, 3 % compat of 100 GiB, 3.0 GiB through CPU memory"
    calls.clear()
    assert comments.write({owner: sums(0)}, EVERY - 1) == []
    assert calls == [], "Slurm isn't asked more than once a minute"
    assert comments.write({owner: sums(0)}, EVERY + 1) == []
    assert comment(cluster, job) == f"gds {NODE}: 100 % nvidia-fs of 97 GiB"
    calls.clear()
    assert comments.write({owner: sums(0)}, 3 * EVERY) == []
    assert calls == [], "nothing is new"


def test_what_others_have_written_stays(cluster: Slurm, job: str) -> None:
    cluster.scontrol("update", f"JobId={job}", "AdminComment=ticket 7; gds node8: 100 % compat of 1 GiB")
    assert Comments().write({Owner(JOB, job): sums(3)}, 0.0) == []
    assert comment(cluster, job).startswith("ticket 7; gds node8: 100 % compat of 1 GiB; gds node7: 97 % nvidia-fs")


def test_a_job_that_has_ended_is_named_once(cluster: Slurm, job: str) -> None:
    subprocess.run(["scancel", job], check=True)
    cluster.until(lambda node: node.states == ["IDLE"])
    comments = Comments()
    (error,) = comments.write({Owner(JOB, job): sums(3)}, 0.0)
    assert error.startswith(f"job {job}: scontrol ")
    assert comments.write({Owner(JOB, job): sums(3)}, 2 * EVERY) == []
    (error,) = comments.write({Owner(JOB, "999999"): sums(3)}, 0.0)
    assert "Invalid job id" in error
