"""What a host should be, resource by resource: observe it, say what would change, change it, take it back.

``gdsdeploy-host.pyz apply`` is the one implementation.  The plan, the roles, a rollout and ``remove`` all run it.  A
resource is one file in this package: a :class:`~.model.Resource` with a typed desired state.  See ``registry.py``.
"""
