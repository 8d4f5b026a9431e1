"""The installed libcufile, asked by itself."""
