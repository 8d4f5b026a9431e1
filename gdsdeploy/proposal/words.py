"""Names of hosts and GPUs in short."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gdsdeploy.host.io.wording import first_few

#: Groups of names that a comment lists.
_MOST = 6
_NUMBER = re.compile(r"(.*?)([0-9]{1,9})([^0-9]*)")
#: The word of a model that tells it from others: H100 of ``NVIDIA H100 80GB HBM3``, A100 of ``NVIDIA A100-SXM4-80GB``.
_MODEL = re.compile(r"\b(GH200|GB[23]00|[ABHLPTV][0-9]{1,3}[SG]?|RTX [A0-9]+)\b")
#: Class of GPUs → their models, of the data centre and of workstations.
_CLASSES = {
    "grace-hopper": r"\bGH200\b",
    "blackwell": r"\b(GB200|GB300|B100|B200|B300)\b|\bBlackwell\b",
    "hopper": r"\b(H100|H200|H800|H20)\b",
    "ada": r"\b(L2|L4|L20|L40|L40S)\b|\bAda Generation\b",
    "ampere": r"\b(A2|A10|A10G|A16|A30|A40|A100|A800)\b|\bRTX A[0-9]+\b",
    "turing": r"\bT4G?\b|\bQuadro RTX\b",
    "volta": r"\bV100\b",
    "pascal": r"\b(P4|P40|P100)\b",
}


def ranges(names: Iterable[str]) -> str:
    """``gpu[1-3,5], login`` for gpu1, gpu2, gpu3, gpu5 and login: in their order, and not too many."""
    groups: dict[tuple[str, str, int], list[int]] = {}
    words: dict[str, None] = {}
    for name in names:
        match = _NUMBER.fullmatch(name)
        if match is None:
            words[name] = None
            continue
        begin, digits, end = match.groups()
        groups.setdefault((begin, end, len(digits) if digits.startswith("0") else 0), []).append(int(digits))
    for (begin, end, width), numbers in groups.items():
        spans = ",".join(_spans(sorted(set(numbers)), width))
        single = spans.isdecimal()
        words[f"{begin}{spans}{end}" if single else f"{begin}[{spans}]{end}"] = None
    return first_few(list(words), _MOST)


def _spans(numbers: Sequence[int], width: int) -> list[str]:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ["-".join(f"{number:0{width}d}" for number in dict.fromkeys((span[0], span[-1]))) for span in spans]


def gpu_class(models: Iterable[str]) -> str:
    """The class of all these GPUs; empty where a model isn't known here, or they differ."""
    classes = {next((name for name, pattern in _CLASSES.items() if re.search(pattern, model)), "") for model in models}
    return classes.pop() if len(classes) == 1 else ""


def short_model(models: Iterable[str]) -> str:
    """``h100`` for machines with H100s alone; empty where models differ or have no such word."""
    matches = [_MODEL.search(model) for model in models]
    short = {match[0].lower().replace(" ", "-") if match else "" for match in matches}
    return short.pop() if len(short) == 1 else ""
