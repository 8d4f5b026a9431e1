"""Frozen types that the layers speak.  This package imports nothing else of gdsdeploy.

Intent (:mod:`.fleet`) is what a user asked for; the lock (:mod:`.lock`) is what was resolved for it, exactly.
What a host *is* lives with the code that runs there, in :mod:`gdsdeploy.host`.
"""
