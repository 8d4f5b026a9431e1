"""Fleet files whose hosts a real ansible-inventory reads."""
