"""Build nvidia-fs, nvidia-peermem and the driver for one kernel release, running or not, against one driver tree."""
