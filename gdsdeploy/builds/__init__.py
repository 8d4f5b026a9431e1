"""Kernel modules that are built once: who builds for whom, the cache of archives, the builders' keys."""
