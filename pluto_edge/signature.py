"""What a module's source looked like to it: the statistics that a device compares its stream with.

`pluto train` computes a signature from the source's images and keeps it in the module's file, so that a module and
what is known of its source travel together. Nothing in it is an image. Covariances are kept as a few directions and
one variance for all others, and everything in half precision: about 70 KB for a ViT-S of 7 classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pluto_edge._arrays import Array, Wide
from pluto_edge._schema import Error
from pluto_edge.errors import ConfigError

__all__ = ["Covariance", "Reference", "Signature", "half", "look_statistics", "stack_looks"]

Shape = tuple[int | None, ...]  # None: any size

PREFIX = "signature."
FEATURE_RANK, LOOK_RANK = 16, 32
FOLDS = 4  # in which settings are found on images that statistics were not made of
FLOORS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
NUMBERS = ("feature_noise", "look_noise", "temperature", "sharpness", "images")


@dataclass(frozen=True)
class Covariance:
    """Of d channels: `factor` [r,d] has the directions of large variance, `noise` is the variance of all others."""

    factor: Array
    noise: float

    @classmethod
    def of(cls, deviations: NDArray[np.floating], rank: int, floor: float) -> "Covariance":
        """Of samples [n,d] around their mean; every direction gets `floor` times the mean variance on top."""
        wide = deviations.astype(np.float64)
        matrix = wide.T @ wide / max(len(wide), 1)
        values, vectors = np.linalg.eigh(matrix)
        rank = min(rank, len(values) - 1, max(len(wide) - 1, 1))
        rest = max(float(values[:-rank].mean()), 0.0)
        spread = np.sqrt(np.maximum(values[-rank:] - rest, 0.0))
        return cls((vectors[:, -rank:] * spread).T.astype(np.float32), rest).raised(floor)

    def raised(self, floor: float) -> "Covariance":
        """With `floor` times the mean variance on top of every direction."""
        mean = float(np.square(self.factor, dtype=np.float64).sum()) / self.factor.shape[1] + self.noise
        return replace(self, noise=max(self.noise + floor * mean, float(np.finfo(np.float32).tiny)))

    @property
    def inner(self) -> Wide:
        """A [r,d], with which the squared distance of v is (|v|² - |A v|²) / noise: two small products."""
        factor = self.factor.astype(np.float64)
        values, vectors = np.linalg.eigh(factor @ factor.T)
        shrunk = 1 / np.sqrt(np.maximum(values, 0.0) + self.noise)
        return np.asarray((vectors * shrunk).T @ factor)

    def surprise(self, deviations: Wide) -> float:
        """Of samples [n,d] around their mean: twice minus their log-likelihood, but for a constant."""
        factor = self.factor.astype(np.float64)
        rank, width = factor.shape
        along = np.linalg.slogdet(factor @ factor.T + self.noise * np.eye(rank))[1]
        volume = along + (width - rank) * np.log(self.noise)
        far = np.square(deviations).sum() - np.square(deviations @ self.inner.T).sum()
        return float(far / self.noise + len(deviations) * volume)


@dataclass(frozen=True)
class Signature:
    """Of one module and its source.

    Attributes:
        class_means: [K,d], the mean features of every class.
        feature_factor, feature_noise: covariance of the features within a class.
        activation_mean, activation_std: [L+1,d], of what the head would pool after every block, then of features.
        look_mean: [d], of the images as the selector sees them, x̂.
        look_factor, look_noise: covariance of x̂.
        temperature: that the module's logits are divided by to be as sure as they are right.
        sharpness: how much the distance from the class means counts beside the logits; found like the temperature.
        images: that the statistics of the features are made of.
    """

    class_means: Array
    feature_factor: Array
    activation_mean: Array
    activation_std: Array
    look_mean: Array
    look_factor: Array
    feature_noise: float
    look_noise: float
    temperature: float
    sharpness: float
    images: float

    @property
    def features(self) -> Covariance:
        """Covariance of the features that the head sees, within a class."""
        return Covariance(self.feature_factor, self.feature_noise)

    @property
    def looks(self) -> Covariance:
        """Covariance of how the source's images look before any module runs."""
        return Covariance(self.look_factor, self.look_noise)

    @property
    def tensors(self) -> dict[str, NDArray[Any]]:
        """As they are in the module's file."""
        arrays = {PREFIX + n: half(getattr(self, n)) for n in ARRAYS}
        return {**arrays, PREFIX + "numbers": np.array([getattr(self, n) for n in NUMBERS], np.float32)}

    @classmethod
    def find(cls, tensors: dict[str, NDArray[Any]], where: str, error: Error) -> "Signature | None":
        """The signature among a module's tensors, whose shapes are checked already; None where there is none."""
        own: dict[str, Any] = {
            k.removeprefix(PREFIX): v.astype(np.float32) for k, v in tensors.items() if k.startswith(PREFIX)
        }
        if not own:
            return None
        for name, value in own.items():
            if not np.isfinite(value).all():
                raise error(f"{where}: {PREFIX}{name} is not finite")
        numbers: dict[str, Any] = dict(zip(NUMBERS, map(float, own.pop("numbers")), strict=True))
        wrong = [n for n, v in numbers.items() if v <= 0]
        if wrong:
            raise error(f"{where}: {PREFIX}numbers: want {wrong[0]} above 0, got {numbers[wrong[0]]}")
        return cls(**own, **numbers)


