"""The installed libcufile: its error codes, and a probe that opens it."""
