"""Addresses of bundles: `https://store.example/meter@stable`."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from pluto_edge._files import check_name
from pluto_edge.errors import ConfigError
from pluto_edge.repository.layout import DEFAULT_CHANNEL

__all__ = ["Address"]


@dataclass(frozen=True)
class Address:
    """`<repository>/<bundle>[@selector]`: the selector is a channel or a version, by itself the channel `stable`.

    The repository is a URL, `https://`, `file://` or any other that fsspec knows.
    """

    repository: str
    bundle: str
    selector: str = DEFAULT_CHANNEL

    def __post_init__(self) -> None:
        check_repository(self.repository)
        check_name(self.bundle, "bundle", ConfigError)
        check_name(self.selector, "channel or version", ConfigError)

    @classmethod
    def parse(cls, text: str) -> "Address":
        """The parts of an address; a `ConfigError` says what is wrong with it."""
        repository, _, last = text.rstrip("/").rpartition("/")
        bundle, at, selector = last.partition("@")
        if "://" not in f"{repository}/" or not bundle:
            raise ConfigError(f"{text}: want an address such as https://store.example/meter@stable")
        return cls(repository, bundle, selector if at else DEFAULT_CHANNEL)

    def __str__(self) -> str:
        return f"{self.repository}/{self.bundle}@{self.selector}"


def check_repository(url: str) -> str:
    """A repository's address: a scheme, and something behind it; never a question or a part of a page."""
    parts = urlsplit(url)
    if not parts.scheme or not (parts.netloc or parts.path.strip("/")):
        raise ConfigError(f"{url}: want a repository's address, such as https://store.example or file:///srv/store")
    if parts.query or parts.fragment:
        raise ConfigError(f"{url}: a repository's address has no '?' and no '#'")
    return url
