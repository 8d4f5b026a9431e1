"""The fleet file: reading it, selecting its hosts, masking it for others."""
