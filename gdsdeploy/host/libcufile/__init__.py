"""The installed libcufile: its error codes, its P2PDMA keys, and a probe that opens it."""
