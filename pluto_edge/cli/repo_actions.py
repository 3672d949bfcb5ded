"""What the actions of `pluto repo` do."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pluto_edge import _text
from pluto_edge.cli.parsing import check_vacant, needs, print_json
from pluto_edge.cli.transfers import shown_bytes
from pluto_edge.errors import ConfigError, RepositoryError
from pluto_edge.manifest import MANIFEST, FileEntry
from pluto_edge.store import Store

with needs("repo"):
    from pluto_edge.repository import keys
    from pluto_edge.repository.layout import DEFAULT_CHANNEL
    from pluto_edge.repository.publisher import Published, Publisher
    from pluto_edge.repository.roles import TOP


def init(options: argparse.Namespace) -> int:
    thresholds = _numbers(options.threshold)
    days = _numbers(options.days)
    if options.keys.resolve().is_relative_to(options.repository.resolve()):
        raise ConfigError(f"{options.keys}: private keys do not belong into the repository; give another folder")
    public = {}
    for role in TOP:
        count = thresholds.get(role, 1)
        names = [role] if count == 1 else [f"{role}-{number}" for number in range(1, count + 1)]
        public[role] = [keys.new_key(options.keys / f"{name}.pem") for name in names]
    repository = Publisher.create(options.repository, public, thresholds=thresholds, days=days)
    _say(repository.publish(keys.load_signers([options.keys])))
    root = options.repository / "metadata" / "1.root.json"
    print(f"{_text.tick(True)} {options.repository}: keys are in {options.keys}; devices are given {root}")
    return 0


def make_keys(options: argparse.Namespace) -> int:
    for file in options.names:
        if options.model:
            keys.new_model_key(file)
        else:
            keys.new_key(file)
        print(f"{file}: private, and {keys.public_file(file)}: public")
    return 0


def add(options: argparse.Namespace) -> int:
    repository = Publisher(options.repository)
    if (options.path / MANIFEST).is_file():
        _add_bundle(repository, options)
        return 0
    if options.name or options.version or options.channel or options.sign_with:
        raise ConfigError(f"{options.path}: not a bundle; names, versions, channels and signatures are for bundles")
    folders = [options.path]
    if (options.path / "store.json").is_file():
        folders = [options.path / "modules" / name for name in Store(options.path).names]
    for folder in folders:
        module = repository.add_module(folder, site=options.site)
        print(f"module {module.name} is staged; next: pluto repo publish {options.repository} --keys KEYS")
    return 0


def _add_bundle(repository: Publisher, options: argparse.Namespace) -> None:
    if not options.name or not options.version:
        raise ConfigError(f"{options.path}: give the bundle a name and a version: --name meter --version 1.0")
    if options.site:
        raise ConfigError(f"--site {options.site}: sites publish modules; bundles are the repository's own")
    _check_that_it_predicts(options.path)
    channels = options.channel or [DEFAULT_CHANNEL]
    with TemporaryDirectory(prefix="pluto-edge-") as scratch:
        signature = None
        if options.sign_with is not None:
            from pluto_edge.repository.model_signature import sign_bundle

            signature = Path(scratch) / "model.sig"
            sign_bundle(options.path, options.sign_with, signature)
        release = repository.add_bundle(
            options.path, options.name, options.version, channels=channels, notes=options.notes, signature=signature
        )
    total = _text.size(sum(entry.size for entry in release.blobs))
    print(f"{release.bundle}@{release.version} ({total}) is staged for {', '.join(channels)}")
    print(f"next: pluto repo publish {options.repository} --keys KEYS")


def _check_that_it_predicts(path: Path) -> None:
    """The graphs open, and say something finite of a grey image."""
    import numpy as np

    from pluto_edge.runtime.runtime import Runtime

    with Runtime(path, providers="cpu", plan=None) as runtime:
        height, width = runtime.manifest.preprocessing.size
        prediction = runtime.predict(np.full((height, width, 3), 127, np.uint8))
        if not np.isfinite(prediction.probabilities).all():
            raise RepositoryError(f"{path}: its predictions are not finite; it is not added")


def point(options: argparse.Namespace) -> int:
    name, version = _release(options.release)
    Publisher(options.repository).point(name, options.channel, version)
    print(f"{name}@{options.channel} is {version} after the next publication")
    return 0


def revoke(options: argparse.Namespace) -> int:
    repository = Publisher(options.repository)
    if "@" in options.what:
        name, version = _release(options.what)
        repository.revoke_release(name, version, options.reason)
        for channel in repository.channels(name):
            print(f"{name}@{channel.channel} is {channel.current} after the next publication")
    else:
        repository.revoke_module(options.what, options.reason, site=options.site)
    print(f"{options.what} is revoked after the next publication")
    return 0


def publish(options: argparse.Namespace) -> int:
    repository = Publisher(options.repository)
    _say(repository.publish(keys.load_signers(options.keys, outside=options.repository)))
    if options.to:
        from pluto_edge.repository.upload import upload

        with shown_bytes("upload", options.quiet) as progress:
            done = upload(repository, options.to, progress)
        print(f"{options.to}: {done.files} files, {_text.size(done.bytes)} were missing there")
    return 0


def show(options: argparse.Namespace) -> int:
    repository = Publisher(options.repository)
    sites = repository.sites()
    modules = {site: repository.modules(site) for site in ("", *sites)}
    revoked = [entry for site in ("", *sites) for entry in repository.revocations(site).entries]
    roles = repository.roles.states()
    if options.json:
        facts = {"releases": repository.releases(), "channels": repository.channels(), "modules": modules}
        print_json({**facts, "sites": sites, "revoked": revoked, "roles": roles})
        return 0
    current: dict[tuple[str, str], list[str]] = {(c.bundle, c.current): [] for c in repository.channels()}
    for channel in repository.channels():
        current[channel.bundle, channel.current].append(channel.channel)
    rows = [
        (r.bundle, r.version, ", ".join(current.get((r.bundle, r.version), [])), _bytes(r.blobs), r.notes)
        for r in repository.releases()
    ]
    print(_text.table(("bundle", "version", "channels", "size", "notes"), rows, right=(3,)))
    print()
    rows = [
        (m.name, site or "-", m.role, m.content[:12], _bytes(m.blobs)) for site in modules for m in modules[site]
    ]
    print(_text.table(("module", "site", "role", "content", "size"), rows, right=(4,)))
    print()
    states = [
        (
            s.role,
            s.version,
            s.expires,
            f"{s.threshold} of {len(s.keys)}",
            _ids(s.keys),
            s.staged,
        )
        for s in roles
    ]
    print(_text.table(("role", "version", "expires", "signatures", "keys", "staged"), states))
    for entry in revoked:
        print(f"revoked: {entry.target} {entry.reason}")
    return 0


def delegate(options: argparse.Namespace) -> int:
    public = [keys.load_public(file) for file in options.key]
    Publisher(options.repository).delegate(options.site, public, options.threshold)
    print(f"{options.site} may publish modules after the next publication, with its keys and the targets' keys")
    return 0


def rotate(options: argparse.Namespace) -> int:
    public = [keys.load_public(file) for file in options.add]
    repository = Publisher(options.repository)
    repository.rotate(options.role, add=public, remove=options.remove, threshold=options.threshold)
    print(f"a new root is staged; next, with the root's keys: pluto repo publish {options.repository} --keys KEYS")
    return 0


def sign(options: argparse.Namespace) -> int:
    from pluto_edge.repository.model_signature import sign_bundle

    out = options.out or Path(f"{str(options.bundle).rstrip('/')}.sig")
    check_vacant(False, out)
    sign_bundle(options.bundle, options.key, out)
    print(out)
    return 0


def verify(options: argparse.Namespace) -> int:
    from pluto_edge.repository.model_signature import verify_bundle

    verify_bundle(options.bundle, options.signature, options.key)
    print(f"{_text.tick(True)} {options.bundle} is what was signed")
    return 0


def _say(published: Published) -> None:
    for role, version in published.versions.items():
        print(f"{role}: version {version} is published")
    for missing in published.waiting:
        some = ", ".join(key[:12] for key in missing.keys)
        print(f"{missing.role}: waits for {missing.signatures} more signatures, of the keys {some}")


def _numbers(given: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in given:
        role, _, number = text.partition("=")
        if role not in TOP or not number.isdigit() or not int(number):
            raise ConfigError(f"{text}: want ROLE=N with a role of {', '.join(TOP)} and a number from 1 on")
        found[role] = int(number)
    return found


def _release(text: str) -> tuple[str, str]:
    name, at, version = text.partition("@")
    if not at or not name or not version:
        raise ConfigError(f"{text}: want BUNDLE@VERSION, such as meter@1.0")
    return name, version


def _bytes(blobs: Sequence[FileEntry]) -> str:
    return _text.size(sum(entry.size for entry in blobs))


def _ids(found: Sequence[str]) -> str:
    return " ".join(key[:12] for key in found)


ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "init": init,
    "add": add,
    "point": point,
    "revoke": revoke,
    "publish": publish,
    "list": show,
    "keys": make_keys,
    "delegate": delegate,
    "rotate": rotate,
    "sign": sign,
    "verify": verify,
}
