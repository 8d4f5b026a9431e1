"""The installed libcufile."""
