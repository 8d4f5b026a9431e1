"""A rollout for people: text, HTML page, progress in a terminal."""
