/** What a module's source looked like to it: the statistics that a device compares its stream with. */

import { PlutoError } from "./errors.js";
import { allFinite, cholesky, Matrix, matmulT, solveLower, squaredDistances } from "./linear.js";
import type { Stored } from "./safetensors.js";

const PREFIX = "signature.";
const NUMBERS = ["feature_noise", "look_noise", "temperature", "sharpness", "images"] as const;

export interface Signature extends Readonly<Record<(typeof NUMBERS)[number], number>> {
  readonly classMeans: Matrix; // [K,d]
  readonly featureFactor: Matrix; // covariance of the features within a class: a few directions
  readonly activationMean: Float32Array; // [L+1,d], of what the head would pool after every block, then of features
  readonly activationStd: Float32Array;
  readonly lookMean: Float64Array; // [d], of x̂
  readonly lookFactor: Matrix;
}

/** The signature among a module's tensors; null where there is none. */
export function findSignature(tensors: ReadonlyMap<string, Stored>, where: string): Signature | null {
  if (![...tensors.keys()].some((name) => name.startsWith(PREFIX))) return null;
  const of = (name: string) => {
    const found = tensors.get(PREFIX + name);
    if (!found) throw new PlutoError(`${where}: tensor ${PREFIX}${name} is missing; a signature is whole or not there`);
    if (!allFinite(found.data as Float32Array)) throw new PlutoError(`${where}: ${PREFIX}${name} is not finite`);
    return found;
  };
  const matrix = (name: string) => {
    const { shape, data } = of(name);
    return Matrix.of(shape[0]!, shape[1]!, data);
  };
  const values = of("numbers").data;
  const numbers = Object.fromEntries(NUMBERS.map((name, i) => [name, values[i]!])) as Record<(typeof NUMBERS)[number], number>;
  const wrong = NUMBERS.find((name) => !(numbers[name] > 0));
  if (wrong) throw new PlutoError(`${where}: ${PREFIX}numbers: want ${wrong} above 0, got ${numbers[wrong]}`);
  return {
    ...numbers,
    classMeans: matrix("class_means"),
    featureFactor: matrix("feature_factor"),
    activationMean: of("activation_mean").data as Float32Array,
    activationStd: of("activation_std").data as Float32Array,
    lookMean: Float64Array.from(of("look_mean").data),
    lookFactor: matrix("look_factor"),
  };
}

/** Fᵀ F + noise I of a factor F [r,d]: a covariance. */
export function covariance(factor: Matrix, noise: number): Matrix {
  const width = factor.cols;
  const out = new Matrix(width, width);
  for (let k = 0; k < factor.rows; k++) {
    const row = factor.row(k);
    for (let i = 0; i < width; i++) {
      const to = out.row(i);
      for (let j = 0; j < width; j++) to[j]! += row[i]! * row[j]!;
    }
  }
  for (let i = 0; i < width; i++) out.data[i * width + i]! += noise;
  return out;
}

/**
 * A signature made ready. With Σ = FᵀF + ν I the squared distance is (|v|² - |A v|²) / ν, where A = C⁻¹ F and
 * C Cᵀ = F Fᵀ + ν I: two small matrix products.
 */
export class Reference {
  readonly means: Matrix;
  private readonly inner: Matrix;

  constructor(
    readonly signature: Signature,
    readonly head: Matrix, // [K,d]
  ) {
    const factor = signature.featureFactor;
    const gram = matmulT(factor, factor);
    for (let i = 0; i < gram.rows; i++) gram.data[i * gram.cols + i]! += signature.feature_noise;
    this.inner = solveLower(cholesky(gram), factor);
    this.means = signature.classMeans;
  }

  /** Squared, of features [B,d] from points [K,d], per channel: [B,K]. */
  distances(features: Matrix, points: Matrix): Matrix {
    const along = squaredDistances(matmulT(features, this.inner), matmulT(points, this.inner));
    const each = this.signature.feature_noise * features.cols;
    return squaredDistances(features, points).map((plain, i) => Math.max(plain - along.data[i]!, 0) / each);
  }
}
