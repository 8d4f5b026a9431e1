"""Files that others wrote, read within bounds; and files that verbs write."""
