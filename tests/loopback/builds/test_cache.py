"""The cache of builds: by content, bounded, whole whatever happens to the processes that use it."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gdsdeploy.builds import cache as buildcache
from gdsdeploy.builds.cache import BuildCache
from gdsdeploy.cli.kmod import cache_group as command
from gdsdeploy.errors import BuildCacheUnusable
from gdsdeploy.host.archive import provenance
from gdsdeploy.host.archive.key import INGREDIENTS, key_of
from gdsdeploy.host.archive.provenance import Builder, Origin, public_pem
from gdsdeploy.host.errors import PackError

SIZE = 40_000


#: The builder that signs, and what others know of it.
SIGNER = Builder("build1", b"1" * 32, "run-1")
ORIGIN = Origin("build1", public_pem(SIGNER.seed))
OTHER = Builder("evil", b"2" * 32)
EVIL = Origin("evil", public_pem(OTHER.seed))


def archive(path: Path, name: str, size: int = SIZE, signer: Builder | None = SIGNER) -> Path:
    """An archive of one module, keyed by ``name``, whose content is ``name`` again and again."""
    data = (name.encode() + b"\n") * (size // (len(name) + 1))
    manifest = {
        "format": 1, "kernel_release": "6.12.94", "vermagic": "6.12.94 SMP ", "symvers": "", "compiler": name,
        "key": {**dict.fromkeys(INGREDIENTS, "x"), "compiler": name},
        "driver": {"version": "550.1", "flavour": "open", "tree": ""}, "nvidia_fs": {"version": "", "source": ""},
        "modules": [{"name": "nvidia", "file": "nvidia.ko", "sha256": hashlib.sha256(data).hexdigest(),
                     "size": len(data), "srcversion": ""}],
    }  # fmt: skip
    text = json.dumps(manifest).encode()
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        signed = [("provenance.dsse.json", provenance.sign(text, signer))] if signer is not None else []
        for member, content in (("manifest.json", text), *signed, ("modules/nvidia.ko", data)):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, warnings: list[str]) -> BuildCache:
    return BuildCache(tmp_path / "builds", 1 << 30, warnings.append)


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_what_was_put_is_taken_back_by_what_is_wanted(cache: BuildCache, tmp_path: Path) -> None:
    tar = archive(tmp_path / "a.tar", "a")
    entry = cache.put(tar, "want-a", ORIGIN)
    assert entry.key == key_of({**dict.fromkeys(INGREDIENTS, "x"), "compiler": "a"})
    assert cache.take("want-b", tmp_path / "none.tar", [ORIGIN]) is None
    assert cache.take("want-a", tmp_path / "copy.tar", [ORIGIN]) is not None
    assert (tmp_path / "copy.tar").read_bytes() == tar.read_bytes()
    assert names(cache.folder) == {entry.sha256, "wants", "lock"}
    assert cache.take("want-a", tmp_path / "unfit.tar", [EVIL]) is None
    assert not (tmp_path / "unfit.tar").exists()


def test_builds_that_claim_one_key_are_kept_beside_each_other(cache: BuildCache, tmp_path: Path) -> None:
    """A host of another fleet, or of another profile, claims the key of what this one has: nothing changes here."""
    good = archive(tmp_path / "good.tar", "a")
    bad = archive(tmp_path / "bad.tar", "a", SIZE * 2, OTHER)
    path = cache.put(good, "prod", ORIGIN)
    other = cache.put(bad, "dev", EVIL)
    assert path.key == other.key
    assert {entry.sha256 for entry in cache.entries()} == {path.sha256, other.sha256}
    for want in ("prod", "dev"):
        assert (cache.take(want, tmp_path / "copy.tar", [ORIGIN]) is not None) is (want == "prod")
    assert (tmp_path / "copy.tar").read_bytes() == good.read_bytes()


def test_another_builder_cannot_serve_a_want_that_is_served(cache: BuildCache, tmp_path: Path) -> None:
    good, bad = archive(tmp_path / "good.tar", "a"), archive(tmp_path / "bad.tar", "a", SIZE * 2, OTHER)
    cache.put(good, "want", ORIGIN)
    cache.put(bad, "want", EVIL)
    for origins, tar in (([ORIGIN], good), ([EVIL, ORIGIN], bad), ([ORIGIN, EVIL], good)):
        assert cache.take("want", tmp_path / "copy.tar", origins) is not None
        assert (tmp_path / "copy.tar").read_bytes() == tar.read_bytes()


def test_the_newest_of_a_builder_serves_and_the_one_before_stays_beside_it(cache: BuildCache, tmp_path: Path) -> None:
    first, second = (cache.put(archive(tmp_path / f"{name}.tar", name), "want", ORIGIN) for name in "ab")
    assert {entry.sha256 for entry in cache.entries()} == {first.sha256, second.sha256}
    copy_entry = cache.take("want", tmp_path / "copy.tar", [ORIGIN])
    assert copy_entry is not None
    assert copy_entry.sha256 == second.sha256


@pytest.mark.parametrize("signer", [None, OTHER, Builder("evil", SIGNER.seed), Builder("build1", OTHER.seed)])
def test_what_the_builder_has_not_signed_is_not_kept(cache: BuildCache, tmp_path: Path, signer: Builder | None) -> None:
    with pytest.raises(PackError, match="sign"):
        cache.put(archive(tmp_path / "a.tar", "a", signer=signer), "want", ORIGIN)
    assert names(cache.folder) == {"wants", "lock"}


def test_an_entry_that_somebody_put_there_by_hand_is_not_taken(
    cache: BuildCache, tmp_path: Path, warnings: list[str]
) -> None:
    """Who can write into the cache, and nothing else, supplies nobody."""
    entry = cache.put(archive(tmp_path / "a.tar", "a"), "want", ORIGIN)
    tar = archive(tmp_path / "b.tar", "a", signer=OTHER)
    digest = hashlib.sha256(tar.read_bytes()).hexdigest()
    folder = (cache.folder / entry.sha256).rename(cache.folder / digest)
    record = json.loads((folder / "entry.json").read_text())
    (folder / "modules.tar").write_bytes(tar.read_bytes())
    (folder / "entry.json").write_text(json.dumps({**record, "sha256": digest, "size": tar.stat().st_size}))
    (pointer,) = (cache.folder / "wants").iterdir()
    pointer.write_text(digest)
    assert cache.take("want", tmp_path / "copy.tar", [ORIGIN]) is None
    assert not (tmp_path / "copy.tar").exists()
    assert len(warnings) == 1


def test_what_was_not_used_for_the_longest_time_goes_first(cache: BuildCache, tmp_path: Path) -> None:
    for number, name in enumerate("abc"):
        entry = cache.put(archive(tmp_path / f"{name}.tar", name), f"want-{name}", ORIGIN)
        os.utime(cache.folder / entry.sha256 / "entry.json", (number, number))
    cache.take("want-a", tmp_path / "x.tar", [ORIGIN])
    cache.limit = 3 * entry.size
    cache.put(archive(tmp_path / "d.tar", "d"), "want-d", ORIGIN)
    assert {rest.manifest["compiler"] for rest in cache.entries()} == {"a", "c", "d"}
    assert {name.partition(".")[0] for name in names(cache.folder / "wants")} == {"want-a", "want-c", "want-d"}


def test_what_is_in_use_is_not_evicted(cache: BuildCache, tmp_path: Path) -> None:
    entry = cache.put(archive(tmp_path / "a.tar", "a"), "want-a", ORIGIN)
    with (cache.folder / entry.sha256 / "modules.tar").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        assert cache.prune(0) == []
    assert [evicted.key for evicted in cache.prune(0)] == [entry.key]
    assert names(cache.folder / "wants") == set()


@pytest.mark.parametrize(
    "leaf", [b"\xff", b"5", b'""', b"[]", b"{}", b"null", b"[" * 100_000, b"9" * 5_000], ids=range(8)
)
def test_no_record_that_was_changed_on_disk_ends_a_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaf: bytes
) -> None:
    """What a build is comes out of its archive; the records beside it only name it."""
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path))
    cache = buildcache.default(print)
    for field in ("format", "sha256", "builder", "size", ""):
        entry = cache.put(archive(tmp_path / "a.tar", "a"), "want", ORIGIN)
        record = cache.folder / entry.sha256 / "entry.json"
        text = record.read_text()
        damaged = re.sub(rf'"{field}": [^,\n]+', f'"{field}": {leaf.decode("latin-1")}', text)
        record.write_bytes(damaged.encode("latin-1") if field else leaf)
        for verb in ("list", "verify"):
            for more in ([], ["--json"]):
                assert CliRunner().invoke(command, [verb, *more], catch_exceptions=False).exit_code == 0
        cache.prune(0)
    cache.put(archive(tmp_path / "a.tar", "a"), "want", ORIGIN)
    (want,) = (cache.folder / "wants").iterdir()
    want.write_bytes(leaf)
    assert cache.take("want", tmp_path / "copy.tar", [ORIGIN]) is None
    cache.prune(0)
    assert list(want.parent.iterdir()) == []


@pytest.mark.parametrize("damage", ["flip", "cut", "entry", "gone"])
def test_a_damaged_build_is_dropped_with_a_message(
    cache: BuildCache, tmp_path: Path, warnings: list[str], damage: str
) -> None:
    entry = cache.put(archive(tmp_path / "a.tar", "a"), "want-a", ORIGIN)
    path = cache.folder / entry.sha256 / "modules.tar"
    data = path.read_bytes()
    if damage == "flip":
        path.write_bytes(data[:-2000] + bytes([data[-2000] ^ 1]) + data[-1999:])
    elif damage == "cut":
        path.write_bytes(data[:-100])
    elif damage == "entry":
        path.with_name("entry.json").write_text("{")
    else:
        path.unlink()
    assert cache.take("want-a", tmp_path / "copy.tar", [ORIGIN]) is None
    assert not (tmp_path / "copy.tar").exists()
    assert len(warnings) == 1
    assert "damaged on disk" in warnings[0]
    assert names(cache.folder) == {"wants", "lock"}
    cache.put(tmp_path / "a.tar", "want-a", ORIGIN)
    assert cache.take("want-a", tmp_path / "copy.tar", [ORIGIN]) is not None


def test_verify_finds_a_changed_byte(cache: BuildCache, tmp_path: Path, warnings: list[str]) -> None:
    good, bad = (cache.put(archive(tmp_path / f"{name}.tar", name), name, ORIGIN) for name in "ab")
    path = cache.folder / bad.sha256 / "modules.tar"
    data = path.read_bytes()
    path.write_bytes(data[:3000] + b"!" + data[3001:])
    assert [entry.key for entry in cache.verify()] == [bad.key]
    assert [entry.key for entry in cache.entries()] == [good.key]
    assert len(warnings) == 1


def test_an_archive_that_is_not_what_it_says_is_not_kept(cache: BuildCache, tmp_path: Path) -> None:
    tar = archive(tmp_path / "a.tar", "a")
    data = tar.read_bytes()
    for wrong in (data[:-20000], data.replace(b"a\na\na\n", b"a\nb\na\n", 1), b"text"):
        tar.write_bytes(wrong)
        with pytest.raises(PackError):
            cache.put(tar, "want-a", ORIGIN)
        assert names(cache.folder) == {"wants", "lock"}


def test_a_folder_that_cannot_be_used_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "builds").write_text("a file")
    with pytest.raises(BuildCacheUnusable, match="cannot be used"):
        BuildCache(tmp_path / "builds", 1, print)


@pytest.mark.parametrize(
    ("text", "size"), [(None, 20 << 30), ("5GiB", 5 << 30), ("1.5 G", 3 << 29), ("500 MiB", 500 << 20), ("7", 7)]
)
def test_sizes(text: str | None, size: int) -> None:
    assert buildcache.limit_from(text) == size


@pytest.mark.parametrize("text", ["lots", "-1", "5 X", "1e9", "5GiBs"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(BuildCacheUnusable, match="isn't a size"):
        buildcache.limit_from(text)


def test_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDSDEPLOY_CACHE_DIR", str(tmp_path))
    buildcache.default(print).put(archive(tmp_path / "a.tar", "a"), "want-a", ORIGIN)
    run = CliRunner()
    listing = json.loads(run.invoke(command, ["list", "--json"], catch_exceptions=False).stdout)
    assert [entry["modules"] for entry in listing["builds"]] == [["nvidia"]]
    assert listing["builds"][0]["ingredients"]["compiler"] == "a"
    assert "6.12.94, driver 550.1 (open)" in run.invoke(command, ["list"]).stdout
    assert json.loads(run.invoke(command, ["verify", "--json"]).stdout)["damaged"] == []
    assert run.invoke(command, ["prune", "--size", "much"]).exit_code == 2
    assert len(json.loads(run.invoke(command, ["prune", "--size", "0", "--json"]).stdout)["evicted"]) == 1
    assert json.loads(run.invoke(command, ["list", "--json"]).stdout)["builds"] == []


def test_a_put_that_is_killed_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that opens, names or removes something is once the last one of the process."""
    # The process dies, not the machine.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    folder, old, new = (
        tmp_path / "builds",
        archive(tmp_path / "a.tar", "a"),
        archive(tmp_path / "b.tar", "a", SIZE // 2),
    )
    other = archive(tmp_path / "c.tar", "c")
    step, ended = 0, False
    while not ended:
        step += 1
        before = BuildCache(folder, 1 << 30, warnings.append)
        before.put(other, "want-c", ORIGIN)
        before.put(old, "want-a", ORIGIN)
        child = os.fork()
        if child == 0:
            left = step

            def count(event: str, _: tuple[object, ...]) -> None:
                nonlocal left
                left -= event == "open" or event.startswith(("os.", "shutil.", "fcntl.", "tempfile."))
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            try:
                # Replaces one build and evicts the other.
                BuildCache(folder, SIZE, warnings.append).put(new, "want-a", ORIGIN)
            finally:
                os._exit(0)
        ended = os.WIFEXITED(os.waitpid(child, 0)[1])
        after = BuildCache(folder, 1 << 30, warnings.append)
        assert after.verify() == []
        assert warnings == [], f"killed at step {step}"
        assert names(folder) == {*(entry.sha256 for entry in after.entries()), "wants", "lock"}
        if after.take("want-a", tmp_path / "x.tar", [ORIGIN]):
            assert (tmp_path / "x.tar").read_bytes() in (old.read_bytes(), new.read_bytes())
    assert (tmp_path / "x.tar").read_bytes() == new.read_bytes()
    assert step > 30


