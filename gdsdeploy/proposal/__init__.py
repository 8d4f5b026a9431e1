"""A first fleet file, proposed from what hosts run: facts → observations → profiles → commented YAML.  Pure.

What the facts don't decide becomes a comment and a point to check, and never a value.
"""
