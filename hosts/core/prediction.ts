/** What the modules say of images with what was learned so far: who is asked, and how the answers become one. */

import * as beyond from "./beyond.js";
import { NotFiniteError } from "./errors.js";
import { WINDOW } from "./evidence.js";
import { argmax, entropies, Matrix } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import type { Look, Modules, Network, Pass } from "./network.js";
import type { ImageBatch } from "./preprocess.js";
import type { Prototypes } from "./prototypes.js";
import { type Blend, blend, probabilitiesOf } from "./selection.js";
import { logitsOf, weights } from "./selector.js";
import type { State } from "./state.js";

/** What users see of a batch: matrices have a row for each image. */
export interface Prediction {
  readonly labels: readonly number[];
  readonly classes: readonly string[];
  readonly probabilities: Matrix; // [B,K]
  readonly logits: Matrix; // [B,K]
  readonly weights: Matrix; // [B,N], of `modules`
  readonly modules: readonly string[];
  readonly entropy: Float64Array; // [B]
}

export interface Predicted {
  readonly blend: Blend;
  readonly passed: Pass;
  readonly tried: Prototypes;
}

/** The images with this state, given the looks of the images before them: runtime/prediction.py. */
export async function predict(
  network: Network,
  batch: ImageBatch,
  state: State,
  recent: Matrix,
  tried: Prototypes,
  config: AdaptConfig,
  seen: readonly Pass[] = [],
  activations = false,
): Promise<Predicted> {
  const { modules } = network;
  if (!beyond.applies(modules, config)) {
    const passed = await network.runFinite(batch, state.affines, modules.specialists, { seen });
    return { blend: requireFinite(predictFrom(modules, passed, state, recent, config)), passed, tried };
  }
  const look = await lookAt(network, batch, seen);
  const recognised = beyond.recognise(modules, newest(recent, look.xHat), look.xHat, config);
  const run = (say: beyond.Say, known: readonly Pass[]) =>
    network.runFinite(batch, state.affines, beyond.namesOf(say, modules), { seen: known, look, activations });
  const told = (say: beyond.Say) => beyond.predict(modules, state, passed, beyond.weightsOf(say, state, passed), config);
  let say = beyond.whoHasASay(modules, tried, recognised, config);
  let passed = await run(say, seen);
  const fitted = beyond.tryOn(modules, tried, passed, told(say), config);
  say = beyond.whoHasASay(modules, fitted, recognised, config); // who does not fit leaves its say
  if (!beyond.namesOf(say, modules).every((n) => passed.names.includes(n))) passed = await run(say, seen.length ? seen : [passed]);
  return { blend: requireFinite(told(say)), passed, tried: fitted };
}

/** What the modules of a pass say together, with the selector and the prototypes of this state. */
export function predictFrom(modules: Modules, passed: Pass, state: State, recent: Matrix, config: AdaptConfig): Blend {
  if (!beyond.applies(modules, config)) {
    return blend(modules, passed, weights(state.selector, passed.xHat, logitsOf(passed)), config).blend;
  }
  const recognised = beyond.recognise(modules, recent, passed.xHat, config);
  const say = beyond.whoHasASay(modules, state.prototypes, recognised, config);
  return beyond.predict(modules, state, passed, beyond.weightsOf(say, state, passed), config);
}

/** How the images look; what `seen` (passes of the same images) knows of it is not computed again. */
export async function lookAt(network: Network, batch: ImageBatch, seen: readonly Pass[]): Promise<Look> {
  const look = seen.length ? { xHat: Matrix.join(seen.map((p) => p.xHat)), tokens: null } : await network.look(batch);
  if (!look.xHat.finite) throw new NotFiniteError("the images are not finite once they are embedded; look at mean and std");
  return look;
}

/** The blend, which must be numbers. */
export function requireFinite(said: Blend): Blend {
  if (!said.logits.finite || !said.weights.finite) {
    throw new NotFiniteError("what the modules say together is not finite; look at the selector's weights");
  }
  return said;
}

/** The last looks, with those of more images: as many as evidence looks back, or all of the new ones. */
export function newest(recent: Matrix, xHat: Matrix): Matrix {
  const all = recent.rows ? Matrix.join([recent, xHat]) : xHat;
  const from = Math.max(all.rows - Math.max(WINDOW, xHat.rows), 0);
  return from === 0 ? all : Matrix.of(all.rows - from, all.cols, all.data.subarray(from * all.cols));
}

/** A blend as users see it. */
export function toPrediction(said: Blend, network: Network): Prediction {
  const probabilities = probabilitiesOf(said);
  const labels = Array.from({ length: probabilities.rows }, (_, i) => argmax(probabilities.row(i)));
  return {
    labels,
    classes: labels.map((k) => network.manifest.classes[k]!),
    probabilities,
    logits: said.logits,
    weights: said.weights,
    modules: network.modules.names,
    entropy: entropies(probabilities),
  };
}
