"""Frozen types of fleet file, lock and rollout.  This package imports nothing else of gdsdeploy."""