#: Puts, takes and evicts at random until it is killed; a build that is taken and not whole ends it with a complaint.
WORKER = """
import random, sys
from pathlib import Path
from gdsdeploy.builds.cache import BuildCache
from gdsdeploy.host.archive.provenance import Origin, public_pem
ORIGIN = Origin("build1", public_pem(b"1" * 32))
folder, work, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
def complain(text):
    print("damaged:", text, flush=True)
    sys.exit(1)
done = 0
while True:
    name = chance.choice("abcdefgh")
    cache = BuildCache(folder, 200_000, complain)
    what = chance.random()
    if what < 0.4:
        cache.put(work / (name + ".tar"), name, ORIGIN)
    elif what < 0.9:
        with cache.run() as mine:
            copy, made = mine / "x.tar", work / (name + ".tar")
            if cache.take(name, copy, [ORIGIN]) and copy.read_bytes() != made.read_bytes():
                complain("taken bytes differ")
    else:
        cache.prune(60_000)
    done += 1
    print(done, flush=True)
"""


def test_processes_that_are_killed_leave_nothing_half(tmp_path: Path) -> None:
    """Six at a time, killed after a random time and replaced, on one cache that is too small for all builds."""
    for name in "abcdefgh":
        archive(tmp_path / f"{name}.tar", name)
    folder, chance = tmp_path / "builds", random.Random(7)
    work = 0

    def start(seed: int) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", WORKER, str(folder), str(tmp_path), str(seed)]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    running = [start(seed) for seed in range(6)]
    try:
        for seed in range(100, 112):
            victim = running[0]
            assert victim.stdout is not None
            # However busy the machine is, it has begun.
            work += victim.stdout.readline().strip().isdigit()
            time.sleep(chance.uniform(0.0, 0.4))
            work += killed(running.pop(0))
            running.append(start(seed))
    finally:
        for process in running:
            work += killed(process)
    assert work > 12, "hardly anything was done"
    warnings: list[str] = []
    cache = BuildCache(folder, 200_000, warnings.append)
    assert cache.verify() == []
    assert warnings == []
    keys = {entry.sha256 for entry in cache.entries()}
    assert names(folder) == {*keys, "wants", "lock"}, "the next process sweeps what the killed ones left"
    assert sum(entry.size for entry in cache.entries()) <= 200_000
    for want in "abcdefgh":
        if cache.take(want, tmp_path / "x.tar", [ORIGIN]):
            assert (tmp_path / "x.tar").read_bytes() == (tmp_path / f"{want}.tar").read_bytes()


def killed(process: subprocess.Popen[str]) -> int:
    """Kill it in whatever it does; how many rounds it made."""
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    warnings = process.communicate()[0]
    assert alive, warnings
    return sum(line.isdigit() for line in warnings.splitlines())
