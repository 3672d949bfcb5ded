/**
 * Which module's domain is this? Evidence from how the recent images look, before any module has run.
 *
 * In coordinates in which the modules' average covariance of x̂ is the identity, a domain is a point y_j with a spread
 * e_j. The recent images are taken as a mixture of the known domains; what does not fit any of them is unknown. The
 * reasons for the numbers are in runtime/algorithm/evidence.py.
 */

import { cholesky, columnMeans, dot, identity, Matrix, matmul, matmulT, sigmoid, softmax, solveLower, squaredDistances, tmatmul } from "./linear.js";
import { DRIFT } from "./prototypes.js";
import { covariance, type Signature } from "./signature.js";

export const WINDOW = 64; // recent images
const FLOOR = 0.1; // of the mean variance, that every direction gets
const TEMPER = 2; // divides log-likelihoods
const ROUNDS = 12; // of expectation maximisation
const LEAST = 0.15; // of the recent images: a domain with a smaller share is taken for chance
const [FITS, FEW, CHANCE] = [0.85, 1.5, 1.5] as const;
const SOFT = 0.1;
const [MOVED, MOVED_SOFT] = [1.8, 0.1] as const;
export const SHORTLIST = 15; // specialists that are asked about what no domain is known to fit, where there are more
export const STAKES = 10; // what a wrong specialist loses against a generalist, over what the right one gains

export class Domains {
  private constructor(
    readonly names: readonly string[],
    private readonly origin: Float64Array,
    private readonly whiten: Matrix, // [d,d]
    private readonly points: Matrix, // [N,d], y_j
    private readonly spreads: Float64Array, // [N], e_j
    private readonly directions: Float64Array, // [N], how many a domain really varies in
  ) {}

  /** null where no module has a signature. */
  static of(signatures: ReadonlyMap<string, Signature>): Domains | null {
    const all = [...signatures.values()];
    if (!all.length) return null;
    const width = all[0]!.lookMean.length;
    const pooled = new Matrix(width, width);
    for (const s of all) covariance(s.lookFactor, s.look_noise).data.forEach((v, i) => (pooled.data[i]! += v / all.length));
    let trace = 0;
    for (let i = 0; i < width; i++) trace += pooled.data[i * width + i]!;
    for (let i = 0; i < width; i++) pooled.data[i * width + i]! += (FLOOR * trace) / width;
    const half = solveLower(cholesky(pooled), identity(width)); // pooled⁻¹ = halfᵀ half
    const whiten = cholesky(tmatmul(half, half));
    const origin = columnMeans(Matrix.stack(all.map((s) => s.lookMean), width));
    const points = matmul(centred(Matrix.stack(all.map((s) => s.lookMean), width), origin), whiten);
    const gram = tmatmul(whiten, whiten);
    const found = all.map((s) => spreadOf(s, whiten, gram));
    return new Domains(
      [...signatures.keys()],
      origin,
      whiten,
      points,
      Float64Array.from(found, (f) => f.trace / width),
      Float64Array.from(found, (f) => f.directions),
    );
  }

  /**
   * How much of each image belongs to each domain, given the recent ones (x̂, with the images among them or not; where
   * there are none, the images themselves): [B,N], rows sum to at most 1. What is missing is unknown. `stakes` is how
   * much more a wrong domain loses than the right one gains; where the recent images are of several domains, the odds
   * of each are divided by it.
   */
  weigh(recent: Matrix, images: Matrix, stakes = 1): Matrix {
    const count = this.names.length;
    const context = matmul(centred(recent.rows ? recent : images, this.origin), this.whiten);
    const likelihoods = this.logLikelihoods(context);
    let shares = new Float64Array(count).fill(1 / count);
    let belongs = likelihoods;
    for (let round = 0; round < ROUNDS; round++) {
      belongs = softmax(likelihoods.map((v, at) => v + Math.log(shares[at % count]!)));
      shares = columnMeans(belongs).map((v) => Math.max(v - LEAST, 1e-12));
      const total = shares.reduce((a, b) => a + b, 0);
      shares = shares.map((v) => v / total);
    }
    const here = this.logLikelihoods(matmul(centred(images, this.origin), this.whiten));
    const fit = this.fit(context, belongs);
    const found = softmax(here.map((v, at) => v + Math.log(shares[at % count]!))).map((v, at) => v * fit[at % count]!);
    const entropy = -shares.reduce((total, v) => total + v * Math.log(v), 0);
    const mixed = Math.min(Math.exp(entropy) - 1, 1); // 0 for one domain, 1 for two and more
    return found.map((v) => v / (v + stakes ** mixed * (1 - v)));
  }

  /** So many domains, those that make the recent images most likely. */
  nearest(recent: Matrix, count: number): string[] {
    const likely = columnMeans(this.logLikelihoods(matmul(centred(recent, this.origin), this.whiten)));
    const order = this.names.map((_, j) => j).sort((a, b) => likely[b]! - likely[a]! || a - b);
    return order.slice(0, count).map((j) => this.names[j]!);
  }

  private logLikelihoods(rows: Matrix): Matrix {
    const width = this.points.cols;
    return squaredDistances(rows, this.points).map((far, at) => {
      const spread = this.spreads[at % this.names.length]!;
      return -(far / spread + width * Math.log(spread)) / (2 * TEMPER);
    });
  }

  /** Trust that the images which would belong to a domain are of it. */
  private fit(rows: Matrix, belongs: Matrix): Float64Array {
    const means = tmatmul(belongs, rows);
    const counts = columnMeans(belongs).map((v) => Math.max(v * belongs.rows, 1e-9));
    return Float64Array.from(this.names, (_, j) => {
      const away = means.row(j).map((v, i) => v / counts[j]! - this.points.row(j)[i]!);
      const far = dot(away, away) / away.length / (this.spreads[j]! * (1 / counts[j]! + 1 / DRIFT));
      const bound = FITS + FEW / Math.sqrt(Math.max(counts[j]!, 1)) + CHANCE * Math.sqrt(2 / this.directions[j]!);
      return sigmoid((bound - far) / SOFT);
    });
  }
}

/** In a module whose features on the stream have moved so far from its source's. */
export function trust(misfit: number): number {
  return sigmoid((MOVED - misfit) / MOVED_SOFT);
}

function centred(rows: Matrix, origin: Float64Array): Matrix {
  return rows.map((v, at) => v - origin[at % rows.cols]!);
}

/**
 * Trace of M = Wᵀ (FᵀF + ν I) W, and how many directions it varies in, trace² / |M|². With A = F W and G = WᵀW these
 * are |A|² + ν tr G and |A Aᵀ|² + 2 ν tr(A G Aᵀ) + ν² |G|², which takes no product of two matrices of width d.
 */
function spreadOf(s: Signature, whiten: Matrix, gram: Matrix): { trace: number; directions: number } {
  const width = whiten.rows;
  const a = matmul(s.lookFactor, whiten);
  const inner = matmulT(a, a);
  const cross = dot(matmul(a, gram).data, a.data);
  let traceOfGram = 0;
  for (let i = 0; i < width; i++) traceOfGram += gram.data[i * width + i]!;
  const trace = Math.max(dot(a.data, a.data) + s.look_noise * traceOfGram, 1e-6 * width);
  const square = dot(inner.data, inner.data) + 2 * s.look_noise * cross + s.look_noise ** 2 * dot(gram.data, gram.data);
  return { trace, directions: Math.max(trace ** 2 / Math.max(square, 1e-12), 1) };
}
