"""A configuration that CUFILE_ENV_PATH_JSON names.

Any user can name any file, and this program may be root.  So only what libcufile reads of a configuration is recorded:
the sections that it knows, of a regular file that is one.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any, Dict

from ..facts.cufile import parse_config, without_comments
from ..facts.environment import SECTIONS
from ..io.reading import whole
from ..rootdir import inside
from .recorder import Recorder

#: As of /etc/cufile.json.
LIMIT = 256 * 1024


def record(recorder: Recorder, path: str, root: str = "/") -> str:
    """Record the configuration ``path`` as seen inside ``root`` once; returns its key in the section ``configs``."""
    key = path if root == "/" else root + path
    if key not in recorder.document["configs"]:
        recorder.value("configs", key, lambda place: read(place if root == "/" else inside(root, path)))
    return key


def read(path: str) -> Dict[str, Any]:
    """``config``: the known sections; or ``broken``: why every libcufile refuses the file.

    Raises OSError, and ValueError for a file that may be refused or not.
    """
    # A device isn't opened: that alone can have an effect.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it isn't a regular file")
    text = whole(path, LIMIT).decode("utf-8", "replace")
    try:
        value = parse_config(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if _is_refused(text, error):
            return {"broken": f"it isn't JSON: {error}"}
        raise ValueError(f"it may not be JSON: {error}") from None
    if value is None or value in ({}, []):
        return {"config": {}}
    if not isinstance(value, dict):
        return {"broken": "it isn't a JSON object"}
    config = {name: value[name] for name in SECTIONS if value.get(name) is not None}
    wrong = [name for name, section in config.items() if not isinstance(section, dict)]
    return {"broken": f"its section {wrong[0]} isn't an object"} if wrong else {"config": config}


def _is_refused(text: str, error: ValueError) -> bool:
    """Whether libcufile refuses a text for the reason for which Python does.

    It does for an empty or unclosed text, for one that begins with neither brace nor bracket, and for a comma before a
    closing one.  Otherwise it may accept it: its parser takes some numbers that Python's doesn't.
    """
    plain = without_comments(text).lstrip()
    rest = plain[getattr(error, "pos", 0) :]
    return plain[:1] not in ("{", "[") or not rest.strip() or re.match(r"[\s,]*[}\]]", rest) is not None
