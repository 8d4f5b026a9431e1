"""Lists that a repository signed and nobody can use: each is refused as unusable, or read without the damage."""

from __future__ import annotations

import re

import pytest

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.repo.rpm import Modules
from tests.fuzz import repositories

DIGITS = "9" * 5000


def test_a_count_of_packages_with_thousands_of_digits() -> None:
    text = repositories.PRIMARY.replace(b'packages="1"', f'packages="{DIGITS}"'.encode())
    with pytest.raises(RepositoryUnusable, match=re.escape("https://r.example/p: not a primary list")):
        repositories.primary(text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (" 1234 ", f" {DIGITS} ", "not a number of bytes"),
        (" 1234 ", " ² ", "not a number of bytes"),
        (" 1234 ", " -1 ", "not a number of bytes"),
        (" 1234 ", " 99999999999 ", "more than the 10000000000"),
        ("0" * 64, "../../../../../../tmp/x", "not a sha256"),
        ("main/binary-amd64", "../../binary-amd64", "not a path inside the repository"),
        ("main/binary-amd64", "/main/binary-amd64", "not a path inside the repository"),
    ],
)
def test_a_file_of_a_release_that_is_none(old: str, new: str, words: str) -> None:
    text = repositories.RELEASE.decode().replace(old, new).encode()
    with pytest.raises(RepositoryUnusable, match=rf"^https://r\.example/dists/trixie/InRelease: line 9: .*{words}"):
        repositories.release(text)


@pytest.mark.parametrize(
    "document",
    [
        "{document: modulemd-defaults, data: {module: m, stream: {a: b}}}",
        "{document: modulemd-defaults, data: {module: [m], stream: s}}",
        "{document: modulemd, data: {name: m, stream: []}}",
        "{document: modulemd, data: {name: {}, stream: s}}",
        "{document: modulemd, data: {name: m, stream: s, artifacts: {rpms: [[]]}}}",
    ],
)
def test_a_module_whose_names_have_parts(document: str) -> None:
    with pytest.raises(RepositoryUnusable, match="not module metadata"):
        Modules().add(document.encode(), "https://r.example/modules.yaml")


def test_a_stream_without_quotes_is_text() -> None:
    modules = Modules()
    modules.add(b"{document: modulemd-defaults, data: {module: m, stream: 550}}", "https://r.example/modules.yaml")
    assert modules.defaults == {"m": "550"}
