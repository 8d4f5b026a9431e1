"""A local signed repository with exactly a lock's files, and how hosts are told to use it."""
