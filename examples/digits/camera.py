"""A simulated camera: meter digits through a day of weather. NumPy and Pillow only.

    for frame in camera(seed=0):   # without end; frame.image, frame.truth, frame.condition
        ...

The same seed gives the same frames, whatever fonts are installed: digits are drawn in Pillow's own.
"""

from collections.abc import Iterator
from itertools import cycle

import meter
import numpy as np

from pluto_edge import ConfigError, Frame

__all__ = ["HOLD", "STORY", "camera", "meter_camera"]

# A day at the mast, then clear again. Glare, rain drops and frost are conditions that no module was trained for.
STORY = ("clear", "fog", "glare", "motion_blur", "rain_drops", "low_light", "sensor_noise", "frost")
HOLD = 300  # frames from one change of condition to the next


def camera(seed: int = 0, hold: int = HOLD) -> Iterator[Frame]:
    """`hold` frames of each condition of the story, over and over."""
    rng = np.random.default_rng(seed)
    conditions = {**meter.CONDITIONS, **meter.UNSEEN}
    for name in cycle(STORY):
        for _ in range(hold):
            digit = int(rng.integers(10))
            yield Frame(conditions[name](meter.render(rng, digit, fonts=()), rng), digit, name)


def meter_camera(seed: int, hold: int, classes: tuple[str, ...]) -> Iterator[Frame]:
    """The same for a bundle with these classes, which must be the ten digits."""
    if classes != tuple("0123456789"):
        raise ConfigError("the simulated camera shows digits, the bundle has other classes; give --source")
    return camera(seed, hold)
