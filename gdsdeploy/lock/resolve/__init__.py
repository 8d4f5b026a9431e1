"""Pins + candidates + rules → one target of the lock, or every reason why there is none.

Subjects are chosen in the order driver, kernel, nvidia-fs, libcufile, the newest admitted first: so the newest
driver within its pin wins, then the newest kernel that goes with it, and so on.  Pure: no network, no files.
"""

from __future__ import annotations

from gdsdeploy.lock.resolve.target import Resolution, resolve

__all__ = ["Resolution", "resolve"]
