"""Package repositories of a host, which the evidence has only where they are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gdsdeploy.host.evidence import packages
from gdsdeploy.host.evidence.recorder import EvidenceRequest, Recorder

FILES = {
    "etc/os-release": 'VERSION_ID="9.5"\n',
    "etc/apt/sources.list": "deb [arch=amd64 signed-by=/keys/a.gpg] http://a.example x main\n",
    "etc/apt/sources.list.d/b.sources": "Types: deb\nSigned-By: /keys/b.asc\n",
    "etc/apt/sources.list.d/c.list.save": "deb [signed-by=/keys/c.gpg] http://c.example x main\n",
    "etc/yum.repos.d/d.repo": "[d]\ngpgkey=file:///keys/d-$releasever https://e.example/e, file:///keys/e\n",
    "etc/dnf/vars/site": "mirror\n",
    "keys/a.gpg": "a", "keys/b.asc": "b", "keys/c.gpg": "c", "keys/d-9": "d",
    "root/secret": "s",
}  # fmt: skip


def collected(root: Path, request: EvidenceRequest) -> dict[str, Any]:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    recorder = Recorder(root=str(root))
    packages.collect_sources(recorder, request)
    return recorder.finish()


def test_sources_and_the_keys_that_they_name(tmp_path: Path) -> None:
    document = collected(tmp_path, EvidenceRequest(sources=True))
    texts = {path for path, text in document["files"].items() if isinstance(text, str)}
    assert texts == {f"/{name}" for name in FILES if name.startswith("etc/") and not name.endswith(".save")}
    keys = {path: bytes.fromhex(text) for path, text in document["binaries"].items() if isinstance(text, str)}
    assert keys == {"/keys/a.gpg": b"a", "/keys/b.asc": b"b", "/keys/d-9": b"d"}


def test_nothing_unless_it_is_asked_for(tmp_path: Path) -> None:
    document = collected(tmp_path, EvidenceRequest())
    assert document["files"] == document["binaries"] == {}
