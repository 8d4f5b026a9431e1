"""The key ``inventory`` of the fleet file."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from gdsdeploy.model.text import Model, Name, matching


class InventorySource(Model):
    """An Ansible inventory that the hosts come from."""

    #: file or folder, relative to the fleet file
    file: Annotated[str, matching(r"^[^,\x00-\x1f\x7f]+$", "write the name of a file, in one line and without commas")]
    #: group of the inventory → profile of its hosts
    groups: dict[Annotated[str, StringConstraints(min_length=1)], Name] = Field(min_length=1)
