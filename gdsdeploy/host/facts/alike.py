"""Hosts of a fleet are alike: a text that one host had needs no second reading where the next one has the same."""

from __future__ import annotations

from functools import lru_cache

#: For pure functions of texts; nothing may change their results.  A fleet has fewer kinds of hosts than this.
once_for_alike = lru_cache(maxsize=256)
