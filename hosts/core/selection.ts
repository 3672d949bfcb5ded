/** Lines 7 to 14 of Algorithm 1: the selector's step on the entropy of the pseudo-labels, then who predicts. */

import { Matrix, softmax } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import type { Modules, Pass } from "./network.js";
import { entropyGradient, logitsOf, mixedEntropy, select, type SelectorWeights, TENSORS, weights } from "./selector.js";
import { type Gathered, type Moments, NOTHING_GATHERED, type State } from "./state.js";

const [BETA_1, BETA_2] = [0.9, 0.999] as const;
const ADAM_EPSILON = 1e-8;

/** A prediction in numbers: logits [B,K], weights [B,N] of all modules, and the selected ones, heaviest first. */
export interface Blend {
  readonly logits: Matrix;
  readonly weights: Matrix;
  readonly order: readonly number[];
}

/** The softmax of the logits. */
export function probabilitiesOf(blend: Blend): Matrix {
  return softmax(blend.logits);
}

/** Where the modules that ran stand among all. */
export function columnsOf(modules: Modules, passed: Pass): number[] {
  return passed.names.map((n) => modules.names.indexOf(n));
}

/** Weights [B,n] of the modules that ran as [B,N] of all; those that did not have 0. */
export function widened(modules: Modules, passed: Pass, weight: Matrix): Matrix {
  const columns = columnsOf(modules, passed);
  const wide = new Matrix(weight.rows, modules.names.length);
  for (let i = 0; i < weight.rows; i++) columns.forEach((column, j) => (wide.row(i)[column] = weight.row(i)[j]!));
  return wide;
}

/** The other way: weights of the modules that ran, in the order of the pass. */
export function narrowed(modules: Modules, passed: Pass, wide: Matrix): Matrix {
  const columns = columnsOf(modules, passed);
  return Matrix.stack(Array.from({ length: wide.rows }, (_, i) => columns.map((c) => wide.row(i)[c]!)), columns.length);
}

/** Lines 12 to 14: batch mean, top M, rescale; then the prediction, Σ w_j l_j over the selected. */
export function blend(modules: Modules, passed: Pass, weight: Matrix, config: AdaptConfig): { blend: Blend; order: number[] } {
  const { kept, order } = select(weight, config.top_m);
  const logits = new Matrix(weight.rows, passed.said.get(passed.names[0]!)!.logits.cols);
  logitsOf(passed).forEach((l, j) => {
    l.data.forEach((v, at) => (logits.data[at]! += kept.row(Math.floor(at / l.cols))[j]! * v));
  });
  const columns = columnsOf(modules, passed);
  return { blend: { logits, weights: widened(modules, passed, kept), order: order.map((j) => columns[j]!) }, order };
}

/** Gradient steps on the mean entropy of the mixed pseudo-labels; the first takes the mean of all that was gathered. */
export function updateSelector(
  state: State,
  passed: Pass,
  config: AdaptConfig,
): { entropyBefore: number; gathered: Gathered; state: State } {
  const logits = logitsOf(passed);
  if (!config.selector) {
    const entropyBefore = mixedEntropy(weights(state.selector, passed.xHat, logits), passed);
    return { entropyBefore, gathered: state.gathered, state };
  }
  const found = entropyGradient(state.selector, passed.xHat, logits);
  const batch = passed.xHat.rows;
  const total = new Map<string, Float64Array>();
  for (const name of TENSORS) {
    const before = state.gathered.selector.get(name);
    total.set(name, found.gradient[name].map((v, i) => (before?.[i] ?? 0) + batch * v));
  }
  const gathered: Gathered = { ...state.gathered, selector: total, samples: state.gathered.samples + batch };
  let gradient: ReadonlyMap<string, Float64Array> = new Map(
    [...total].map(([name, sum]) => [name, sum.map((v) => v / gathered.samples)]),
  );
  const tensors = new Map(TENSORS.map((name) => [name as string, Float64Array.from(state.selector[name].data)]));
  let moments = state.moments;
  for (let turn = 0; turn < config.selector_steps; turn++) {
    if (turn) {
      const again = entropyGradient(narrow(state.selector, tensors), passed.xHat, logits).gradient;
      gradient = new Map(TENSORS.map((name) => [name, again[name]]));
    }
    if (config.selector_optimizer === "adam") [gradient, moments] = adam(gradient, moments);
    for (const [name, value] of tensors) {
      tensors.set(name, value.map((v, i) => v - config.selector_lr * gradient.get(name)![i]!));
    }
  }
  const updated = { ...state, selector: narrow(state.selector, tensors), moments, gathered: NOTHING_GATHERED };
  return { entropyBefore: found.entropy, gathered, state: updated };
}

function narrow(like: SelectorWeights, tensors: ReadonlyMap<string, Float64Array>): SelectorWeights {
  const found = TENSORS.map((name) => [name, { shape: like[name].shape, data: Float32Array.from(tensors.get(name)!) }]);
  return Object.fromEntries(found) as SelectorWeights;
}

/** The direction of Adam's step, and its memory: m, v and the count t. */
function adam(gradient: ReadonlyMap<string, Float64Array>, moments: Moments): [Map<string, Float64Array>, Moments] {
  const t = (moments.get("t")?.[0] ?? 0) + 1;
  const direction = new Map<string, Float64Array>();
  const memory = new Map([["t", Float64Array.of(t)]]);
  for (const [name, value] of gradient) {
    const m = value.map((g, i) => BETA_1 * (moments.get(`m.${name}`)?.[i] ?? 0) + (1 - BETA_1) * g);
    const v = value.map((g, i) => BETA_2 * (moments.get(`v.${name}`)?.[i] ?? 0) + (1 - BETA_2) * g ** 2);
    direction.set(name, m.map((one, i) => one / (1 - BETA_1 ** t) / (Math.sqrt(v[i]! / (1 - BETA_2 ** t)) + ADAM_EPSILON)));
    memory.set(`m.${name}`, m).set(`v.${name}`, v);
  }
  return [direction, memory];
}
