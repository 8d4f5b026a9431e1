"""Hosts over SSH: endpoints, host keys, one round trip to many hosts, and the checked shape of their answers."""
