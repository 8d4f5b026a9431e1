"""Rolling a lock out over a fleet: the pure machine, the driver that performs it, and what it does to hosts."""
