"""Hosts of a fleet are alike: what has been read from a host's text needn't be read again from the next host's."""

from __future__ import annotations

from functools import lru_cache

#: For a pure function of texts whose result nobody changes.  It has the results for as many kinds of hosts.
once_for_alike = lru_cache(maxsize=256)
