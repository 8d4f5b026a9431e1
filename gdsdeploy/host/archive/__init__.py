"""Archives of built kernel modules: packing, signing, verifying, installing."""
