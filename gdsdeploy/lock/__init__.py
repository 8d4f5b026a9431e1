"""The lock: its file, how it is resolved from repositories, compatibility rules, and earlier releases."""
