"""Every check seen passing on a real provisioned host, and failing on the same host with one thing changed."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from later_evidence import complete

from gdsdeploy.host import checks
from gdsdeploy.host.expectation import Expectation, from_json
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.finding import FAIL, PASS, UNKNOWN, Finding

HOSTS = Path(__file__).parents[3] / "evidence" / "hosts"
GOOD = json.loads((HOSTS / "lab-vm-provisioned.json").read_text())
BARE = json.loads((HOSTS / "lab-vm-bare.json").read_text())
WANTED = from_json((HOSTS / "lab-vm.expectation.json").read_text())
OPENED = json.loads((HOSTS.parent / "cufile-open" / "libcuda-550-no-gpu.json").read_text())
Document = dict[str, Any]
Change = Callable[[Document], None]


def findings(document: Document, wanted: Expectation = WANTED) -> dict[str, Finding]:
    return {item.check: item for item in checks.run(facts_from(document), wanted)}


def verdicts(document: Document, wanted: Expectation = WANTED) -> dict[str, str]:
    return {name: item.verdict for name, item in findings(document, wanted).items()}


def test_a_provisioned_host_passes_everything() -> None:
    found = findings(GOOD)
    assert {name: item.found for name, item in found.items() if item.verdict != PASS} == {}
    registered = {check.id for check in checks.listed()}
    assert {name.partition(":")[0] for name in found} == registered, "every check ran"


def test_it_says_that_nothing_is_proven_without_a_gpu() -> None:
    found = findings(GOOD)["storage.path:/mnt/nvme"].found
    assert found.startswith("compat: the loaded nvme has no hooks for nvidia-fs")
    assert found.endswith("(not proven: this host has no GPU)")


def file(path: str, value: object) -> Change:
    return lambda document: document["files"].__setitem__(path, value)


def absent(section: str, path: str) -> Change:
    return lambda document: document[section].__setitem__(path, {"error": "ENOENT"})


def module(name: str) -> str:
    """The file of a module by its in-kernel name."""
    return next(path for path, value in GOOD["modules"].items() if value["name"] == name)


def in_module(name: str, **values: object) -> Change:
    return lambda document: document["modules"][module(name)].update(values)


def unloaded(name: str) -> Change:
    def change(document: Document) -> None:
        lines = document["files"]["/proc/modules"].splitlines(keepends=True)
        document["files"]["/proc/modules"] = "".join(line for line in lines if line.split()[0] != name)
        document["files"][f"/sys/module/{name}/version"] = {"error": "ENOENT"}
        if name == "nvidia":
            document["files"]["/proc/driver/nvidia/version"] = {"error": "ENOENT"}

    return change


def output(name: str, before: str, after: str) -> Change:
    def change(document: Document) -> None:
        run = document["commands"][name]
        assert before in run["stdout"]
        run["stdout"] = run["stdout"].replace(before, after)

    return change


def edited(path: str, before: str, after: str) -> Change:
    def change(document: Document) -> None:
        assert before in document["files"][path]
        document["files"][path] = document["files"][path].replace(before, after)

    return change


def package(name: str, version: str, status: str) -> Change:
    return output(
        "dpkg-query", f"\n{name}\t{WANTED.packages[name]}\tamd64\thi ", f"\n{name}\t{version}\tamd64\t{status} "
    )


def nouveau_allowed(document: Document) -> None:
    """Debian's own packages forbid it too."""
    for path, text in document["files"].items():
        if "/modprobe.d/" in path and isinstance(text, str):
            document["files"][path] = text.replace("nouveau", "nothing")


def no_libcufile(document: Document) -> None:
    document["commands"]["cufile-open"].update(stdout="gdsdeploy: not loaded: libcufile.so.0: none\n")
    document["listings"].update({key: [] for key in document["listings"] if key.endswith("/libcufile.so*")})


def appended(path: str, text: str) -> Change:
    def change(document: Document) -> None:
        document["files"][path] += text

    return change


def opened(name: str) -> Change:
    return lambda document: document["commands"].update(copy.deepcopy(OPENED[name]))


