"""`FrameBuffer`: the frames of a stream that the next step learns from."""

import threading
from collections import deque
from dataclasses import dataclass

from pluto_edge.errors import ConfigError
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.engine.forks import renew_after_fork
from pluto_edge.runtime.engine.passes import Pass

__all__ = ["Frame", "FrameBuffer"]


@dataclass(frozen=True)
class Frame:
    """An image, and what its prediction ran: that is not computed again when the frame is learned from."""

    image: ImageBatch
    seen: Pass


class FrameBuffer:
    """Keeps the last `batch` frames, and says when a step is due: when it is full, and `every` frames apart.

    `every` is None for `batch`. One thread adds frames; any thread may clear the buffer.
    """

    def __init__(self, batch: int, every: int | None = None) -> None:
        if every is not None and every < 1:
            raise ConfigError(f"every: want at least 1 frame, or None for one step a batch; got {every}")
        self.batch = batch
        self.every = every or batch
        self._frames: deque[Frame] = deque(maxlen=batch)
        self._since = 0  # frames since the last step that was due
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Called in a forked process: no lock is held there."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frame: Frame) -> list[Frame]:
        """Keep one more frame. Gives those to learn from now; none where no step is due."""
        with self._lock:
            self._frames.append(frame)
            self._since += 1
            if len(self._frames) < self.batch or self._since < self.every:
                return []
            self._since = 0
            return list(self._frames)

    def clear(self) -> None:
        """Forget all frames."""
        with self._lock:
            self._frames.clear()
