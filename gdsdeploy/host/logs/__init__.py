"""Pasted logs of any kind: what each part is, what it shows together with the others, and the causes in order."""
