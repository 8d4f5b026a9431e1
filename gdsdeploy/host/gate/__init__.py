"""The boot gate."""
