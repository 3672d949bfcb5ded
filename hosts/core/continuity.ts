/**
 * What a camera saw a moment ago it often still sees: one image tells something of the next.
 *
 * A stream is taken for a chain of classes that stay with probability s. A filter runs for each of several s; its weight
 * grows as it foresees the images (runtime/algorithm/continuity.py):
 *
 *     belief_k    ∝ (s · belief_k + (1 - s) / K) · p_k
 *     usual_k     ∝ υ + Σ p_k so far
 *     foreseen    = s · min(Σ belief_k p_k / Σ usual_k p_k, Σ belief_k p_k / usual_k) + 1 - s
 *     weight      ∝ ((1 - α) weight + α prior) · foreseen
 */

import { dot, Matrix, max, mean, sum } from "./linear.js";

const STICKY = [0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99] as const;
const INDEPENDENT = 0.97;
const DOUBT = 0.02;
const ALPHA = 1 / 512;
const UNSEEN = 0.5; // υ: images of each class that count before the first
const HORIZON = 4096; // images that what is usual reaches back
const CAUTION = 5; // the odds that a stream comes in runs are divided by it before neighbours have a say
const PRIOR = Float64Array.from(STICKY, (s) => (s === 0 ? INDEPENDENT : (1 - INDEPENDENT) / (STICKY.length - 1)));

export class Continuity {
  constructor(
    readonly beliefs: Matrix | null = null, // [S,K] for the last image; null before the first
    readonly weights: Float64Array = PRIOR,
    readonly counts: Float64Array | null = null, // [K], how much was said of each class so far
  ) {}

  /** The expected s: 0 where images have nothing to do with each other. */
  get stickiness(): number {
    return dot(this.weights, STICKY);
  }

  /** How much each filter has to say: none but the image itself, until more order was shown than was expected. */
  get say(): Float64Array {
    const sticky = this.weights.map((w, s) => (STICKY[s]! > 0 ? w : 0));
    const total = sum(sticky);
    const before = careful(1 - INDEPENDENT);
    const shown = Math.max(careful(total) - before, 0) / (1 - before);
    return sticky.map((w, s) => (STICKY[s]! > 0 ? (shown * w) / Math.max(total, 1e-300) : 1 - shown));
  }

  /** How far an image's class says nothing of the next: 1 on a shuffled stream, near 0 in long runs. */
  get independence(): number {
    return ((1 - this.stickiness) / (1 + this.stickiness)) ** 2;
  }

  /** The next images [B,K] in the order in which they came: their probabilities, and what is next. */
  follow(probabilities: Matrix): { followed: Matrix; after: Continuity } {
    const classes = probabilities.cols;
    const says = probabilities.map((p) => (1 - DOUBT) * p + DOUBT / classes);
    const { forward, after } = this.forward(says);
    const { say } = after;
    const later = backward(says);
    const followed = new Matrix(says.rows, classes);
    for (let i = 0; i < says.rows; i++) {
      STICKY.forEach((stay, s) => {
        const found = forward[i]!.row(s).map((v, k) => v * later[i]!.row(s)[k]!);
        const total = sum(found);
        for (let k = 0; k < classes; k++) {
          followed.row(i)[k]! += say[s]! * (stay === 0 ? probabilities.row(i)[k]! : found[k]! / total);
        }
      });
    }
    return { followed, after };
  }

  /** Beliefs [S,K] after each image, from it and those before it; and what is next after the last. */
  private forward(says: Matrix): { forward: Matrix[]; after: Continuity } {
    const classes = says.cols;
    let belief = this.beliefs ?? new Matrix(STICKY.length, classes).map(() => 1 / classes);
    let weights = this.weights;
    let counts = this.counts ?? new Float64Array(classes);
    const forward: Matrix[] = [];
    for (let i = 0; i < says.rows; i++) {
      const one = says.row(i);
      const kept = Math.min(1, HORIZON / (sum(counts) + 1));
      counts = counts.map((n, k) => (n + one[k]!) * kept);
      const images = sum(counts);
      const usual = counts.map((n) => (UNSEEN + n) / (UNSEEN * classes + images));
      const guess = dot(usual, one);
      const over = one.map((p, k) => p / usual[k]!);
      const next = new Matrix(STICKY.length, classes);
      weights = weights.map((weight, s) => {
        const stay = STICKY[s]!;
        const before = belief.row(s);
        const joint = before.map((v, k) => (stay * v + (1 - stay) / classes) * one[k]!);
        const total = sum(joint);
        next.data.set(joint.map((v) => v / total), s * classes);
        const foreseen = stay * Math.min(dot(before, one) / guess, dot(before, over)) + (1 - stay);
        return ((1 - ALPHA) * weight + ALPHA * PRIOR[s]!) * foreseen;
      });
      const all = sum(weights);
      weights = weights.map((v) => v / all);
      forward.push((belief = next));
    }
    return { forward, after: new Continuity(belief, weights, counts) };
  }
}

/** The same with odds that are `CAUTION` times worse. */
function careful(probability: number): number {
  return probability / (probability + CAUTION * (1 - probability));
}

/** What the images after each one say of its class, up to a factor: [S,K] each. */
function backward(says: Matrix): Matrix[] {
  const later = [new Matrix(STICKY.length, says.cols).map(() => 1)];
  for (let i = says.rows - 1; i > 0; i--) {
    const before = later[0]!;
    const found = new Matrix(STICKY.length, says.cols);
    STICKY.forEach((stay, s) => {
      const joint = before.row(s).map((v, k) => v * says.row(i)[k]!);
      const middle = mean(joint);
      const row = joint.map((v) => stay * v + (1 - stay) * middle);
      const top = max(row);
      found.data.set(row.map((v) => v / top), s * says.cols);
    });
    later.unshift(found);
  }
  return later;
}
