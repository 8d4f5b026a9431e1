"""The installed libcufile: its error codes, its P2PDMA keys, its counters, and a probe that opens it."""
