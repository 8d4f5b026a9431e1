"""Files, archives and texts of others, read and written safely."""
