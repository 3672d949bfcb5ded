"""A module's signature from its source's validation images, which it did not learn from."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pluto_edge._arrays import Wide
from pluto_edge.signature import FEATURE_RANK, FOLDS, Covariance, Reference, Signature, look_statistics
from pluto_edge.train.features import Embedded, activations
from pluto_edge.vit.torch_vit import Params, TorchViT

FEATURE_FLOOR = 0.2  # of the mean variance: what the few directions of a few hundred images leave out
TEMPERATURES = np.geomspace(0.25, 8.0, 31)
SHARPNESS = (0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.2, 0.4, 1.0, 1e6)  # the last: distance says nothing


def signature_of(vit: TorchViT, module: Params, train: Embedded, val: Embedded) -> Signature:
    """Of a module and its source: x̂ of all images, everything else of validation images."""
    whole = {**vit.backbone_ln(), **module}
    return make_signature(
        activations(vit, val, whole).numpy(),
        val.labels.numpy(),
        whole["head_weight"].numpy(),
        whole["head_bias"].numpy(),
        torch.cat([train.x_hat, val.x_hat]).numpy(),
    )


def make_signature(
    activations: NDArray[np.floating],
    labels: NDArray[np.integer],
    head: NDArray[np.floating],
    bias: NDArray[np.floating],
    looks: NDArray[np.floating],
) -> Signature:
    """From activations [n,L+1,d] and labels [n] of validation images, and x̂ [m,d] of any images of the source."""
    features = activations[:, -1].astype(np.float64)
    logits = features @ head.T + bias
    look_mean, covariance = look_statistics(looks)
    start = Signature(
        **_of_classes(features, labels, len(head)),
        activation_mean=activations.mean(axis=0, dtype=np.float64).astype(np.float32),
        activation_std=activations.std(axis=0, dtype=np.float64).astype(np.float32),
        look_mean=look_mean,
        look_factor=covariance.factor,
        look_noise=covariance.noise,
        temperature=_temperature(logits, labels),
        sharpness=SHARPNESS[-1],
        images=float(len(labels)),
    )
    return replace(start, sharpness=_sharpness(start, features, logits, labels))


def _of_classes(features: Wide, labels: NDArray[np.integer], classes: int) -> dict[str, Any]:
    """Class means and the covariance within classes; a class without an image has the mean of all."""
    everywhere = features.mean(axis=0)
    means = np.stack(
        [features[labels == k].mean(axis=0) if (labels == k).any() else everywhere for k in range(classes)]
    )
    covariance = Covariance.of(features - means[labels], FEATURE_RANK, FEATURE_FLOOR)
    return {
        "class_means": means.astype(np.float32),
        "feature_factor": covariance.factor,
        "feature_noise": covariance.noise,
    }


def _temperature(logits: Wide, labels: NDArray[np.integer]) -> float:
    """What makes the labels most likely."""
    return float(min(TEMPERATURES, key=lambda t: _surprise(_log_softmax(logits / t), labels)))


def _sharpness(signature: Signature, features: Wide, logits: Wide, labels: NDArray[np.integer]) -> float:
    """What makes the labels of held-out images most likely, with class means of the others."""
    classes = logits.shape[1]
    folds = np.random.default_rng(0).permutation(len(labels)) % FOLDS
    totals = dict.fromkeys(SHARPNESS, 0.0)
    for fold in range(FOLDS):
        held, others = folds == fold, folds != fold
        if not held.any() or len(set(labels[others])) < classes:
            continue
        part = replace(signature, **_of_classes(features[others], labels[others], classes))
        reference = Reference.of(part, np.zeros((classes, features.shape[1])))
        far = reference.distances(features[held], reference.means)
        by_head = _log_softmax(logits[held] / signature.temperature)
        for sharpness in SHARPNESS:
            totals[sharpness] += _surprise(by_head + _log_softmax(-far / (2 * sharpness)), labels[held])
    return min(totals, key=totals.__getitem__) if any(totals.values()) else SHARPNESS[-1]


def _surprise(scores: Wide, labels: NDArray[np.integer]) -> float:
    """Minus the log-likelihood of the labels, summed."""
    return float(-_log_softmax(scores)[np.arange(len(labels)), labels].sum())


def _log_softmax(scores: Wide) -> Wide:
    centred = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(centred - np.log(np.exp(centred).sum(axis=1, keepdims=True)))
