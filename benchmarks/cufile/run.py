"""Check of 1,000 cufile.json, and the real libraries with the same files.

The files are made from a seed: rendered ones, and such with one value changed, which the library takes or refuses.
Prints one JSON object.  ``check`` judges without a library, in one process; ``library`` opens them with the real one
of each release, which is fetched once (NVIDIA's wheels and Debian's archive) and kept in the user's cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

from gdsdeploy import console
from gdsdeploy.cufile.check import check
from gdsdeploy.cufile.model import keys, release_of
from gdsdeploy.cufile.render import render
from gdsdeploy.model.fleet import Profile

# The libraries are fetched as the tests fetch them.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.cufile import libraries
from tests.cufile.effective import effective

#: Where rendered files have their log, which the library wants to be there.
FOLDERS = ("/var/log/cufile",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--libcufile", nargs="*", default=["1.4.0.31", "1.9.1.3", "1.15.1.6", "1.20.0.107"], choices=libraries.SOURCES
    )
    options = parser.parse_args()
    results = {version: measure(version, files(version, options.files, options.seed)) for version in options.libcufile}
    console.data(json.dumps({"files": options.files, "cpus": len(os.sched_getaffinity(0)), **results}, indent=2))


def files(version: str, count: int, seed: int) -> dict[str, bytes]:
    """Name → content, half of them with one whole number replaced."""
    chance = random.Random(seed)  # noqa: S311 - the same files each time
    numbers = [name.split(".") for name, key in keys(release_of(version)).items() if key.type == "uint"]
    documents: dict[str, bytes] = {}
    for number in range(count):
        sections: dict[str, dict[str, int]] = {}
        section, *_, last = chance.choice([name for name in numbers if len(name) == 2])
        if number % 2:
            sections = {section: {last: chance.choice([0, 1, 3, 64, 100, 1024, 65536])}}
        text = render("gds", Profile.model_validate({"os": "debian-13"}), version)
        document = json.loads("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//")))
        for name, values in sections.items():
            document.setdefault(name, {}).update(values)
        documents[f"{number}.json"] = json.dumps(document, indent=4).encode() + text.encode()
    return documents


def measure(version: str, documents: dict[str, bytes]) -> dict[str, object]:
    """Seconds of check and of the library over all of ``documents``, and what of it passed inside the library."""
    release, jobs = release_of(version), len(os.sched_getaffinity(0))
    begin = time.perf_counter()
    accepted = [check(content, release).accepted for content in documents.values()]
    checked = time.perf_counter() - begin
    library = libraries.library(version)
    begin = time.perf_counter()
    answers = [result.answer for result in effective(library, documents, folders=FOLDERS)]
    seconds = time.perf_counter() - begin
    inside = sum(answer.inside or 0.0 for answer in answers)
    agreed = sum(ours == answer.accepted for ours, answer in zip(accepted, answers, strict=True))
    return {
        "check": {"seconds": round(checked, 3), "ms_per_file": round(checked / len(documents) * 1000, 3)},
        "library": {
            "seconds": round(seconds, 3),
            "ms_per_file": round(seconds / len(documents) * 1000, 3),
            "inside_seconds": round(inside, 3),
            # Children run side by side, so that their seconds add up to more than those that passed.
            "inside_share": round(inside / (seconds * jobs), 3),
        },
        "accepted": sum(bool(answer.accepted) for answer in answers),
        "agreed": agreed,
    }


if __name__ == "__main__":
    main()
