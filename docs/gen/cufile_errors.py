"""The page of error codes."""

from __future__ import annotations

from gdsdeploy.host.libcufile.errors import CUDA, CUFILE, ERRNO, RDMA, ErrorCode, entries, number

HEAD = """\
# Error codes of cuFile

`gdsdeploy explain --error 5027` prints one entry. It accepts a number (`5027`, `-5027`, `27`, `-22`, `cuda:100`) or a
name (`CU_FILE_HANDLE_NOT_REGISTERED`, `EINVAL`).

cuFile calls return a `CUfileError_t`. Its `err` is 0 or 5000 + n. If `err` is 5011, `cu_err` holds CUDA's own code.
Reads and writes return a number of bytes or a negative code: -5000 - n, or -1 with `errno` set.

Check the causes in the order of the table. *Seen* names the runs that returned the code. The causes of the other codes
come from the messages in the libraries and from NVIDIA's documentation.
"""
TITLES = {
    CUFILE: "Codes of cuFile",
    RDMA: "Codes of cuFile's RDMA",
    CUDA: "Codes of CUDA that cuFile passes on in `cu_err`",
    ERRNO: "Codes of the operating system",
}


def page() -> str:
    """Markdown: a section for each family, a heading for each code."""
    parts = [HEAD]
    for family, title in TITLES.items():
        parts.append(f"\n## {title}\n")
        parts += [_section(entry) for entry in entries() if entry.family == family]
    return "".join(parts)


def _section(entry: ErrorCode) -> str:
    lines = [f"\n### {number(entry)} `{entry.name}`\n", f"\n{_sentence(entry.meaning)}.\n"]
    releases = f"libcufile {entry.releases}."
    lines.append("\n{}{}\n".format(releases, f" *Seen:* {_escaped(entry.seen)}." if entry.seen else ""))
    lines.append("\n| cause | evidence | fix |\n| --- | --- | --- |\n")
    lines += [
        "| {} |\n".format(" | ".join(_escaped(cell) for cell in (cause.what, cause.evidence, cause.fix)))
        for cause in entry.causes
    ]
    return "".join(lines)


def _sentence(words: str) -> str:
    return _escaped(words[:1].upper() + words[1:])


def _escaped(words: str) -> str:
    return words.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