def logged(*values: str) -> Change:
    """libcufile comes as far as its values, as it does with a GPU."""
    lines = ["CUFILE CONFIGURATION:", *values, "GPU INFO:"]
    log = "".join(f" 21-11-2026 01:01:30:411 [pid=1 tid=1] INFO   0:1509 {line}\n" for line in lines)
    return lambda document: document["commands"]["cufile-open"].update(log=log)


def crc(symbol: str) -> Change:
    def change(document: Document) -> None:
        imports = document["modules"][module("nvidia_fs")]["imports"]
        imports[symbol] = (imports[symbol] or 0) ^ 1

    return change


def not_exported(symbol: str) -> Change:
    return lambda document: document["modules"][module("nvidia")]["exports"].pop(symbol)


def without_crcs(document: Document) -> None:
    imports = document["modules"][module("nvidia_fs")]["imports"]
    document["modules"][module("nvidia_fs")]["imports"] = {
        name: None if name.startswith("nvidia_p2p_") else value for name, value in imports.items()
    }


def provenance(**values: str) -> Change:
    return lambda document: document["modules"][module("nvidia_fs")]["provenance"].update(values)


def tree(digest: str) -> Change:
    """The locked source tree on the host itself, as on hosts that build their own modules."""

    def change(document: Document) -> None:
        document["trees"][WANTED.driver_tree] = {"version": "550.163.01", "flavour": "open", "digest": digest}
        document["listings"]["/usr/src/nvidia*"].append(Path(WANTED.driver_tree).name)

    return change


def units(before: str, after: str) -> Change:
    def change(document: Document) -> None:
        run = document["commands"]["systemctl-units"]
        blocks = run["stdout"].split("\n\n")
        run["stdout"] = "\n\n".join(
            block.replace(before, after) if "Id=systemd-modules-load.service" in block else block for block in blocks
        )

    return change


def rebuilt(name: str) -> Change:
    """Another build of the same source on disk: what is loaded stays as it is."""
    return in_module(name, build_id="04" * 36)


