"""Validation of a fleet: evidence from every host, judged on the controller; bundles, waivers, topology."""
