"""Bring a lab up and take it down."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from gdsdeploy import console, paths
from gdsdeploy.builds.cache import BuilderKeys
from gdsdeploy.cancel import Stop
from gdsdeploy.files import folders
from gdslab import (
    archive as archives,
    efi,
    elbase,
    emulator,
    families,
    fleet,
    guest,
    images,
    qemu,
    recipe,
    requirements,
    signing,
    ssh,
    standin,
    systems,
)
from gdslab.archive import Archive
from gdslab.errors import LabUnavailable
from gdslab.firmware import Firmware
from gdslab.host import LabHost
from gdslab.kit import kits
from gdslab.qemu import VmHost
from gdslab.recipe import Boot, Recipe
from gdslab.state import Lab, all_labs, cache_directory, labs_directory, port_in_use
from gdslab.systems import System

#: Seconds until a VM host has to answer; software emulation on a busy machine needs most of it.
VM_PATIENCE = 900.0
#: A kit's name → the recipe of hosts that it is for, and their own files.
_RECIPES = {"ubuntu": families.recipe, "el": elbase.recipe}
_SEEDS = {"ubuntu": families.seed_files, "el": elbase.seed_files}


def agree(question: str) -> bool:  # noqa: ARG001 - the shape of a confirmation
    """Agree to everything."""
    return True


def up(
    lab_name: str,
    vms: int | None = None,
    lights: int | None = None,
    release: str | None = None,
    *,
    os: str | None = None,
    nodes: int | None = None,
    preinstalled: tuple[tuple[str, str], ...] = (),
    firmware: Firmware | None = None,
    confirm: Callable[[str], bool] = agree,
    meanwhile: Callable[[Lab, Future[None]], None] | None = None,
) -> Lab:
    """Bring lab ``lab_name`` up with at least these numbers of hosts; all answer at the end.

    Missing hosts are made and stopped hosts started; running hosts stay as they are.
    nodes: number of light hosts to provision.  preinstalled: packages (name, version) in the image of new VM hosts;
    on Debian, an empty version is any.
    vms, lights, nodes: None: 1, 1 and 0 for Debian; 0, 0 and 1 for other systems.
    os: such as ``ubuntu-24.04``.  release: of Debian, such as ``trixie``.  Neither: the lab's own, or debian-13.
    firmware: what VM hosts boot by.  None: the lab's own, or BIOS.
    confirm: called before packages are installed here.
    meanwhile: called while hosts are made, once the lab has its fleet file; the future ends when light hosts answer.
    Raises LabUnavailable when this machine can't run the lab; the next run continues with what exists.
    """
    lab = Lab(lab_name)
    system = _system(lab, os, release)
    vms, lights, nodes = _counts(system, vms, lights, nodes)
    if vms and not system.vm:
        raise LabUnavailable(
            f"the lab has no VM hosts of {system.os}", hint="Leave --vm out; --node N makes light hosts"
        )
    firmware = _firmware(lab, firmware)
    also = (
        *(requirements.RPM if system.kit == "el" else ()),
        *(efi.requirements(firmware.tpm) if vms and firmware.uefi else ()),
    )
    requirements.ensure(vms=vms > 0, lights=lights + nodes > 0, kit=bool(system.kit), confirm=confirm, also=also)
    archive = archives.controller_archive()
    # Around all of it: work between the steps isn't silent either.
    with console.step(f"Bringing lab {lab_name} up"), lab.exclusive():
        if not lab.exists():
            lab.write({"os": system.os, "release": system.base.name, "hosts": []})
        record = firmware.record()
        lab.update(lambda value: value.update(firmware=record))
        lab.directory.chmod(0o700)
        ssh.make_key(lab.key, f"lab {lab_name}")
        if system.kit:
            _serve(lab, system, archive)
        makers: dict[str, Callable[[], object]] = {}
        for group, count in {"light": lights, "node": nodes, "vm": vms}.items():
            kind = "vm" if group == "vm" else "light"
            if lab.lacks(group, count) or _lacks_base(lab, kind):
                recipe = _recipe(lab, kind, archive, preinstalled if kind == "vm" else ())
                lab.add_hosts(group, count, images.path(cache_directory(), recipe))
                makers[kind] = partial(images.base, cache_directory(), recipe)
        fleet.write(lab, archive)
        stop = Stop()
        # QEMU and mmdebstrap do the work, so threads make both kinds of hosts in parallel.
        with ThreadPoolExecutor(max_workers=2) as pool:
            light, vm = (pool.submit(_raise, lab, kind, makers.get(kind), archive, stop) for kind in ("light", "vm"))
            try:
                if meanwhile is not None:
                    meanwhile(lab, light)
                light.result()
                vm.result()
            except BaseException:
                stop.request()
                raise
    return lab


def _system(lab: Lab, os: str | None, release: str | None) -> System:
    """The system of the lab's hosts; raises LabUnavailable if the lab has hosts of another one."""
    if os is None and release is None:
        return lab.system if lab.exists() else systems.find(systems.DEFAULT_OS)
    chosen = systems.find(os) if os is not None else systems.of_release(release or "")
    if release is not None and chosen != systems.of_release(release):
        raise LabUnavailable(f"--os {os} and --release {release} are different systems", hint="Use --os alone")
    if lab.exists() and lab.system != chosen:
        raise LabUnavailable(
            f"lab {lab.name} has {lab.system.os} hosts, not {chosen.os}",
            hint=f"Choose another name for the new lab, or run `gdsdeploy lab down --lab {lab.name}` first",
        )
    return chosen


