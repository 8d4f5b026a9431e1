"""Roots of images: which folders can be one, and how the host program runs in one."""
