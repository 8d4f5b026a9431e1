"""When a build leaves debug information out.  tests/kmod shows that a real one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gdsdeploy.host.build.kbuild import without_debug_information
from gdsdeploy.host.kmod.kernel import Kernel
from tests.unit.host.kmod.kmod_root import Root


@pytest.mark.parametrize(
    ("file", "text", "left_out"),
    [
        (".config", "CONFIG_DEBUG_INFO=y\n", True),
        # pahole makes BTF of it.
        ("vmlinux", "", False),
        # Symbol versions are computed from it.
        (".config", "CONFIG_GENDWARFKSYMS=y\n", False),
        (".config", "# CONFIG_GENDWARFKSYMS is not set\n", True),
    ],
)
def test_debug_information_is_left_out_where_only_dkms_would_read_it(
    tmp_path: Path, file: str, text: str, left_out: bool
) -> None:
    root = Root(tmp_path)
    (tmp_path / f"usr/src/linux-headers-{root.release}" / file).write_text(text)
    settings = without_debug_information(Kernel(root.release, str(tmp_path)))
    assert settings == ({"KCFLAGS": "-g0"} if left_out else {})