def _firmware(lab: Lab, chosen: Firmware | None) -> Firmware:
    """The firmware of the lab's VM hosts; raises LabUnavailable if the lab has VM hosts with another one."""
    if not lab.exists():
        return chosen or Firmware()
    if chosen is None or chosen == lab.firmware:
        return lab.firmware
    if lab.group("vm"):
        keys = chosen.title == lab.firmware.title
        raise LabUnavailable(
            f"the VM hosts of lab {lab.name} boot by {lab.firmware.title}, "
            + ("with other Machine Owner Keys than the certificates of --mok" if keys else f"not {chosen.title}"),
            hint="Leave --firmware, --secure-boot and --mok out to start them, "
            f"or run `gdsdeploy lab down --lab {lab.name}` first",
        )
    return chosen


def _counts(system: System, vms: int | None, lights: int | None, nodes: int | None) -> tuple[int, int, int]:
    """Numbers of hosts, with defaults that suit the system."""
    defaults = (0, 0, 1) if system.kit else (1, 1, 0)
    chosen = tuple(
        default if count is None else count for count, default in zip((vms, lights, nodes), defaults, strict=True)
    )
    return chosen[0], chosen[1], chosen[2]


def _serve(lab: Lab, system: System, archive: Archive) -> None:
    """Make the system's repositories and start the lab's server for them."""
    if lab.server is None:
        lab.add_server(kits.make(cache_directory(), system, archive).folder)
    server = lab.server
    if server is not None:
        server.start(port_in_use(server.port))


def _recipe(lab: Lab, kind: str, archive: Archive, preinstalled: tuple[tuple[str, str], ...] = ()) -> Recipe:
    """What the base system of the lab's hosts of ``kind`` is made from."""
    server, system = lab.server, lab.system
    if server is None:
        words = ["=".join(filter(None, package)) for package in preinstalled]
        return recipe.debian(system.base, archive, kind, words)
    if kind == "light":
        return _RECIPES[system.kit](system, server.kit, archive, None)
    renamer = standin.build(*standin.debian_kernel(archive)) / standin.RENAMER
    return _RECIPES[system.kit](system, server.kit, archive, Boot(renamer, preinstalled))


def _lacks_base(lab: Lab, kind: str) -> bool:
    """Whether a host of ``kind`` was recorded, and its base system isn't there yet."""
    return any(host.kind == kind and not Path(host.record.base).exists() for host in lab.hosts())


def _raise(lab: Lab, kind: str, make: Callable[[], object] | None, archive: Archive, stop: Stop) -> None:
    """Make the base system of the hosts of ``kind``, if they need one, and start them."""
    with stop.scope():
        if make is not None:
            make()
        start_vms(lab, archive) if kind == "vm" else start(lab, kind, archive)


