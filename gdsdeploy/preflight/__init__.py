"""Preflights: build a stack for a kernel in a throwaway root, before any host reboots."""
