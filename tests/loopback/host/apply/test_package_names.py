from __future__ import annotations

from pathlib import Path

from gdsdeploy.host.apply.packages import state as database


def test_names_of_the_real_dpkg(tmp_path: Path) -> None:
    folder = tmp_path / "var/lib/dpkg"
    folder.mkdir(parents=True)
    entry = "Package: {}\nStatus: {} ok installed\nArchitecture: {}\nVersion: 1\nMaintainer: x\n"
    entry += "Multi-Arch: {}\nDescription: x\n"
    rows = [("dpkg", "install", "arm64"), ("gl", "hold", "arm64"), ("gl", "hold", "i386"), ("doc", "install", "all")]
    status = "\n".join(entry.format(*row, "foreign" if row[2] == "all" else "same") for row in rows)
    (folder / "status").write_text(status)
    listed = database.read_packages(str(tmp_path))
    assert sorted(package.name for package in listed) == ["doc", "dpkg", "gl", "gl:i386"]
    assert database.versions(["gl"], listed)["gl"] == {"version": "1", "held": True}
