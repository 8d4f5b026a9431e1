"""The verbs of the host program."""
