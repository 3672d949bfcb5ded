/**
 * The module selector G, in float64.
 *
 * h_x = LN(W_uxᵀ silu(W_dxᵀ x̂)), h_lj = LN(W_ulᵀ silu(W_dlᵀ l_j)), w_j = softmax_j(h_lj · h_x)
 */

import { columnMeans, dot, entropies, Matrix, matmul, matmulT, mean, sigmoid, softmax, sum, TINY, tmatmul } from "./linear.js";
import type { Pass } from "./network.js";

const EPSILON = 1e-5;

export interface Weight {
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

export const TENSORS = ["down_x", "up_x", "down_l", "up_l", "scale_x", "bias_x", "scale_l", "bias_l"] as const;
export type TensorName = (typeof TENSORS)[number];
export type SelectorWeights = Readonly<Record<TensorName, Weight>>;
export type SelectorGradient = Record<TensorName, Float64Array>;

/** One side of the selector: LN(silu(value @ down) @ up), with what its gradient needs. */
interface Tower {
  readonly value: Matrix;
  readonly inside: Matrix;
  readonly hidden: Matrix;
  readonly up: Matrix;
  readonly scale: Float32Array;
  readonly normalised: Matrix;
  readonly inverse: Float64Array;
  readonly out: Matrix;
}

function wide({ shape, data }: Weight): Matrix {
  return Matrix.of(shape[0]!, shape[1]!, data);
}

function tower(g: SelectorWeights, side: "x" | "l", value: Matrix): Tower {
  const up = wide(g[`up_${side}`]);
  const scale = g[`scale_${side}`].data;
  const bias = g[`bias_${side}`].data;
  const inside = matmul(value, wide(g[`down_${side}`]));
  const hidden = inside.map((v) => v * sigmoid(v));
  const normalised = matmul(hidden, up);
  const inverse = new Float64Array(normalised.rows);
  for (let i = 0; i < normalised.rows; i++) {
    const row = normalised.row(i);
    const middle = mean(row);
    for (let j = 0; j < row.length; j++) row[j]! -= middle;
    inverse[i] = 1 / Math.sqrt(dot(row, row) / row.length + EPSILON);
    for (let j = 0; j < row.length; j++) row[j]! *= inverse[i]!;
  }
  const out = normalised.map((v, at) => v * scale[at % scale.length]! + bias[at % scale.length]!);
  return { value, inside, hidden, up, scale, normalised, inverse, out };
}

/** Logits [B,K] of n modules as one matrix [B n, K]: an image's modules one after the other. */
function rowsOfLogits(logits: readonly Matrix[]): Matrix {
  const { rows, cols } = logits[0]!;
  const out = new Matrix(rows * logits.length, cols);
  for (let i = 0; i < rows; i++) logits.forEach((l, j) => out.data.set(l.row(i), (i * logits.length + j) * cols));
  return out;
}

function forward(g: SelectorWeights, xHat: Matrix, logits: readonly Matrix[]) {
  const x = tower(g, "x", xHat);
  const l = tower(g, "l", rowsOfLogits(logits));
  const scores = new Matrix(xHat.rows, logits.length);
  for (let i = 0; i < xHat.rows; i++) {
    for (let j = 0; j < logits.length; j++) scores.row(i)[j] = dot(x.out.row(i), l.out.row(i * logits.length + j));
  }
  return { x, l, weights: softmax(scores) };
}

/** Logits of the modules of a pass, in its order. */
export function logitsOf(passed: Pass): Matrix[] {
  return passed.names.map((n) => passed.said.get(n)!.logits);
}

/** The weight of every module for every sample, [B,n]. */
export function weights(g: SelectorWeights, xHat: Matrix, logits: readonly Matrix[]): Matrix {
  return forward(g, xHat, logits).weights;
}

/** The mixed pseudo-labels ŷ = Σ_j w_j softmax(l_j), [B,K]. */
export function mixed(weight: Matrix, logits: readonly Matrix[]): Matrix {
  const out = new Matrix(weight.rows, logits[0]!.cols);
  logits.map(softmax).forEach((p, j) => {
    for (let i = 0; i < out.rows; i++) {
      const w = weight.row(i)[j]!;
      for (let k = 0; k < out.cols; k++) out.row(i)[k]! += w * p.row(i)[k]!;
    }
  });
  return out;
}

/** Their mean entropy. */
export function mixedEntropy(weight: Matrix, passed: Pass): number {
  return mean(entropies(mixed(weight, logitsOf(passed))));
}

/** The mean entropy of the mixed pseudo-labels, and its gradient for every tensor. */
export function entropyGradient(
  g: SelectorWeights,
  xHat: Matrix,
  logits: readonly Matrix[],
): { entropy: number; gradient: SelectorGradient } {
  const f = forward(g, xHat, logits);
  const count = logits.length;
  const p = logits.map(softmax);
  const y = mixed(f.weights, logits);
  const dX = new Matrix(xHat.rows, f.x.out.cols);
  const dL = new Matrix(f.l.out.rows, f.l.out.cols);
  for (let i = 0; i < y.rows; i++) {
    const dMixed = y.row(i).map((v) => -(Math.log(Math.max(v, TINY)) + 1) / y.rows);
    const dWeights = p.map((of) => dot(dMixed, of.row(i)));
    const w = f.weights.row(i);
    const along = sum(dWeights.map((d, j) => d * w[j]!));
    for (let j = 0; j < count; j++) {
      const score = w[j]! * (dWeights[j]! - along);
      const l = f.l.out.row(i * count + j);
      const x = f.x.out.row(i);
      for (let d = 0; d < l.length; d++) {
        dX.row(i)[d]! += score * l[d]!;
        dL.row(i * count + j)[d] = score * x[d]!;
      }
    }
  }
  const x = towerGradient(f.x, dX);
  const l = towerGradient(f.l, dL);
  return {
    entropy: mean(entropies(y)),
    gradient: {
      down_x: x.down, up_x: x.up, scale_x: x.scale, bias_x: x.bias,
      down_l: l.down, up_l: l.up, scale_l: l.scale, bias_l: l.bias,
    },
  };
}

function towerGradient(t: Tower, dOut: Matrix) {
  const projected = new Matrix(dOut.rows, dOut.cols);
  for (let i = 0; i < dOut.rows; i++) {
    const d = dOut.row(i).map((v, j) => v * t.scale[j]!);
    const n = t.normalised.row(i);
    const middle = mean(d);
    const along = dot(d, n) / d.length;
    for (let j = 0; j < d.length; j++) projected.row(i)[j] = (d[j]! - middle - n[j]! * along) * t.inverse[i]!;
  }
  const inside = matmulT(projected, t.up).map((v, at) => {
    const value = t.inside.data[at]!;
    const gate = sigmoid(value);
    return v * gate * (1 + value * (1 - gate));
  });
  const columns = (m: Matrix) => columnMeans(m).map((v) => v * m.rows);
  return {
    down: tmatmul(t.value, inside).data,
    up: tmatmul(t.hidden, projected).data,
    scale: columns(dOut.map((v, at) => v * t.normalised.data[at]!)),
    bias: columns(dOut),
  };
}

/** Indices sorted by falling value; equal ones stay in order. */
export function heaviest(values: ArrayLike<number>): number[] {
  return Array.from({ length: values.length }, (_, i) => i).sort((a, b) => values[b]! - values[a]! || a - b);
}

/**
 * Keep the `topM` modules with the largest mean weight over the batch, rescaled to 1 per sample. Gives weights that
 * are zero outside of the selection, and the selected columns, heaviest first.
 */
export function select(weight: Matrix, topM: number | null): { kept: Matrix; order: number[] } {
  const order = heaviest(columnMeans(weight)).slice(0, Math.min(topM ?? weight.cols, weight.cols));
  const kept = new Matrix(weight.rows, weight.cols);
  for (let i = 0; i < weight.rows; i++) {
    const row = weight.row(i);
    const total = sum(order.map((j) => row[j]!));
    // a sample whose weight lies wholly outside of the selection gets the selection's plain average
    for (const j of order) kept.row(i)[j] = total > 0 ? row[j]! / total : 1 / order.length;
  }
  return { kept, order };
}
