/**
 * Class prototypes that follow the stream. No gradient, no second pass, no label. runtime/algorithm/prototypes.py has
 * the model:
 *
 *     a_k   = κ n_k / (κ + n_k)                              how much class k has to say of the common move
 *     δ'    = Σ a_k (m_k - c_k) / (κ₀ + Σ a_k)               the common move, class by class
 *     δ     = (κ₁ δ' + n (m - c)) / (κ₁ + n)                 with the mean m of all images, where it can be trusted
 *     c'_k  = (κ (c_k + δ) + n_k m_k) / (κ + n_k)            the prototype now
 */

import { allFinite, columnMeans, dot, Matrix, max, softmax, sum, TINY } from "./linear.js";
import type { Pass } from "./network.js";
import type { Reference } from "./signature.js";

const KAPPA = 10;
const COMMON = 100; // κ₀
const ANY = 50; // κ₁
export const SURE = 0.7; // probability from which on an image counts for its class
const HORIZON = 512; // images that the means reach back
const BLUNT = 0.1; // sharpness beyond it is cut
const ALONG = 5; // what the cosine between an image and a prototype counts where one module speaks, in nats
const FAR = 4; // in deviations: images that are farther from every prototype count less
export const DRIFT = 64; // images whose mean is as uncertain as a known domain may drift

type References = ReadonlyMap<string, Reference>;

/** What was surely of each class: how many images, and the sum of their features; and the same of all images. */
export interface Seen {
  readonly counts: Float64Array; // [K]
  readonly sums: Matrix; // [K,d]
  readonly count: number;
  readonly total: Float64Array; // [d]
}

function nothing(reference: Reference): Seen {
  const { rows, cols } = reference.means;
  return { counts: new Float64Array(rows), sums: new Matrix(rows, cols), count: 0, total: new Float64Array(cols) };
}

/** Σ a_k (m_k - c_k), and Σ a_k. */
function moved(seen: Seen, means: Matrix): { sum: Float64Array; say: number } {
  const out = new Float64Array(means.cols);
  let all = 0;
  for (let k = 0; k < means.rows; k++) {
    const n = seen.counts[k]!;
    const say = (KAPPA * n) / (KAPPA + n);
    all += say;
    if (n > 0) for (let d = 0; d < means.cols; d++) out[d]! += say * (seen.sums.row(k)[d]! / n - means.row(k)[d]!);
  }
  return { sum: out, say: all };
}

/** By module: each has its own features, and not all run on every image. Never changed in place. */
export class Prototypes {
  constructor(readonly modules: ReadonlyMap<string, Seen> = new Map()) {}

  get finite(): boolean {
    const whole = (s: Seen) => allFinite(s.counts) && s.sums.finite && Number.isFinite(s.count) && allFinite(s.total);
    return [...this.modules.values()].every(whole);
  }

  /** As if so many of the images had been seen: nearer to the source. */
  times(share: number): Prototypes {
    const less = (s: Seen): Seen => ({
      counts: s.counts.map((v) => v * share),
      sums: s.sums.map((v) => v * share),
      count: s.count * share,
      total: s.total.map((v) => v * share),
    });
    return new Prototypes(new Map([...this.modules].map(([name, seen]) => [name, less(seen)])));
  }

  /** After a step that moved a module's features by [d] on average: what was seen of them moves along. */
  carried(name: string, by: Float64Array): Prototypes {
    const seen = this.modules.get(name);
    if (!seen) return this;
    const sums = seen.sums.map((v, at) => v + seen.counts[Math.floor(at / by.length)]! * by[at % by.length]!);
    const total = seen.total.map((v, d) => v + seen.count * by[d]!);
    return new Prototypes(new Map(this.modules).set(name, { ...seen, sums, total }));
  }

  private seen(name: string, reference: Reference): Seen {
    return this.modules.get(name) ?? nothing(reference);
  }

  /** The common move δ [d], and the prototypes as they are now [K,d]. */
  move(name: string, reference: Reference): { delta: Float64Array; points: Matrix } {
    const seen = this.seen(name, reference);
    const { means } = reference;
    const { sum: common, say } = moved(seen, means);
    const centre = columnMeans(means);
    const delta = common.map(
      (v, d) => ((ANY * v) / (COMMON + say) + seen.total[d]! - seen.count * centre[d]!) / (ANY + seen.count),
    );
    const points = means.map((v, at) => {
      const n = seen.counts[Math.floor(at / means.cols)]!;
      return (KAPPA * (v + delta[at % means.cols]!) + seen.sums.data[at]!) / (KAPPA + n);
    });
    return { delta, points };
  }

  /** How far the stream's features have moved from the module's source; chance alone makes it about 1. */
  misfit(name: string, reference: Reference): number {
    const seen = this.seen(name, reference);
    const { sum: common, say } = moved(seen, reference.means);
    if (say < 1) return 0;
    const delta = new Matrix(1, common.length, common.map((v) => v / say));
    const far = reference.distances(delta, new Matrix(1, common.length)).data[0]!;
    return far / (1 / sum(seen.counts) + 1 / DRIFT + 1 / reference.signature.images);
  }

