"""Modules of locked packages: whether they are the packages' files, would load, and who signed them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.host import checks
from gdsdeploy.host.audit.audit import audit, audit_expected, audit_packaged
from gdsdeploy.host.boot.grub import MenuGrub
from gdsdeploy.host.evidence.recorder import Recorder, request_for
from gdsdeploy.host.facts import facts_from
from gdsdeploy.host.kmod import packaged
from gdsdeploy.host.kmod.driver import Expected
from gdsdeploy.host.kmod.kernel import Kernel
from gdsdeploy.host.model.expectation import from_json
from gdsdeploy.host.model.finding import FAIL, NOT_APPLICABLE, PASS, Finding
from gdsdeploy.host.subjects.modules import collect_audits
from tests.unit.host.checks.changes import GOOD
from tests.unit.host.kmod.kmod_elf import VERMAGIC, module_bytes
from tests.unit.host.kmod.kmod_keys import efi, pair, signature_list
from tests.unit.host.kmod.kmod_root import EXPECTED, KERNEL_EXPORTS, P2P, RELEASE, VERSION
from tests.unit.host.kmod.packaged_root import DRIVER, DRIVER_FILE, NVIDIA_FS_FILE, PackagedRoot
from tests.unit.later_evidence import complete

LOCKED = Expected(VERSION, "open", nvidia_fs_version="2.19.7")


@pytest.fixture
def root(tmp_path: Path) -> PackagedRoot:
    return PackagedRoot(tmp_path)


def kernel(root: PackagedRoot) -> Kernel:
    return Kernel(RELEASE, str(root.path))


def look(root: PackagedRoot, expected: Expected = LOCKED) -> dict[str, dict[str, Any]]:
    results = audit_packaged(kernel(root), ("nvidia", "nvidia_fs"), expected, root.files)
    return {result["module"]: result for result in results}


def ids(result: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["outcome"] for finding in result["findings"]}


def test_modules_of_packages_pass_without_headers(root: PackagedRoot) -> None:
    results = look(root)
    assert {name: (result["ok"], result["package"]) for name, result in results.items()} == {
        "nvidia": (True, f"{DRIVER} 6.12.94-1+1"),
        "nvidia_fs": (True, f"linux-modules-nvidia-fs-{RELEASE} 6.12.94-1"),
    }
    assert ids(results["nvidia_fs"])["driver-tree-unrecorded"] == "ok"


def test_the_same_files_without_a_lock_that_has_them_are_undecided(root: PackagedRoot) -> None:
    """Nobody knows the versions of symbols that no other module uses, and what nvidia-fs was built against."""
    (result,) = audit(kernel(root), ("nvidia_fs",), LOCKED)
    assert result["ok"] is None
    assert {"symbol-unknown", "driver-tree-unknown"} <= ids(result).keys()


def test_symbol_versions_are_compared_with_those_that_the_kernels_modules_use(tmp_path: Path) -> None:
    imports = {**{name: crc for name, (crc, _) in P2P.items()}, "gpl_thing": KERNEL_EXPORTS["gpl_thing"] + 1}
    other = module_bytes(
        "nvidia_fs", vermagic=VERMAGIC, info=[("version", "2.19.7")], imports=imports, depends="nvidia"
    )
    result = look(PackagedRoot(tmp_path, {NVIDIA_FS_FILE: other}))["nvidia_fs"]
    assert (result["ok"], ids(result)["symbol-crc"]) == (False, "error")


def test_another_driver_than_the_lock_has_is_an_error(root: PackagedRoot) -> None:
    result = look(root, LOCKED._replace(driver_version="580.159.03"))["nvidia"]
    assert ids(result)["driver-version"] == "error"
    result = look(root, LOCKED._replace(nvidia_fs_version="2.26.6"))["nvidia_fs"]
    assert ids(result)["nvidia-fs-version"] == "error"


def change_content(root: PackagedRoot) -> None:
    with (root.modules / DRIVER_FILE).open("ab") as file:
        file.write(b"x")


def lose(root: PackagedRoot) -> None:
    (root.modules / DRIVER_FILE).unlink()


def give_away(root: PackagedRoot) -> None:
    root.etc(f"var/lib/dpkg/info/{DRIVER}.list", "/.\n/lib\n")


def put_another_before(root: PackagedRoot) -> None:
    root.nvidia("updates/nvidia.ko")


def forget_depmod(root: PackagedRoot) -> None:
    lines = (root.modules / "modules.dep").read_text().splitlines(True)
    (root.modules / "modules.dep").write_text("".join(line for line in lines if not line.startswith(DRIVER_FILE)))


@pytest.mark.parametrize(
    ("damage", "ident", "words", "hint"),
    [
        (change_content, packaged.CONTENT, f"isn't as the lock has it of {DRIVER}", "apt-get install --reinstall"),
        (lose, packaged.MISSING, "isn't there, or can't be read", f"{DRIVER}=6.12.94-1+1"),
        (give_away, packaged.OWNER, "doesn't belong to linux-modules-nvidia-550-open", "--reinstall"),
        (put_another_before, packaged.SHADOWED, "updates/nvidia.ko has precedence over", "remove updates/nvidia.ko"),
        (forget_depmod, packaged.STALE, "modules.dep doesn't list", f"depmod -a {RELEASE}"),
    ],
)
def test_a_file_that_is_not_the_packages_is_an_error(
    root: PackagedRoot, damage: Callable[[PackagedRoot], None], ident: str, words: str, hint: str
) -> None:
    damage(root)
    (problem,) = packaged.problems(kernel(root), root.files)
    assert (problem.id, problem.file.module) == (ident, "nvidia")
    assert words in problem.message
    assert hint in problem.hint
    result = look(root)["nvidia"]
    assert (result["ok"], result["package"]) == (False, "")
    assert ids(result)["packaged-file"] == "error"


def test_what_dkms_and_gdsdeploy_have_put_before_the_packages_is_told_by_name(root: PackagedRoot) -> None:
    assert packaged.shadows(kernel(root), root.files) == []
    root.built_by_dkms()
    assert packaged.shadows(kernel(root), root.files) == [f"nvidia/{VERSION}"]
    root.nvidia_fs("updates/gdsdeploy/nvidia-fs.ko")
    root.etc("etc/depmod.d/gdsdeploy.conf", f"override nvidia-fs {RELEASE} updates/gdsdeploy\n")
    assert packaged.shadows(kernel(root), root.files) == ["updates/gdsdeploy", f"nvidia/{VERSION}"]


def test_a_build_of_dkms_that_is_not_installed_is_left_alone(root: PackagedRoot) -> None:
    root.built_by_dkms()
    (root.path / f"var/lib/dkms/nvidia/kernel-{RELEASE}-x86_64").unlink()
    assert packaged.shadows(kernel(root), root.files) == []


def test_a_build_of_dkms_for_another_module_is_left_alone(root: PackagedRoot) -> None:
    root.built_by_dkms("other", "1.0", "other.ko")
    put_another_before(root)
    assert packaged.shadows(kernel(root), root.files) == []


@pytest.mark.parametrize(
    ("place", "keyring"),
    [("mok", "MOK"), ("db", "firmware"), ("kernel", "the kernel"), ("nowhere", ""), ("unread", "unknown")],
    ids=["mok", "db", "kernel", "nowhere", "unread"],
)
def test_the_signer_and_its_keyring_are_named(tmp_path: Path, place: str, keyring: str) -> None:
    key = pair(tmp_path / "keys", "Canonical Ltd. Kernel Module Signing")
    imports = {"kfree": KERNEL_EXPORTS["kfree"]}
    info = [("version", VERSION)]
    plain = module_bytes(vermagic=VERMAGIC, license="Dual MIT/GPL", info=info, exports=P2P, imports=imports)
    root = PackagedRoot(tmp_path / "root", {DRIVER_FILE: key.sign(plain)})
    lists = {place: signature_list(key.der.read_bytes())} if place in ("mok", "db") else {}
    if place != "unread":
        # What the kernel was built with, as far as its build folder tells.
        own = key if place == "kernel" else pair(tmp_path / "keys", "Build time autogenerated kernel key")
        root.etc(f"lib/modules/{RELEASE}/build/certs/signing_key.x509", "")
        (root.modules / "build/certs/signing_key.x509").write_bytes(own.der.read_bytes())
    efi(root.path, secure_boot=1, **lists)
    result = look(root)["nvidia"]
    assert "Canonical Ltd. Kernel Module Signing" in result["signer"]
    assert result["keyring"] == keyring
    assert look(root)["nvidia_fs"]["signer"] == ""


def test_a_host_audits_against_its_expectation(root: PackagedRoot) -> None:
    expectation = replace(EXPECTED, packaged=root.files)
    assert [result["ok"] for result in audit_expected(kernel(root), expectation)] == [True, True]
    assert [result["ok"] for result in audit_expected(kernel(root), EXPECTED)] == [True, None]
    other = replace(expectation, kernel_release="6.12.107+deb13-amd64")
    assert "package" not in audit_expected(kernel(root), other)[0], "of another kernel the lock knows no packages"


# ── evidence and checks ───────────────────────────────────────────────────────────────────────────────────────────


def judge(root: PackagedRoot, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    """What the checks say of this host, from its evidence."""
    monkeypatch.setattr("gdsdeploy.host.kmod.kernel.Kernel", lambda release: Kernel(release, str(root.path)))
    monkeypatch.setattr(MenuGrub, "kernels", lambda _: {"default": RELEASE, "next": RELEASE})
    expectation = replace(EXPECTED, packaged=root.files)
    recorder = Recorder()
    recorder.document["host"]["uname"]["release"] = RELEASE
    collect_audits(recorder, request_for(expectation))
    document = json.loads(json.dumps(complete(copy.deepcopy(GOOD)) | {"audits": recorder.document["audits"]}))
    return {finding.check: finding for finding in checks.run(facts_from(document), expectation)}


def test_validate_names_package_and_signer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = pair(tmp_path / "keys", "Canonical Ltd. Kernel Module Signing")
    plain = PackagedRoot(tmp_path / "plain")
    content = {file: key.sign((plain.modules / file).read_bytes()) for file in (DRIVER_FILE, NVIDIA_FS_FILE)}
    root = PackagedRoot(tmp_path / "root", content)
    efi(root.path, secure_boot=1, mok=signature_list(key.der.read_bytes()))
    options = ("MODULE_SIG", "LOCK_DOWN_IN_EFI_SECURE_BOOT", "INTEGRITY_PLATFORM_KEYRING")
    root.etc(f"boot/config-{RELEASE}", "".join(f"CONFIG_{option}=y\n" for option in options))
    findings = judge(root, monkeypatch)
    for name in ("modules.running", "modules.next-boot"):
        assert findings[name].verdict == PASS
        assert f"nvidia: packaged by {DRIVER} 6.12.94-1+1, signed by 'Canonical Ltd." in findings[name].found
        assert f"nvidia_fs: packaged by linux-modules-nvidia-fs-{RELEASE} 6.12.94-1, signed by" in findings[name].found
    signatures = findings["secure-boot.signatures"]
    assert signatures.verdict == PASS
    assert "signed by 'Canonical Ltd. Kernel Module Signing' (serial" in signatures.found
    assert "an enrolled machine owner's key" in signatures.found
    assert len(signatures.evidence) == 2


def test_validate_finds_a_file_that_is_not_the_packages(root: PackagedRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root.built_by_dkms()
    findings = judge(root, monkeypatch)
    assert findings["modules.next-boot"].verdict == FAIL
    assert "updates/dkms/nvidia.ko has precedence over" in findings["modules.next-boot"].found


def test_what_a_package_does_not_record_is_no_failure_and_no_proof(
    root: PackagedRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        GOOD, "modules", {path: {**record, "provenance": {}} for path, record in GOOD["modules"].items()}
    )
    findings = judge(root, monkeypatch)
    assert findings["nvidia-fs.driver-tree"].verdict == NOT_APPLICABLE
    assert "only a proven transfer shows that they fit" in findings["nvidia-fs.driver-tree"].found
    assert findings["packages.dkms"].verdict == NOT_APPLICABLE
    assert findings["packages.dkms"].found.startswith("packages bring the modules")


def test_an_expectation_keeps_the_packages_files(root: PackagedRoot) -> None:
    expectation = replace(EXPECTED, packaged=root.files)
    assert from_json(expectation.to_json()) == expectation
