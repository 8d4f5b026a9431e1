"""Signed statements about locks, module archives and validations, and their verification without a network.

A statement is in-toto's (version 1) in a DSSE envelope, signed with Ed25519; docs/attest.md lists the fields.
"""
