"""The host program as one file, and how it starts on a host."""
