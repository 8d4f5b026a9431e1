"""The fleet file: reading it, and selecting its hosts."""
