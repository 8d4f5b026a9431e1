"""Everything that runs on a GPU host: standard library only, Python >= 3.9, packed into one zipapp.

It imports nothing of gdsdeploy outside this package, because outside it nothing is there.
"""