NVFS = ("nvidia-fs.loaded-version", "nvidia-fs.loaded-file", "nvidia-fs.driver-tree", "nvidia-fs.devices")
#: fault → (what makes it, checks that have to fail; others may only become unknown)
FAULTS: dict[str, tuple[Change, set[str]]] = {
    "another release": (file("/etc/os-release", "ID=debian\nVERSION_ID=12\n"), {"os.release"}),
    "another machine": (lambda document: document["host"]["uname"].update(machine="aarch64"), {"os.release"}),
    "another default at boot": (
        file("/boot/grub/grubenv", "saved_entry=gnulinux-gone\n"),
        set(),
    ),
    "nvidia not loaded": (
        unloaded("nvidia"),
        {"driver.loaded-version", "driver.flavour", "driver.loaded-file", "nvidia-fs.driver-tree"},
    ),
    "another driver runs": (
        edited("/proc/driver/nvidia/version", WANTED.driver_version, "535.261.03"),
        {"driver.loaded-version", "nvidia-fs.driver-tree"},
    ),
    "proprietary driver": (
        edited("/proc/driver/nvidia/version", "Open Kernel Module", "Kernel Module"),
        {"driver.flavour", "nvidia-fs.driver-tree"},
    ),
    "driver replaced on disk": (rebuilt("nvidia"), {"driver.loaded-file"}),
    "driver for another kernel": (
        in_module("nvidia", vermagic="6.12.117+deb13-amd64 SMP preempt mod_unload modversions "),
        {"driver.built-for-kernel"},
    ),
    "nouveau loaded": (appended("/proc/modules", "nouveau 1 0 - Live 0x0\n"), {"nouveau.absent"}),
    "nouveau allowed": (nouveau_allowed, {"nouveau.absent"}),
    "nvidia-fs not loaded": (unloaded("nvidia_fs"), set(NVFS)),
    "another nvidia-fs": (file("/sys/module/nvidia_fs/version", "2.17.5\n"), {"nvidia-fs.loaded-version"}),
    "nvidia-fs replaced on disk": (rebuilt("nvidia_fs"), {"nvidia-fs.loaded-file"}),
    "nvidia-fs for another kernel": (
        in_module("nvidia_fs", vermagic="6.1.0-50-amd64 SMP "),
        {"nvidia-fs.built-for-kernel"},
    ),
    "one symbol version differs": (crc("nvidia_p2p_get_pages"), {"nvidia-fs.symbol-versions"}),
    "one symbol is not exported": (not_exported("nvidia_p2p_put_pages"), {"nvidia-fs.symbol-versions"}),
    "no symbol versions": (without_crcs, {"nvidia-fs.symbol-versions"}),
    "built against another driver": (
        provenance(driver="535.261.03", tree="sha256:00"),
        {"nvidia-fs.driver-tree"},
    ),
    "built against the other flavour": (provenance(flavour="proprietary"), {"nvidia-fs.driver-tree"}),
    "built in another tree": (tree("sha256:00"), {"nvidia-fs.driver-tree"}),
    "not built by us": (in_module("nvidia_fs", provenance={}), {"nvidia-fs.driver-tree"}),
    "a device node lacks": (
        lambda document: document["listings"]["/dev/nvidia*"].remove("nvidia-fs7"),
        {"nvidia-fs.devices"},
    ),
    "a package was upgraded": (package("libcufile0", "2.0-1", "ii"), {"packages.locked-versions", "packages.drift"}),
    "a package is half-configured": (
        package("gds-tools", WANTED.packages["gds-tools"], "hF"),
        {"packages.locked-versions"},
    ),
    "nothing loads nvidia-fs at boot": (file("/etc/modules-load.d/gdsdeploy.conf", "nvidia\n"), {"boot.autoload"}),
    "the wrong order at boot": (file("/etc/modules-load.d/gdsdeploy.conf", "nvidia-fs\nnvidia\n"), {"boot.autoload"}),
    "nvidia-fs forbidden": (appended("/etc/modprobe.d/gdsdeploy.conf", "blacklist nvidia-fs\n"), {"boot.autoload"}),
    "loading failed at boot": (units("ActiveState=active", "ActiveState=failed"), {"boot.autoload"}),
    "no libcufile": (no_libcufile, {"cufile.library"}),
    "another libcufile": (output("cufile-open", "libcufile.so.1.9.1", "libcufile.so.1.15.1"), {"cufile.library"}),
    "cufile.json edited": (appended("/etc/cufile.json", "// by hand\n"), {"cufile.rendered"}),
    "cufile.json gone": (absent("files", "/etc/cufile.json"), {"cufile.rendered"}),
    "cufile.json refused": (opened("1.9.1 wrong-type"), {"cufile.accepted", "storage.path:/mnt/nvme"}),
    "a value without effect": (
        logged("properties.use_compat_mode : true", "properties.per_buffer_cache_size_kb : 64"),
        {"cufile.effective"},
    ),
    "gdscheck sees a GPU problem that is none": (
        lambda document: document["listings"].update({"gdscheck": []}),
        {"gdscheck.agrees"},
    ),
    "not mounted": (edited("/proc/self/mountinfo", " /mnt/nvme ", " /mnt/other "), {"storage.path:/mnt/nvme"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_by_name(fault: str) -> None:
    change, failing = FAULTS[fault]
    document = copy.deepcopy(GOOD)
    change(document)
    found = findings(document)
    assert {name for name, item in found.items() if item.verdict == FAIL} == failing
    for item in found.values():
        if item.verdict != PASS:
            assert item.hint, item.check
            assert item.expected, item.check
            assert item.found, item.check


def test_effective_values_are_compared_where_libcufile_names_them() -> None:
    found = findings(GOOD)["cufile.effective"].found
    assert (
        found == "none to compare: this host has no GPU, so cuFileDriverOpen returned 5011 before libcufile named any"
    )
    document = copy.deepcopy(GOOD)
    logged("properties.use_compat_mode : true", "properties.max_direct_io_size_kb : 1024")(document)
    item = findings(document)["cufile.effective"]
    assert (item.verdict, item.found) == (PASS, "2 values as intended, of 2 that libcufile logs")
    FAULTS["a value without effect"][0](document)
    item = findings(document)["cufile.effective"]
    assert item.found == "properties.per_buffer_cache_size_kb: 64 (the file has 1024)"


def test_a_gpu_and_no_values_cannot_be_judged() -> None:
    document = copy.deepcopy(GOOD)
    document["listings"]["/proc/driver/nvidia/gpus"] = ["0000:00:06.0"]
    item = findings(document)["cufile.effective"]
    assert item.verdict == UNKNOWN
    assert item.found.startswith("cuFileDriverOpen returned 5011 before libcufile logged its values: cuInit Failed")


@pytest.mark.parametrize(("release", "logged_values"), [("1.15.1", 33), ("1.20.0", 63)])
def test_values_of_hosts_with_a_gpu_are_the_intended_ones(release: str, logged_values: int) -> None:
    document = json.loads((HOSTS / f"h100-libcufile-{release}.json").read_text())
    config = {"properties": {"allow_compat_mode": True, "io_batchsize": 128, "posix_pool_slab_count": [128, 64, 64]}}
    document["files"]["/etc/cufile.json"] = json.dumps(config)
    wanted = replace(WANTED, libcufile_version=release)
    found = findings(document, wanted)["cufile.effective"].found
    assert found == f"3 values as intended, of {logged_values} that libcufile logs"


def test_every_check_is_seen_failing() -> None:
    seen = {name.partition(":")[0] for _, failing in FAULTS.values() for name in failing}
    seen |= {name.partition(":")[0] for name, verdict in verdicts(BARE).items() if verdict == FAIL}
    elsewhere = {"peermem.usable"}  # below: it depends on what the fleet asks for
    assert {check.id for check in checks.listed()} - seen == elsewhere


def test_a_differing_symbol_is_named_with_both_versions() -> None:
    document = copy.deepcopy(GOOD)
    crc("nvidia_p2p_get_pages")(document)
    found = findings(document)["nvidia-fs.symbol-versions"]
    total = sum(name.startswith("nvidia_p2p_") for name in document["modules"][module("nvidia_fs")]["imports"])
    assert found.found == f"1 of {total} differ: nvidia_p2p_get_pages"
    theirs = GOOD["modules"][module("nvidia")]["exports"]["nvidia_p2p_get_pages"][0]
    assert found.evidence == [
        f"nvidia_p2p_get_pages: nvidia-fs wants 0x{theirs ^ 1:08x}, the driver exports 0x{theirs:08x}"
    ]


def test_a_tree_on_the_host_is_compared_by_its_content() -> None:
    document = copy.deepcopy(GOOD)
    tree(document["modules"][module("nvidia_fs")]["provenance"]["tree"])(document)
    found = findings(document)["nvidia-fs.driver-tree"]
    assert (found.verdict, found.found) == (PASS, f"built against nvidia 550.163.01 (open) in {WANTED.driver_tree}")
    assert "is not on this host" in findings(GOOD)["nvidia-fs.driver-tree"].found
    document["trees"].clear()
    assert verdicts(document)["nvidia-fs.driver-tree"] == UNKNOWN, "it is there, but was not read"


def test_old_nvidia_fs_imports_nothing_and_that_is_said() -> None:
    document = copy.deepcopy(GOOD)
    document["modules"][module("nvidia_fs")].update(imports={"module_layout": 1}, version="2.13.5")
    assert "looks the driver's symbols up" in findings(document)["nvidia-fs.symbol-versions"].found
    document["modules"][module("nvidia_fs")].update(version="2.19.7")
    assert findings(document)["nvidia-fs.symbol-versions"].verdict == FAIL


def test_a_file_that_is_not_what_is_loaded_proves_nothing_about_it() -> None:
    document = copy.deepcopy(GOOD)
    rebuilt("nvidia_fs")(document)
    found = verdicts(document)
    assert (found["nvidia-fs.driver-tree"], found["nvidia-fs.symbol-versions"]) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    ("mode", "nvidia_fs"), [("compat", ""), ("p2pdma", "")]
)  # fmt: skip
def test_a_mode_without_nvidia_fs_does_not_ask_for_it(mode: str, nvidia_fs: str) -> None:
    document = copy.deepcopy(GOOD)
    unloaded("nvidia_fs")(document)
    file("/etc/modules-load.d/gdsdeploy.conf", "nvidia\n")(document)
    found = findings(document, replace(WANTED, mode=mode, nvidia_fs_version=nvidia_fs))
    assert {name for name, item in found.items() if item.verdict != PASS} == set()
    assert found["nvidia-fs.driver-tree"].found == f"not needed: the mode is {mode}"


def test_peermem_where_the_fleet_asks_for_it() -> None:
    wanted = replace(WANTED, rdma="peermem")
    stub = findings(GOOD, wanted)["peermem.usable"]
    assert stub.verdict == FAIL
    assert "is a stub" in stub.found
    assert "DMA-BUF" in stub.hint
    assert "a stub, built without OFED" in findings(GOOD)["peermem.usable"].found
    document = copy.deepcopy(GOOD)
    document["modules"][module("nvidia_peermem")]["imports"]["ib_register_peer_memory_client"] = 7
    assert "not loaded" in findings(document, wanted)["peermem.usable"].found
    appended("/proc/modules", "nvidia_peermem 1 0 - Live 0x0\n")(document)
    assert "not registered" in findings(document, wanted)["peermem.usable"].found
    document["listings"]["/sys/kernel/mm/memory_peers"] = ["nv_mem"]
    assert findings(document, wanted)["peermem.usable"].verdict == PASS
    assert findings(document, wanted)["boot.autoload"].found == "modules-load.d lacks nvidia_peermem"


def test_dma_buf_needs_the_open_driver_and_a_kernel_that_has_it() -> None:
    wanted = replace(WANTED, rdma="dmabuf")
    assert findings(GOOD, wanted)["peermem.usable"].verdict == PASS
    document = copy.deepcopy(GOOD)
    document["host"]["uname"]["release"] = "5.10.0-1-amd64"
    assert "older than 5.12" in findings(document, wanted)["peermem.usable"].found
    document = copy.deepcopy(GOOD)
    FAULTS["proprietary driver"][0](document)
    assert "proprietary" in findings(document, wanted)["peermem.usable"].found


@pytest.mark.parametrize("wanted", ["direct", "nvidia-fs", "p2pdma"])
def test_a_direct_path_that_is_not_there_fails_with_all_steps(wanted: str) -> None:
    storage = [{"mount": "/mnt/nvme", "path": wanted}]
    found = findings(GOOD, replace(WANTED, storage=storage))["storage.path:/mnt/nvme"]
    assert found.verdict == FAIL
    assert found.found == "compat: the loaded nvme has no hooks for nvidia-fs"
    assert found.hint.startswith("Install the nvme of MLNX_OFED or DOCA for this kernel")
    assert "set its path to compat" in found.hint
    document = complete(copy.deepcopy(GOOD))
    hook = "0000000000000000 T nvme_v1_register_nvfs_dma_ops\t[nvme]"
    document["excerpts"]["/proc/kallsyms"]["lines"].append(hook)
    document["files"]["/proc/driver/nvidia-fs/modules"] = "nvme: 1\n"
    good = findings(document, replace(WANTED, storage=storage))["storage.path:/mnt/nvme"]
    assert good.verdict == (FAIL if wanted == "p2pdma" else PASS)
    assert good.found.startswith("nvidia-fs")


GDSCHECK = HOSTS.parent / "gdscheck"


@pytest.mark.parametrize(
    ("recording", "agrees", "words"),
    [
        ("1.9.1.ngpu0.no-nvidia-fs.noconfig", True, "for a reason that is known here"),
        ("1.15.1.json-badtype", False, "which nothing found here explains: json type mismatch"),
        ("1.9.1.no-nvfs.compat-false", False, "nvidia-fs driver is not loaded"),
        ("1.9.1.nvfs-version-2.3", False, "it sees nvidia-fs 2.3; loaded here is"),
        ("1.9.1.ngpu1.nvfs-2.28.proprietary-driver", False, "it sees the proprietary driver; found here: open"),
        ("1.9.1.ngpu1.no-nvidia-fs.noconfig", False, "it does not see nvidia-fs, which is loaded here"),
        ("1.20.0.ngpu1.nvfs-2.28.open-driver", False, "the nvme driver has no hooks for nvidia-fs"),
    ],
)
def test_gdscheck_is_held_against_the_other_findings(recording: str, agrees: bool, words: str) -> None:
    text, _, status = (GDSCHECK / f"gdscheck-p.libcufile-{recording}.txt").read_text().rstrip().rpartition("\nrc=")
    document = copy.deepcopy(GOOD)
    document["commands"]["gdscheck"].update(stdout=text, stderr="", status=int(status))
    found = findings(document)["gdscheck.agrees"]
    assert (found.verdict, words in found.found) == (PASS if agrees else FAIL, True), found


def test_a_cut_gdscheck_cannot_be_told() -> None:
    text, _, _ = (
        (GDSCHECK / "gdscheck-p.libcufile-1.9.1.ngpu1.nvfs-2.28.open-driver.txt").read_text().partition("GPU INFO")
    )
    document = copy.deepcopy(GOOD)
    document["commands"]["gdscheck"].update(stdout=text, stderr="", status=0)
    assert findings(document)["gdscheck.agrees"].verdict == UNKNOWN


SECTIONS = ("host", "files", "binaries", "links", "listings", "excerpts", "commands", "modules", "trees", "space")


def places(document: Document) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = [(section,) for section in document]
    for section in SECTIONS:
        found += [(section, key) for key in document[section]]
        found += [
            (section, key, inner)
            for key, value in document[section].items()
            if section in ("excerpts", "commands", "modules", "trees") and isinstance(value, dict)
            for inner in value
        ]
    return found


def without(document: Document, gone: list[tuple[str, ...]]) -> Document:
    """A copy without some of its parts; what is not touched is shared."""
    result = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    for path in sorted(gone, key=len):
        inside: Any = result
        for key in path[:-1]:
            if not isinstance(inside, dict) or key not in inside:
                break
            if isinstance(inside[key], dict):
                inside[key] = dict(inside[key])
            inside = inside[key]
        else:
            if isinstance(inside, dict):
                inside.pop(path[-1], None)
    return result


def faulty(names: list[str]) -> Document:
    document = copy.deepcopy(GOOD)
    for name in names:
        FAULTS[name][0](document)
    return document


HAVE: dict[str, Document] = {"provisioned": GOOD, "bare": BARE, **{name: faulty([name]) for name in FAULTS}}


def not_better(before: dict[str, str], after: dict[str, str], what: object) -> None:
    for name, verdict in after.items():
        if verdict == PASS:
            assert before.get(name) == PASS, (name, what)
    # A check that falls silent must not take a failure with it.
    for name, verdict in before.items():
        if verdict != PASS and not name.startswith("storage.path"):
            assert name in after, (name, what)


@pytest.mark.parametrize("name", HAVE)
def test_leaving_out_any_piece_of_evidence_never_makes_a_pass(name: str) -> None:
    document = HAVE[name]
    before = verdicts(document)
    # Every place for the real documents, a share of them for each fault.
    every = places(document)
    chosen = every if name in ("provisioned", "bare") else random.Random(name).sample(every, 60)
    for place in chosen:
        not_better(before, verdicts(without(document, [place])), place)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(list(FAULTS)), max_size=3), st.data())
def test_leaving_out_any_pieces_of_a_faulty_host_never_makes_a_pass(names: list[str], data: st.DataObject) -> None:
    try:
        document = faulty(names)
    except (AssertionError, KeyError, TypeError, AttributeError, ValueError):
        return  # two faults that exclude each other
    gone = data.draw(st.lists(st.sampled_from(places(document)), max_size=12))
    not_better(verdicts(document), verdicts(without(document, gone)), gone)


def test_no_evidence_at_all_is_no_verdict() -> None:
    found = verdicts({})
    assert set(found.values()) == {UNKNOWN, PASS}
    assert {name for name, verdict in found.items() if verdict == PASS} == {"peermem.usable"}
