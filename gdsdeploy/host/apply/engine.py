"""Applies a document of desired state, resource by resource, and reports the changes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from .. import derived
from ..errors import ApplyError, CannotTellError, DesiredError, HostError
from ..model import schema
from . import files, labels, registry
from .host import ManagedHost
from .model import Change, Refusal, Resource, io_error

VERSION = 1


class DesiredResource(NamedTuple):
    """One resource of a document, its desired state already typed."""

    #: ``RESOURCE`` or ``RESOURCE.INSTANCE``
    name: str
    resource: Resource[Any]
    desired: Any


@dataclass
class Result:
    """What happened, or would happen, to one resource."""

    name: str
    changes: List[Change] = field(default_factory=list)
    refusals: List[Refusal] = field(default_factory=list)
    #: what couldn't be read; such a resource is never one without a change
    unknown: List[str] = field(default_factory=list)
    report: Mapping[str, Any] = field(default_factory=dict)
    #: path → text before and after, only where it was asked for
    diffs: List[Dict[str, str]] = field(default_factory=list)

    def to_json(self) -> Dict[str, Any]:
        """The result as a JSON object."""
        return asdict(self)


def read_resources(document: Any, only: Sequence[str] = ()) -> List[DesiredResource]:
    """The resources of ``document``, in its order; ``only``: names to keep, of resources or instances.

    Raises DesiredError that names the place of a mistake.
    """
    if not isinstance(document, Mapping):
        raise DesiredError("the desired state is not a JSON object")
    version = document.get("version")
    if version != VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > VERSION
        hint = "update gdsdeploy-host.pyz on this host" if newer else "render it with this version of gdsdeploy"
        raise DesiredError(f"the desired state has version {version!r}; this program reads {VERSION}", hint)
    listed = document.get("resources")
    if not isinstance(listed, list):
        raise DesiredError("the desired state has no list of resources")
    resources = [_read_resource(number, value) for number, value in enumerate(listed)]
    return _select(resources, only)


def _read_resource(number: int, value: Any) -> DesiredResource:
    place = f"resources[{number}]"
    if not isinstance(value, Mapping) or set(value) - {"resource", "instance", "desired"}:
        raise DesiredError(f"{place}: an object with resource, instance and desired is needed")
    name, instance = value.get("resource"), value.get("instance", "")
    if not isinstance(name, str) or not isinstance(instance, str):
        raise DesiredError(f"{place}.resource: a string is needed")
    resource = registry.resource(name)
    desired = schema.load(resource.desired_type, value.get("desired", {}), f"{place}.desired")
    return DesiredResource(f"{name}.{instance}" if instance else name, resource, desired)


def _select(resources: List[DesiredResource], only: Sequence[str]) -> List[DesiredResource]:
    names = {resource.name for resource in resources} | {resource.resource.name for resource in resources}
    missing = [name for name in only if name not in names]
    if missing:
        raise DesiredError(f"{missing[0]}: not in this desired state; it has: {', '.join(sorted(names))}")
    return [resource for resource in resources if not only or resource.name in only or resource.resource.name in only]


def run(
    host: ManagedHost,
    targets: Sequence[DesiredResource],
    *,
    diff: bool = False,
    done: Callable[[Result], None] = lambda _: None,
    known: Optional[List[Any]] = None,
) -> List[Result]:
    """Apply ``targets`` in order, or with ``host.check`` say what would change.

    done: called after each resource.  known: checks of other variants on the same host, to which these are added.
    Raises ApplyError at the first resource that fails, which is unchanged or
    continues in a second run; refusals of any resource come before the first change.
    """
    results: List[Result] = []
    pending: List[Change] = []
    known = [] if known is None else known
    # Another variant may have been checked on the same host.
    host.judged = set()
    if not host.check and len(targets) > 1:
        _refuse([refusal for target in targets for refusal in _refusals(host, target)])
    with labels.restore_after(host):
        for target in targets:
            result = _check_once(host, target, pending, known) if host.check else _apply(host, target, diff=diff)
            if diff and host.check:
                result.diffs = _diffs(host, target, result.changes)
            pending += result.changes
            results.append(result)
            done(result)
    return results


def _check_once(host: ManagedHost, target: DesiredResource, pending: Sequence[Change], known: List[Any]) -> Result:
    """What was found of the same desired state after the same changes, or what a check finds."""
    question = (target.name, target.desired, list(pending), set(host.judged))
    result: Result
    for asked, result, judged in known:
        if asked == question:
            host.judged = set(judged)
            return result
    result = _check(host, target, pending)
    known.append((question, result, set(host.judged)))
    return result


def _check(host: ManagedHost, target: DesiredResource, pending: Sequence[Change]) -> Result:
    result = Result(target.name)
    host.pending = tuple(pending)
    try:
        observed = target.resource.observe(host, target.desired)
        # First, since what can't be told of the changes may not matter to who reads it.
        result.report = target.resource.report(target.desired, observed)
        result.refusals = target.resource.refusals(target.desired, observed)
        # Several resources may want the same folder; the first one makes it.
        earlier = {(change.kind, change.subject, change.after) for change in pending}
        changes = target.resource.changes(target.desired, observed, pending)
        result.changes = _with_resource(target, [c for c in changes if (c.kind, c.subject, c.after) not in earlier])
    except CannotTellError as error:
        result.unknown.append(str(error))
    except HostError as error:
        result.unknown.append(error.message)
    return result


def _apply(host: ManagedHost, target: DesiredResource, *, diff: bool) -> Result:
    result = Result(target.name)
    try:
        with host.changing():
            observed = target.resource.observe(host, target.desired)
            _refuse(target.resource.refusals(target.desired, observed))
            changes = _with_resource(target, target.resource.changes(target.desired, observed))
            if diff:
                result.diffs = _diffs(host, target, changes)
            things = target.resource.derives(host, target.desired) if changes else ()
            with derived.remaking(things, host.root):
                for change in changes:
                    target.resource.apply(host, target.desired, change)
                    result.changes.append(change)
                target.resource.settle(host, target.desired, result.changes)
            result.report = target.resource.report(target.desired, observed)
    except CannotTellError as error:
        raise ApplyError(f"{target.name}: {error}", error.hint, error.kind) from None
    except OSError as error:
        raise io_error(str(error.filename or target.name), error) from None
    return result


def _refusals(host: ManagedHost, target: DesiredResource) -> List[Refusal]:
    try:
        return target.resource.refusals(target.desired, target.resource.observe(host, target.desired))
    except (CannotTellError, HostError):
        # An earlier resource may bring what is missing; otherwise this one says so in its turn.
        return []


def _refuse(refusals: Sequence[Refusal]) -> None:
    if refusals:
        raise ApplyError("; ".join(entry.message for entry in refusals), refusals[0].hint, "refused")


def _with_resource(target: DesiredResource, changes: Sequence[Change]) -> List[Change]:
    return [replace(change, resource=target.name) for change in changes]


def _diffs(host: ManagedHost, target: DesiredResource, changes: Sequence[Change]) -> List[Dict[str, str]]:
    """Texts of files before and after, for those that resources show; what isn't text is left out."""
    shown: Optional[Callable[[Any], List[files.File]]] = getattr(target.resource, "desired_files", None)
    by_path = {file.path: file for file in shown(target.desired)} if shown is not None and changes else {}
    diffs = []
    for change in changes:
        file = by_path.get(change.subject)
        if file is None or file.kind == files.FOLDER or b"\0" in file.content:
            continue
        entry = host.entry(change.subject)
        before = host.text(change.subject) if entry is not None and entry.kind == files.FILE else ""
        diffs.append({"path": change.subject, "before": before, "after": file.content.decode("utf-8", "replace")})
    return diffs
