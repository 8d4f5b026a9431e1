"""cufile.json: what each libcufile release reads, and the file that a profile asks for."""
