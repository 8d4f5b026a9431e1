"""What each step of a rollout does to a host."""
