"""Names in a fleet file that point nowhere, and settings of machines that their profiles exclude."""

from __future__ import annotations

from gdsdeploy.model.fleet import Fleet


def references(fleet: Fleet) -> list[tuple[tuple[str, ...], str]]:
    """What pydantic cannot see: names that point nowhere.  Returns (path of keys, message) pairs."""
    problems: list[tuple[tuple[str, ...], str]] = [
        *([] if fleet.hosts else [(("hosts",), "this key is required, with a host or more; or an inventory")]),
    ]
    problems += [
        ((section, name, "profile"), f"there is no profile {host.profile!r}")
        for section, hosts in (("hosts", fleet.hosts), ("builders", fleet.builders))
        for name, host in hosts.items()
        if host.profile not in fleet.profiles
    ]
    problems += [
        (("hosts", name), f"{name!r} is also a builder; a machine is one or the other")
        for name in fleet.hosts.keys() & fleet.builders.keys()
    ]
    problems += [
        (("builders", name, "modules"), "a builder builds; leave this key out")
        for name, host in fleet.builders.items()
        if host.modules not in (None, "build")
    ]
    problems += [
        ((section, name, "modules"), f"its profile {host.profile!r} takes its modules from packages")
        for section, hosts in (("hosts", fleet.hosts), ("builders", fleet.builders))
        for name, host in hosts.items()
        if host.profile in fleet.profiles
        and fleet.profiles[host.profile].modules == "packaged"
        and (host.modules is not None or section == "builders")
    ]
    problems += [
        (("inventory", "groups", group), f"there is no profile {profile!r}")
        for group, profile in (fleet.inventory.groups if fleet.inventory else {}).items()
        if profile not in fleet.profiles
    ]
    for name, profile in fleet.profiles.items():
        where = ("profiles", name, "builder")
        if profile.builder is None:
            if profile.builder_fallback:
                problems.append(((*where[:2], "builder_fallback"), "there is no builder to fall back from: name one"))
            continue
        builder = fleet.builders.get(profile.builder)
        if builder is None:
            problems.append((where, f"there is no builder {profile.builder!r}"))
        elif builder.profile != name:
            words = f"builder {profile.builder!r} has profile {builder.profile!r}; it can build for that only"
            problems.append((where, words))
    return problems
