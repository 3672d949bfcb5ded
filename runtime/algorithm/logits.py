"""Lines 4 to 6 of Algorithm 1: where the modules' logits come from. The step does not care which graph gives them.

The gradient graph gives logits, too. Where the top module can be guessed and most of its images will be reliable,
one pass through that graph is cheaper than a pass forward now and another for the gradient later.
"""

from collections.abc import Sequence

from pluto_edge.config import AdaptConfig
from pluto_edge.preprocess import ImageBatch
from pluto_edge.runtime.algorithm.sharpness import current, reliable_below
from pluto_edge.runtime.algorithm.state import State
from pluto_edge.runtime.engine.network import Network
from pluto_edge.runtime.engine.objective import Objective
from pluto_edge.runtime.engine.passes import Pass, hold

# of the images that are reliable; a gradient costs 2.2 passes forward: 2.2 < 1 + 2.2 r for all r from here on
GUESS_FROM = 0.55


def all_modules(
    network: Network, state: State, batch: ImageBatch, config: AdaptConfig, seen: Sequence[Pass]
) -> tuple[Pass, str | None]:
    """The specialists' logits; and the module whose gradient came with them, if one was guessed.

    `seen` are passes of the same images: what holds of them is not computed again.
    """
    names = network.modules.specialists
    guess = guess_top(network, state, names, config, seen)
    objective = Objective(reliable_below(network, config))
    return network.run_finite(
        batch, state.affines, names, differentiate=guess, objective=objective, seen=seen
    ), guess


def guess_top(
    network: Network, state: State, names: Sequence[str], config: AdaptConfig, seen: Sequence[Pass]
) -> str | None:
    """The last batch's top module, where its pass forward is to give the gradient, too.

    It is not where few images are reliable, or its logits are known already: then a gradient for the reliable
    images alone is cheaper.
    """
    top = state.top
    if config.sam != "batch" or top is None or top not in names or state.reliable < GUESS_FROM:
        return None
    known = hold(seen, top, network.modules[top].digest_with(current(network, state, top)))
    return None if known else top