  /** Probabilities [B,K] of the modules of a pass with their weights [B,n]. */
  predict(references: References, passed: Pass, weights: Matrix): Matrix {
    const classes = passed.said.get(passed.names[0]!)!.logits.cols;
    const direction = Float64Array.from({ length: weights.rows }, (_, i) => {
      const row = weights.row(i);
      return (ALONG * dot(row, row)) / Math.max(sum(row) ** 2, TINY);
    });
    const byHead = new Matrix(weights.rows, classes);
    const byDistance = new Matrix(weights.rows, classes);
    passed.names.forEach((name, column) => {
      const weight = (i: number) => weights.row(i)[column]!;
      if (max(Float64Array.from({ length: weights.rows }, (_, i) => weight(i))) === 0) return;
      const { logits, features } = passed.said.get(name)!;
      const reference = references.get(name);
      const add = (to: Matrix, p: Matrix) => p.data.forEach((v, at) => (to.data[at]! += weight(Math.floor(at / classes)) * v));
      if (!reference) {
        add(byHead, softmax(logits));
        add(byDistance, new Matrix(logits.rows, classes, new Float64Array(logits.data.length).fill(1 / classes)));
        return;
      }
      const { temperature, sharpness } = reference.signature;
      const { delta, points } = this.move(name, reference);
      const off = Float64Array.from({ length: classes }, (_, k) => dot(reference.head.row(k), delta));
      add(byHead, softmax(logits.map((v, at) => (v - off[at % classes]!) / temperature)));
      const centre = columnMeans(reference.means).map((v, d) => v + delta[d]!);
      const along = cosines(features, points, centre);
      const far = reference.distances(features, points);
      add(byDistance, softmax(far.map((v, at) => direction[Math.floor(at / classes)]! * along.data[at]! - v / (2 * Math.min(sharpness, BLUNT)))));
    });
    const both = byHead.map((v, at) => v * byDistance.data[at]! + TINY);
    const totals = Float64Array.from({ length: both.rows }, (_, i) => sum(both.row(i)));
    return both.map((v, at) => v / totals[Math.floor(at / classes)]!);
  }

  /**
   * With one more batch, as it was predicted; an image counts for a module as the module did for it. `independence` is
   * how far the classes come at random; every image stands for as many as `times` says.
   */
  learn(references: References, passed: Pass, weights: Matrix, probabilities: Matrix, independence: number, times = 1): Prototypes {
    const modules = new Map(this.modules);
    passed.names.forEach((name, column) => {
      const reference = references.get(name);
      if (!reference) return;
      const { features } = passed.said.get(name)!;
      const far = reference.distances(features, this.move(name, reference).points);
      const old = this.seen(name, reference);
      const counts = Float64Array.from(old.counts);
      const sums = Matrix.of(old.sums.rows, old.sums.cols, old.sums.data);
      const total = Float64Array.from(old.total);
      let count = old.count;
      for (let i = 0; i < features.rows; i++) {
        const nearest = Math.sqrt(Math.min(...far.row(i)));
        const near = Math.min(1, (FAR / Math.max(nearest, FAR)) ** 2);
        const leading = Math.max(max(weights.row(i)), TINY);
        const counted = ((times * weights.row(i)[column]!) / leading) * near;
        const feature = features.row(i);
        probabilities.row(i).forEach((p, k) => {
          if (p <= SURE) return;
          counts[k]! += p * counted;
          for (let d = 0; d < feature.length; d++) sums.row(k)[d]! += p * counted * feature[d]!;
        });
        count += independence * counted;
        for (let d = 0; d < feature.length; d++) total[d]! += independence * counted * feature[d]!;
      }
      const share = Math.min(1, HORIZON / Math.max(sum(counts), 1));
      const other = Math.min(1, HORIZON / Math.max(count, 1));
      modules.set(name, {
        counts: counts.map((v) => v * share),
        sums: sums.map((v) => v * share),
        count: count * other,
        total: total.map((v) => v * other),
      });
    });
    return new Prototypes(modules);
  }
}

/** Of the angles between features [B,d] and points [K,d], as seen from the centre [d]: [B,K]. */
function cosines(features: Matrix, points: Matrix, centre: Float64Array): Matrix {
  const from = (m: Matrix) => m.map((v, at) => v - centre[at % m.cols]!);
  const here = from(features);
  const there = from(points);
  const length = (row: Float64Array) => Math.sqrt(dot(row, row));
  const out = new Matrix(here.rows, there.rows);
  for (let i = 0; i < here.rows; i++) {
    for (let k = 0; k < there.rows; k++) {
      const both = length(here.row(i)) * length(there.row(k));
      out.row(i)[k] = dot(here.row(i), there.row(k)) / Math.max(both, TINY);
    }
  }
  return out;
}
