"""Kernel modules as files: read them, audit them against a kernel, build nvidia-fs, pack and install what passed."""
