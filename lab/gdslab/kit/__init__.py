"""Repository kits: Debian's packages under other vendors' names, relations and layout, in signed repositories."""
