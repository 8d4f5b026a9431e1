"""Which kernel boots: GRUB, Boot Loader Specification, one-time boots, and the guard of the boot default."""
