"""Kernel modules that are built once: which machine builds for which, the cache of archives, the builders' keys."""
