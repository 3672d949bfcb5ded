"""Signing what is staged, and making it visible: the timestamp last, so that devices see all of it or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from pluto_edge.errors import MissingExtraError
from pluto_edge.repository import index
from pluto_edge.repository.contents import Contents, live_modules, site_of
from pluto_edge.repository.layout import index_target
from pluto_edge.repository.roles import Missing

try:
    from securesystemslib.signer import Signer
    from tuf.api.metadata import Root, Snapshot, Timestamp
except ImportError as cause:
    raise MissingExtraError("tuf", "repo") from cause

__all__ = ["Published", "publish"]


@dataclass(frozen=True)
class Published:
    """What a publication did: versions of the roles that are new, and the roles that wait for more signatures."""

    versions: dict[str, int]
    waiting: tuple[Missing, ...] = ()


def publish(contents: Contents, signers: Sequence[Signer]) -> Published:
    """Sign what is staged with these keys; what has signatures enough becomes visible."""
    roles = contents.roles
    roles.forget_published()
    versions: dict[str, int] = {}
    waiting: list[Missing] = []
    if Root.type in roles.staged_roles():
        missing = roles.sign(Root.type, signers)
        if missing is None:
            roles.publish_staged(Root.type)
            roles.clear(Root.type)
            versions[Root.type] = roles.root().version
        else:
            waiting.append(missing)
    _stage_what_is_due(contents)
    signed = []
    for role in [r for r in roles.staged_roles() if r != Root.type]:
        _build_index(contents, role)
        missing = roles.sign(role, signers)
        if missing is None:
            signed.append(role)
        else:
            waiting.append(missing)
    if roles.newest_file(Root.type) and (
        signed or roles.snapshot() is not None
    ):  # else nobody can trust anything yet
        lacking = [m for r in (Snapshot.type, Timestamp.type) if (m := roles.lacking(r, signers))]
        waiting += lacking
        if not lacking:
            versions |= _make_visible(contents, signed, signers)
    return Published(versions, tuple(waiting))


def _stage_what_is_due(contents: Contents) -> None:
    """Targets whose keys were changed, or half of whose time is over: the same content, to be signed anew."""
    roles = contents.roles
    for role in roles.published_targets():
        own = roles.targets(role)
        if own is None or role in roles.staged_roles():
            continue
        if roles.due(own, role) or not roles.is_signed(role):
            roles.renew_targets(role)


def _build_index(contents: Contents, role: str) -> None:
    """The index of a role's modules as they will be, unless somebody has signed it already."""
    site = site_of(role)
    target = index_target(site)
    targets = contents.roles.next_targets(role)
    if contents.roles.staged_signatures(role) or not (live_modules(targets, site) or target in targets.targets):
        return
    with contents.index_entries(site) as entries:
        data = index.build(entries)
    with contents.roles.edit_targets(role) as targets:
        contents.put(targets, target, data)


def _make_visible(contents: Contents, signed: Sequence[str], signers: Sequence[Signer]) -> dict[str, int]:
    """Files first that nothing refers to yet, then the snapshot, then the timestamp; then nothing is staged."""
    roles = contents.roles
    versions = {role: roles.publish_staged(role) for role in signed}
    before = roles.timestamp()
    snapshot = roles.publish_snapshot(versions, signers)
    if snapshot is not None:
        versions[Snapshot.type] = snapshot
    current = snapshot or (before.snapshot_meta.version if before else 0)
    versions[Timestamp.type] = roles.publish_timestamp(signers, current)
    for role in signed:
        roles.clear(role)
    return versions