ARRAYS = tuple(f.name for f in fields(Signature) if f.name not in NUMBERS)


def shapes(width: int, depth: int, classes: int) -> dict[str, Shape]:
    """Of a signature's tensors; how many directions a covariance has is open."""
    rows = {"activation_mean": (depth + 1, width), "activation_std": (depth + 1, width)}
    found: dict[str, Shape] = {
        "class_means": (classes, width),
        "feature_factor": (None, width),
        "look_mean": (width,),
        "look_factor": (None, width),
        "numbers": (len(NUMBERS),),
        **rows,
    }
    return {PREFIX + name: shape for name, shape in found.items()}


def look_statistics(looks: NDArray[np.floating]) -> tuple[Array, Covariance]:
    """Mean and covariance of x̂ [n,d] of a source's images, as a signature has them."""
    mean = looks.mean(axis=0, dtype=np.float64)
    covariance = Covariance.of(looks - mean, LOOK_RANK, _floor(looks.astype(np.float64)))
    return mean.astype(np.float32), covariance


def _floor(looks: Wide) -> float:
    """The share of the mean variance for every direction that makes held-out images most likely.

    It is large where there are few images, whose covariance says more of them than of their domain.
    """
    if len(looks) < 2 * FOLDS:
        return FLOORS[-1]
    folds = np.random.default_rng(0).permutation(len(looks)) % FOLDS
    totals = dict.fromkeys(FLOORS, 0.0)
    for fold in range(FOLDS):
        held, others = looks[folds == fold], looks[folds != fold]
        mean = others.mean(axis=0)
        covariance = Covariance.of(others - mean, LOOK_RANK, 0.0)
        for floor in FLOORS:
            totals[floor] += covariance.raised(floor).surprise(held - mean)
    return min(totals, key=totals.__getitem__)


def stack_looks(signatures: Sequence[Signature]) -> tuple[Array, Array, Array]:
    """How the sources look, as `Looks.of` takes it: means [N,d], directions [N,r,d] with zeros where there are
    fewer, and the variances of all others [N]."""
    rank = max(len(s.look_factor) for s in signatures)
    means = np.stack([s.look_mean for s in signatures])
    factors = np.zeros((len(signatures), rank, means.shape[1]), np.float32)
    for row, signature in zip(factors, signatures, strict=True):
        row[: len(signature.look_factor)] = signature.look_factor
    return means, factors, np.array([s.look_noise for s in signatures], np.float32)


@dataclass(frozen=True)
class Reference:
    """A signature made ready: distances under its covariance cost two small matrix products."""

    signature: Signature
    means: Wide  # [K,d]
    inner: Wide  # of the covariance, [r,d]
    noise: float
    head: Wide  # [K,d]

    @classmethod
    def of(cls, signature: Signature, head: NDArray[Any]) -> "Reference":
        """What adaptation needs of a signature, computed once, with the module's head."""
        inner = signature.features.inner
        means = signature.class_means.astype(np.float64)
        return cls(signature, means, inner, signature.feature_noise, head.astype(np.float64))

    def distances(self, features: Wide, points: Wide) -> Wide:
        """Squared, of features [B,d] from points [K,d], per channel: [B,K]."""
        plain = _squares(features, points)
        along = _squares(features @ self.inner.T, points @ self.inner.T)
        return np.asarray(np.maximum(plain - along, 0.0) / (self.noise * features.shape[1]))


def half(value: Array) -> NDArray[Any]:
    """In half precision, unless that is too small for it."""
    if not np.isfinite(value).all():
        raise ConfigError("a signature must be finite")
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    return half if np.isfinite(half).all() else value


def _squares(a: Wide, b: Wide) -> Wide:
    """|a_i - b_k|², [B,K]."""
    return np.asarray(np.square(a).sum(axis=1)[:, None] - 2 * a @ b.T + np.square(b).sum(axis=1))
