"""The lock: its file, its resolution from repositories, compatibility rules, releases that hosts were provisioned with."""
