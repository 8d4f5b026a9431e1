"""A rollout for people: text, HTML page, timeline, progress in a terminal."""
