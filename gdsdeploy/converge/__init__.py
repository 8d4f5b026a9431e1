"""Bring hosts to their desired state: inventory, desired state, the difference to it, and the run of Ansible."""
