"""One page for each subject: what is collected of it, what that yields, and what has to hold.

``register.py`` has what pages share.  See docs/guides/extend.md.
"""
