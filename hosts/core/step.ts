/** PLUTO's Algorithm 1, readable with the paper open. Numbers are the paper's lines. */

import type { Matrix } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import { MEAN_ENTROPY, type Network, type Pass } from "./network.js";
import type { ImageBatch } from "./preprocess.js";
import { type Blend, blend, updateSelector } from "./selection.js";
import { logitsOf, mixedEntropy, weights } from "./selector.js";
import { current, learnAffines, reliableBelow } from "./sharpness.js";
import type { State } from "./state.js";

// of the images that are reliable; a gradient costs 2.2 passes forward: 2.2 < 1 + 2.2 r for all r from here on
const GUESS_FROM = 0.55;

/** What a step would do: the next state, the prediction, and all that led to it. */
export interface Proposal {
  readonly state: State;
  readonly blend: Blend;
  readonly passed: Pass;
  readonly weights: Matrix; // w* [B,n] of the modules that ran, before the selection
  readonly top: string;
  readonly entropyBefore: number;
  readonly entropyAfter: number;
  readonly reliable: number;
  readonly loss: number | null;
  readonly gathering: boolean;
}

/** Algorithm 1 on the t-th batch; `seen` are passes of the same images, whose logits serve where they hold. */
export async function propose(
  network: Network,
  state: State,
  batch: ImageBatch,
  config: AdaptConfig,
  seen: readonly Pass[],
): Promise<Proposal> {
  // 4 to 6: every x_i through the N modules, l(x_i)^j
  const guess = guessTop(network, state, config, seen);
  const objective = { ...MEAN_ENTROPY, threshold: reliableBelow(network, config) };
  const options = { seen, differentiate: guess, objective };
  const passed = await network.runFinite(batch, state.affines, network.modules.specialists, options);
  // 7, 8 and 10: weights w, pseudo-labels, G to G* by minimising their entropy
  const { entropyBefore, gathered, state: updated } = updateSelector(state, passed, config);
  // 11: w* = G*(x_i, l(x_i)^j)
  const weight = weights(updated.selector, passed.xHat, logitsOf(passed));
  // 12 to 14: their mean over the batch, the top M, rescaled to sum to 1; the prediction Σ w_j l_j
  const { blend: prediction, order } = blend(network.modules, passed, weight, config);
  const top = passed.names[order[0]!]!;
  // 15: the LayerNorm affines of the heaviest, by Algorithm 2
  const learned = await learnAffines(network, state, { ...updated, top }, batch, passed, gathered, top === guess, config);
  return {
    ...learned,
    blend: prediction,
    passed,
    weights: weight,
    top,
    entropyBefore,
    entropyAfter: mixedEntropy(weight, passed),
  };
}

/**
 * The last batch's top module, where its pass forward is to give the gradient, too. It is not where few images are
 * reliable, or its logits are known already: then a gradient for the reliable images alone is cheaper.
 */
function guessTop(network: Network, state: State, config: AdaptConfig, seen: readonly Pass[]): string | null {
  const { top } = state;
  if (config.sam !== "batch" || top === null || !network.modules.specialists.includes(top) || state.reliable < GUESS_FROM) return null;
  const known = seen.length > 0 && seen.every((p) => p.said.get(top)?.affines === current(network, state, top));
  return known ? null : top;
}
