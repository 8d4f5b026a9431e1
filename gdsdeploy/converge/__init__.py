"""From fleet file and lock to hosts: inventory, desired state, the difference to it, and the run of Ansible that removes it."""
