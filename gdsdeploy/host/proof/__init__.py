"""Proves which path I/O takes."""
