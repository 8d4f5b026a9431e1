"""Files that others wrote, read within bounds."""
