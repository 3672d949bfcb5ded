"""`View`: a page that shows what a stream sees, says and learns, with buttons for reset, freeze and save.

    with View(stream) as view:
        print(view.url)
        for frame in camera:
            view.show(frame, stream(frame))

What the page answers is in `page.py`, who may ask in `server.py`.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pluto_edge.observe.page import StreamPage
from pluto_edge.observe.server import Server
from pluto_edge.runtime.stream.stream import Stream
from pluto_edge.runtime.types import Prediction

__all__ = ["View"]


class View:
    """A page for one stream, served until `close`.

    Args:
        stream: that the page shows and its buttons act on.
        address: to listen on. Any but a loopback address needs a token.
        port: 0 picks a free one; `url` has it.
        token: at least 16 characters; `url` carries it, and the browser then has a cookie instead.
        save_to: file that the page's Save writes; None is no such button.
    """

    def __init__(
        self,
        stream: Stream,
        address: str = "127.0.0.1",
        port: int = 8765,
        token: str | None = None,
        save_to: str | Path | None = None,
    ) -> None:
        self._page = StreamPage(stream, lambda: self._server.csrf, save_to)
        self._server = Server(address, port, token, pages=self._page.pages(), actions=self._page.actions())

    @property
    def url(self) -> str:
        """Where the page is; with the token, if there is one."""
        return self._server.url

    def show(self, frame: NDArray[np.uint8], prediction: Prediction, caption: str = "") -> None:
        """The newest frame (HWC, uint8, RGB) and what the stream said of it; costs next to nothing.

        The frame is not copied: do not write into it afterwards. The caption is for what a simulated camera
        knows to be true.
        """
        self._page.show(frame, prediction, caption)

    def close(self) -> None:
        """The page is gone when this returns, and so are its threads."""
        self._server.stop()

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
