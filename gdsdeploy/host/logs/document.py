"""An answer as a JSON object."""

from __future__ import annotations

from typing import Any, Dict

from .answer import Answer, CauseFound, Quote

VERSION = 1


def document(answer: Answer) -> Dict[str, Any]:
    """``{"version", "path", "causes", "decide", "harmless", "notes", "unknown", "setting", "parts", "remarks"}``."""
    return {
        "version": VERSION,
        "path": answer.path,
        "causes": [_cause(cause) for cause in answer.causes],
        "decide": answer.decide or None,
        "harmless": [_quote(quote) for quote in answer.harmless],
        "notes": [_quote(quote) for quote in answer.notes],
        "unknown": [_quote(quote) for quote in answer.unknown],
        "setting": {
            subject: [{"value": value, "line": line.place, "text": line.text} for value, line in values.items()]
            for subject, values in answer.setting.shown.items()
        },
        "parts": [
            {"kind": part.kind, "file": part.file, "first": part.lines[0].number, "lines": len(part.lines)}
            for part in answer.parts
        ],
        "remarks": list(answer.remarks),
    }


def _cause(cause: CauseFound) -> Dict[str, Any]:
    return {
        "id": cause.id,
        "title": cause.title,
        "certainty": cause.certainty,
        "lines": [_quote(quote) for quote in cause.quotes],
        "fix": cause.fix,
        "reference": cause.reference,
        "decide": cause.decide or None,
        "path": cause.path or None,
    }


def _quote(quote: Quote) -> Dict[str, Any]:
    return {
        "file": quote.line.file,
        "line": quote.line.number,
        "text": quote.line.text,
        "means": quote.means or None,
        "count": quote.count,
    }
