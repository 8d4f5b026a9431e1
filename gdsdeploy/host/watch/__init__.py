"""Which processes do I/O through cuFile now, and which way it takes; see docs/watch.md."""
