"""Why I/O on a mount does not take the direct path: causes in order, each with its evidence, a fix and a reference.

Pure: facts in, an explanation out, which also feeds the check ``storage.path`` and fits cufile.json.
"""