def start_vms(lab: Lab, archive: Archive) -> None:
    """Make and start the VM hosts that aren't running, in the way that this machine can; return when they answer."""
    cache = cache_directory()
    if stopped := _stopped_hosts(lab, "vm"):
        accelerator = qemu.accelerator(cache, Path(stopped[0].record.base).with_name("vmlinuz"))
        root = emulator.root(cache, archive) if accelerator == "tcg" else None
        lab.update(lambda value: value.update(accelerator=accelerator, emulator=root.as_posix() if root else None))
        if lab.firmware.uefi:
            _add_uefi(lab, archive)
    start(lab, "vm", archive)


def _add_uefi(lab: Lab, archive: Archive) -> None:
    """Record the UEFI firmware of the VM hosts, and the keys that theirs has."""
    root, key = efi.root(cache_directory(), archive), signing.module_key(cache_directory())
    server = lab.server
    parts = {
        "root": root.as_posix(),
        "moks": [key.certificate.read_bytes().hex()],
        "db": [server.kit.vendor_certificate.hex()] if server else [],
    }
    lab.update(lambda value: value.update(uefi=parts))


def _stopped_hosts(lab: Lab, kind: str) -> list[LabHost]:
    return [host for host in lab.hosts() if host.kind == kind and not host.running()]


def start(lab: Lab, kind: str, archive: Archive) -> None:
    """Make and start the hosts of ``kind`` that aren't running; return when they answer."""
    lab.write_access()
    stopped = _stopped_hosts(lab, kind)
    for host in stopped:
        if port_in_use(host.port):
            raise LabUnavailable(
                f"another program uses {host.name}'s port {host.port} on 127.0.0.1",
                hint=f"Stop that program, or make the lab again after `gdsdeploy lab down --lab {lab.name}`",
            )
        make(lab, host, archive)
        host.start()
    for host in stopped:
        with console.step(f"Starting {host.name} ({host.runtime})"):
            host.wait_ssh(VM_PATIENCE) if kind == "vm" else host.wait_ssh()


def make(lab: Lab, host: LabHost, archive: Archive) -> None:
    """Make the missing files of ``host``."""
    public = lab.key.with_name("id_ed25519.pub").read_text()
    key = lab.host_key(host.name)
    seed: dict[str, tuple[str | bytes, int]] = {}
    if (server := lab.server) is not None:
        archive = replace(archive, uri=server.uri, security_uri=None, proxy={})
        seed |= _SEEDS[lab.system.kit](lab.system, server)
    seed |= guest.seed_files(host.name, host.port, public, key, archive, host.kind)
    if isinstance(host, VmHost) and host.uefi:
        seed["etc/fstab"] = (guest.fstab(esp=True), 0o644)
    host.create(guest.tar(seed))


def down(lab: Lab) -> None:
    """Stop the lab's processes and delete the lab; caches stay.  Without such a lab, do nothing."""
    if not lab.directory.exists():
        return
    with lab.exclusive():
        if lab.exists():
            for host in lab.hosts():
                with console.step(f"Stopping {host.name}"):
                    host.stop()
            if (server := lab.server) is not None:
                server.stop()
        # A later lab of this name has another builder, with another key.
        folders.remove_tree(BuilderKeys.of(lab.fleet_path).folder, within=paths.state())
        folders.remove_tree(lab.directory, within=labs_directory())
    if not any(labs_directory().iterdir()):
        labs_directory().rmdir()


def purge() -> list[Path]:
    """Remove cached base systems, stand-ins and emulators; return those that a lab uses, which stay."""
    labs = all_labs()
    used = {Path(host.record.base) for lab in labs for host in lab.hosts()}
    used |= {server.folder for lab in labs if (server := lab.server)}
    used |= {Path(root) for lab in labs if (root := lab.read().get("emulator"))}
    used |= {Path(uefi["root"]) for lab in labs if (uefi := lab.read().get("uefi"))}
    if any(lab.firmware.secure_boot for lab in labs):
        used.add(signing.folder_of(cache_directory()))
    return images.purge(cache_directory(), used)
