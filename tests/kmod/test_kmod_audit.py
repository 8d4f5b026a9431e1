"""Modules of Debian's own kernels: as they are, and changed so that their kernel refuses them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.kmod.files import open_plain
from gdsdeploy.host.kmod.kernel import Kernel, releases

pytestmark = pytest.mark.kbuild


@pytest.mark.parametrize("base", ["kbuild_base", "bookworm_base"])
def test_the_kernels_own_modules_are_right(base: str, request: pytest.FixtureRequest) -> None:
    root: Path = request.getfixturevalue(base)
    count = 0
    for release in releases(str(root)):
        kernel = Kernel(release, str(root))
        files = [kernel.path(file) for files in kernel.by_name.values() for file in files]
        for result in audit(kernel, files):
            # Few of the kernels' modules are in these roots.
            found = [finding for finding in result["findings"] if finding["id"] != "dependency-missing"]
            assert found == [], result["module"]
            count += 1
    assert count > 50


def without_namespace(section: bytes) -> bytes:
    assert b"import_ns=" in section
    return section.replace(b"import_ns=", b"importXns=")


CHANGES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "symbol-namespace": (".modinfo", without_namespace),
    "module-size": (".gnu.linkonce.this_module", lambda section: section + bytes(64)),
}


@pytest.mark.parametrize("ident", CHANGES)
def test_a_changed_module_is_refused(kbuild_base: Path, tmp_path: Path, ident: str) -> None:
    kernel = Kernel(releases(str(kbuild_base))[0], str(kbuild_base))
    choice = kernel.choose("ib_uverbs")
    assert choice is not None
    file, part = tmp_path / "ib_uverbs.ko", tmp_path / "section"
    with open_plain(kernel.path(choice.file)) as source:
        file.write_bytes(source.read())
    assert audit(kernel, [str(file)])[0]["ok"] is True
    section, change = CHANGES[ident]
    subprocess.run(["objcopy", "--dump-section", f"{section}={part}", file], check=True)
    part.write_bytes(change(part.read_bytes()))
    subprocess.run(["objcopy", "--update-section", f"{section}={part}", file], check=True, capture_output=True)
    (result,) = audit(Kernel(kernel.release, str(kbuild_base)), [str(file)])
    errors = [finding["id"] for finding in result["findings"] if finding["outcome"] == "error"]
    assert errors == [ident]
