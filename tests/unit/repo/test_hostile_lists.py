"""Lists that a repository signed and nobody can use: each is refused as unusable, or read without the damage."""

from __future__ import annotations

import re

import pytest

from gdsdeploy.errors import RepositoryUnusable
from gdsdeploy.repo import apt
from gdsdeploy.repo.rpm import Modules
from tests.fuzz import repositories

DIGITS = "9" * 5000


def test_a_count_of_packages_with_thousands_of_digits() -> None:
    text = repositories.PRIMARY.replace(b'packages="1"', f'packages="{DIGITS}"'.encode())
    with pytest.raises(RepositoryUnusable, match=re.escape("https://r.example/p: not a primary list")):
        repositories.primary(text)


@pytest.mark.parametrize("size", [DIGITS, "²", "-1"])
def test_a_file_of_a_release_whose_size_is_no_number_of_bytes(size: str) -> None:
    text = f"Suite: stable\nSHA256:\n {'0' * 64} {size} main/a\n {'1' * 64} 12 main/b\n"
    assert apt.parse_release(text) == ({"suite": "stable", "sha256": ""}, {"main/b": ("1" * 64, 12)})


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
