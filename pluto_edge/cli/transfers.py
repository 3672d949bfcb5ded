"""How far a download or an upload is: a bar in a terminal, elsewhere a line now and then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from pluto_edge._progress import Lines, live
from pluto_edge._text import size


@contextmanager
def shown_bytes(task: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Gives what is told of bytes that are done, of bytes to do; a device need not have tqdm for it."""
    if quiet or not live() or find_spec("tqdm") is None:
        lines = Lines()
        yield lambda done, total: None if quiet else lines.step(task, done, total, f"{size(done)} of {size(total)}")
        return
    from tqdm import tqdm

    with tqdm(desc=task, unit="B", unit_scale=True, leave=False) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show
