from __future__ import annotations

import os

from gdsdeploy.host.rootdir import read_text


def test_files_that_refuse_to_be_read_at_once_are_read() -> None:
    assert read_text("/", "/proc/sys/kernel/osrelease").strip() == os.uname().release
