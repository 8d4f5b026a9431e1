"""Signatures of kernel modules, keys that sign them, and keys that a kernel trusts."""
