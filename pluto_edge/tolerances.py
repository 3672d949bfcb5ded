"""Every tolerance of the project, by name, with its reason.

An error is the largest absolute difference divided by the largest absolute reference value (at least 1e-6):
scale-free, so that one number serves every backbone.
"""

import numpy as np
from numpy.typing import ArrayLike

# Two fp32 implementations that sum in different orders: about sqrt(depth * width) * 6e-8, measured 1e-6 to
# 6e-6 for ViT-Ti to ViT-B. Ten times that still catches a wrong epsilon or a GELU of the other kind.
EMBED_FP32 = 2e-5
LOGITS_FP32 = 1e-4

# Between the entropies of samples that a comparison counts and of those that it leaves out, as a share of
# the logarithm of the classes: ten times what two fp32 entropies may differ by, so that both count the same ones.
ENTROPY_GAP = 10 * LOGITS_FP32

# fp16 keeps 11 bits: 5e-4 a rounding, several hundred roundings deep, LayerNorm and softmax in between.
EMBED_FP16 = 5e-3
LOGITS_FP16 = 5e-2

# bfloat16 keeps 8 bits: 4e-3 a rounding, sums in fp32. Probabilities (absolute) of ten steps against fp32.
PROBABILITIES_BF16 = 5e-2

# Dynamic int8 of every frozen MatMul. It is a budget rather than rounding analysis: an export that loses more
# than this has a backbone that wants calibration, and is refused.
LOGITS_INT8 = 0.35

# Activations, every block's in its own size: the residual stream has the rounding that the logits are made of, and
# early blocks have less of it. Measured up to 2e-6 in fp32, 2e-3 in fp16 and 0.09 in int8 (DINOv2 ViT-S).
ACTIVATIONS_FP32 = LOGITS_FP32
ACTIVATIONS_FP16 = LOGITS_FP16
ACTIVATIONS_INT8 = LOGITS_INT8

# Gradients with respect to LayerNorm affines, fp32 against autograd: measured 2e-7 to 4e-6. A dropped term (the
# mean over the width, the softmax's row sum) shows as 1e-2 or more.
GRADIENT = 1e-4

# The same against finite differences along the gradient: fp32 leaves about 1e-7 / 1e-2 in the quotient, and the
# curvature of the entropy the rest.
FINITE_DIFFERENCE = 5e-2

# The selector in numpy against torch in double precision (absolute, on weights in 0..1): one fp32 rounding.
SELECTOR = 1e-6

# Twelve steps of Algorithm 1 against torch. Each step's rounding (1e-6) feeds the next; learning rates in the
# tests are ten times the defaults so that parameters really move. Weights and selector are absolute, the rest
# relative.
TRAJECTORY_WEIGHTS = 1e-4
TRAJECTORY_LOGITS = 1e-3
TRAJECTORY_SELECTOR = 1e-5
TRAJECTORY_AFFINES = 1e-4


def relative_error(got: ArrayLike, want: ArrayLike) -> float:
    """Largest absolute difference over largest absolute reference; infinite when either is not finite."""
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    return float(np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-6))


# A stream's step takes logits that were computed one frame at a time, Runtime.step computes them in micro-batches:
# the same numbers added up in another order, seen after a few steps in the learned weights.
STREAM_STATE = 1e-4
