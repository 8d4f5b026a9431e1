"""gdsdeploy: GPUDirect Storage as a managed feature of bare Linux hosts."""

__version__ = "0.1.0"
