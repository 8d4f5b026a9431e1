"""Which path I/O really takes."""
