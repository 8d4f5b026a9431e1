"""Whether kernel modules would load, answered from files alone."""
