/**
 * The gradient step beyond the paper: what the leading module's affines learn of a batch. Its activations are to be as
 * they were on its source, and its head is to say what all parts together are sure of.
 */

import { type Alignment, align } from "./alignment.js";
import { columnMeans, type Matrix } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import { every, type Network, type Objective, type Pass } from "./network.js";
import type { ImageBatch } from "./preprocess.js";
import { current, descend, type Learned, notLearned, reliableOf, sharpnessAware } from "./sharpness.js";
import type { State } from "./state.js";
import { evenness, lessons } from "./teaching.js";

export const ALIGN_FROM = 16; // images: the statistics of fewer say nothing
const ALIGN_RATE = 0.02;
const BY_CHANCE = 2; // times the loss that chance alone makes: below it there is nothing to undo
const ENTROPY_SHARE = 0.1; // of the entropy beside alignment
const FADES = 0.05; // of what was learned, with every step
const RADIUS = 0.05; // of the exported affines' norm: nothing that was learned is farther from them
const CARRIED_BY = ALIGN_FROM; // images of the batch that tell how a step moves features

/**
 * A sharpness-aware step of the top module towards its source's activations, and what is said of the batch. There is
 * none without a reliable image, nor where the activations are as near as chance lets them be. At λ + ε the same
 * coefficients serve.
 */
export async function learnBeyond(
  network: Network,
  state: State,
  batch: ImageBatch,
  passed: Pass,
  probabilities: Matrix,
  threshold: number,
  config: AdaptConfig,
): Promise<Learned> {
  const name = state.top!;
  const { signature } = network.modules.references.get(name)!;
  const reliable = reliableOf(passed, name, threshold).length;
  if (reliable === 0) return notLearned(state);
  const source = { mean: signature.activationMean, std: signature.activationStd };
  const found = align(passed.said.get(name)!.activations!, batch.length, network.manifest.dims.width, source);
  if (found.excess < BY_CHANCE) return { state, reliable, loss: found.loss, gathering: false };
  const objective = objectiveOf(found, probabilities, reliable, threshold, config);
  const first = await network.gradient(batch, every(batch), name, current(network, state, name), objective);
  const { gradient } = await sharpnessAware(network, state, batch, first, every(batch), config, objective);
  const next = descend(network, state, name, gradient, config.ln_lr ?? ALIGN_RATE, config);
  const { exported } = network.modules.get(name);
  const near = next.affines.get(name)!.towards(exported, FADES).near(exported, RADIUS);
  const moved = { ...next, affines: new Map(next.affines).set(name, near) };
  const after = config.prototypes ? await carried(network, moved, batch, passed) : moved;
  return { state: after, reliable, loss: found.loss, gathering: false };
}

/** Alignment, and what `AdaptConfig.objective` wants beside it. */
function objectiveOf(found: Alignment, probabilities: Matrix, reliable: number, threshold: number, config: AdaptConfig): Objective {
  if (config.objective === "teach") {
    const even = Math.fround(evenness(probabilities));
    const target = lessons(probabilities).map((v) => even * v);
    const [offset, slope] = [found.offset, found.slope].map((values) => values.map((v) => even * v)) as [Float32Array, Float32Array];
    return { threshold, entropyWeight: 0, offset, slope, target };
  }
  const entropyWeight = config.objective === "both" ? ENTROPY_SHARE / reliable : 0;
  return { threshold, entropyWeight, offset: found.offset, slope: found.slope, target: null };
}

/** Prototypes were learned among the features of the affines before the step: they move as features do. */
async function carried(network: Network, state: State, batch: ImageBatch, passed: Pass): Promise<State> {
  const name = state.top!;
  const apart = (batch.length - 1) / (CARRIED_BY - 1);
  const some = Array.from({ length: CARRIED_BY }, (_, i) => Math.floor(i * apart));
  const after = (await network.run(batch.part(some), state.affines, [name])).said.get(name)!.features;
  const before = passed.said.get(name)!.features.take(some);
  const by = columnMeans(after.map((v, at) => v - before.data[at]!));
  return { ...state, prototypes: state.prototypes.carried(name, by) };
}
