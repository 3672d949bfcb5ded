/**
 * Algorithm 2, sharpness-aware entropy minimisation, and its batch form, in which line 15 of Algorithm 1 uses it:
 * v = ∇E(λ); ε* = ρ v / ‖v‖; the step goes along -∇E(λ + ε*). Samples whose entropy is not below E0 take no part.
 */

import type { Affines } from "./affines.js";
import { entropies, mean, softmax } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import { type Gradient, MEAN_ENTROPY, type Network, type Objective, type Pass } from "./network.js";
import type { ImageBatch } from "./preprocess.js";
import type { Gathered, State } from "./state.js";

/** The entropy below which a sample is reliable. */
export function reliableBelow(network: Network, config: AdaptConfig): number {
  return config.filter ? config.entropy_margin * Math.log(network.manifest.dims.classes) : Infinity;
}

function entropyRate(config: AdaptConfig): number {
  return config.ln_lr ?? 1e-3;
}

/** The state after line 15, on how many reliable samples, and their mean entropy at λ + ε. */
export interface Learned {
  readonly state: State;
  readonly reliable: number;
  readonly loss: number | null;
  readonly gathering: boolean; // too few reliable samples so far: their gradients are kept, and nothing else is new
}

export function notLearned(state: State): Learned {
  return { state, reliable: 0, loss: null, gathering: false };
}

/** Which samples one module of a pass is sure of. */
export function reliableOf(passed: Pass, name: string, threshold: number): number[] {
  const found = entropies(softmax(passed.said.get(name)!.logits));
  return Array.from(found.keys()).filter((i) => found[i]! < threshold);
}

/**
 * Line 15 of Algorithm 1: `before` is the state before the step, `updated` has the new selector and the top module; where
 * that was guessed, `passed` has its gradient.
 */
export async function learnAffines(
  network: Network,
  before: State,
  updated: State,
  batch: ImageBatch,
  passed: Pass,
  gathered: Gathered,
  guessed: boolean,
  config: AdaptConfig,
): Promise<Learned> {
  const threshold = reliableBelow(network, config);
  if (config.sam === "sample") return samSamples(network, updated, batch, threshold, config);
  if (config.sam === null) return notLearned(updated);
  const name = updated.top!;
  const known = guessed ? passed.gradient : null;
  const reliable = known ? known.reliable : reliableOf(passed, name, threshold);
  if (!reliable.length) return descendGathered(network, before, updated, gathered, null, 0, null, config);
  const first = known ?? (await network.gradient(batch, reliable, name, current(network, updated, name)));
  const { loss, gradient } = await sharpnessAware(network, updated, batch, first, reliable, config);
  return descendGathered(network, before, updated, gathered, gradient, reliable.length, loss, config);
}

/** Algorithm 2: sample after sample, each from the affines that the one before it left. */
async function samSamples(network: Network, start: State, batch: ImageBatch, threshold: number, config: AdaptConfig): Promise<Learned> {
  const name = start.top!;
  const losses: number[] = [];
  let state = start;
  for (let index = 0; index < batch.length; index++) {
    const first = await network.gradient(batch, [index], name, current(network, state, name), { ...MEAN_ENTROPY, threshold });
    if (!first.reliable.length) continue; // filter the sample with large entropy
    const { loss, gradient } = await sharpnessAware(network, state, batch, first, [index], config);
    state = descend(network, state, name, gradient, entropyRate(config), config);
    losses.push(loss);
  }
  return { state, reliable: losses.length, loss: losses.length ? mean(losses) : null, gathering: false };
}

/** v = ∇ at λ; ε = ρ v / ‖v‖; loss and ∇ at λ + ε. ρ = 0 is a plain gradient. */
export async function sharpnessAware(
  network: Network,
  state: State,
  batch: ImageBatch,
  first: Gradient,
  samples: readonly number[],
  config: AdaptConfig,
  objective: Objective = MEAN_ENTROPY,
): Promise<{ loss: number; gradient: Affines }> {
  const name = state.top!;
  const { width } = network.manifest.dims;
  const v = first.affines.only(config.ln_layers, width);
  if (config.rho === 0 || v.norm === 0) return { loss: first.loss, gradient: v };
  const moved = current(network, state, name).plus(v, config.rho / v.norm);
  const second = await network.gradient(batch, samples, name, moved, objective);
  return { loss: second.loss, gradient: second.affines.only(config.ln_layers, width) };
}

/** SGD on one module's affines, from where they are now. */
export function descend(network: Network, state: State, name: string, given: Affines, rate: number, config: AdaptConfig): State {
  const memory = config.ln_momentum ? state.momentum.get(name) : undefined;
  const gradient = memory ? given.plus(memory, config.ln_momentum) : given;
  return {
    ...state,
    affines: new Map(state.affines).set(name, current(network, state, name).plus(gradient, -rate)),
    momentum: config.ln_momentum ? new Map(state.momentum).set(name, gradient) : state.momentum,
  };
}

/** A step with all that was gathered or, while that is too little, the state as before, with these gradients kept. */
function descendGathered(
  network: Network,
  before: State,
  proposed: State,
  start: Gathered,
  gradient: Affines | null,
  reliable: number,
  loss: number | null,
  config: AdaptConfig,
): Learned {
  const top = proposed.top!;
  let gathered = start;
  if (gradient !== null) {
    const total = gathered.affines.get(top)?.plus(gradient, reliable) ?? gradient.times(reliable);
    gathered = { ...gathered, affines: new Map(gathered.affines).set(top, total), reliable: gathered.reliable + reliable };
  }
  if (reliable > 0 && gathered.reliable < config.min_reliable) {
    const kept = { ...before, top, gathered, prototypes: proposed.prototypes };
    return { state: kept, reliable, loss, gathering: true };
  }
  let state = proposed;
  for (const [name, total] of gathered.affines) {
    state = descend(network, state, name, total.times(1 / gathered.reliable), entropyRate(config), config);
  }
  return { state, reliable, loss, gathering: false };
}

/** λ of one module as it is now: what was learned, or else what was exported. */
export function current(network: Network, state: State, name: string): Affines {
  return state.affines.get(name) ?? network.modules.get(name).exported;
}
