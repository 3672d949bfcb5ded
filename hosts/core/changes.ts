/** Has the camera come to see something else? A cheap test on what every prediction gives anyway. */

import { max } from "./linear.js";

const WINDOW = 16; // recent frames
const HISTORY = 32; // frames before those, at least, to compare with
const HORIZON = 256; // frames that the past's mean and variance reach back
const SIGMAS = 5; // that the recent mean must be away from the past's,
const SHIFT = 0.1; // and at least so far: of ln K for the entropy, of 1 for a weight
const LOOKS = 0.4; // mean square shift of x̂, in deviations of single frames

/** Compares the mean of the last frames' signals (entropy, weights, x̂) with that of the frames before them. */
export class ChangeDetector {
  private readonly names: readonly string[];
  private recent: Float64Array[] = [];
  private counts: [number, number] = [0, 0]; // frames in the past: of entropy and weights, and of x̂
  private mean = new Float64Array(0);
  private square = new Float64Array(0);

  constructor(names: readonly string[] = []) {
    this.names = ["entropy", ...names];
  }

  /** The next frames are predicted by other modules; those in the window do not count for the past either. */
  otherModules(): void {
    this.counts[0] = -this.recent.length;
  }

  /** Take one frame's signals; says what has changed, or nothing. */
  update(entropy: number, weights: ArrayLike<number>, xHat: ArrayLike<number>): string {
    if (this.recent.length === WINDOW) this.remember(this.recent.shift()!);
    this.recent.push(Float64Array.from([entropy, ...Array.from(weights), ...Array.from(xHat)]));
    if (this.recent.length < WINDOW || this.counts[1] < HISTORY) return "";
    const change = this.compare();
    if (change) {
      this.counts = [0, 0];
      this.recent = [];
    }
    return change;
  }

  private compare(): string {
    const known = this.names.length;
    const now = this.mean.map((_, i) => this.recent.reduce((t, r) => t + r[i]!, 0) / WINDOW);
    const shift = now.map((v, i) => v - this.mean[i]!);
    const past = this.square.map((v, i) => Math.max(v - this.mean[i]! ** 2, 0));
    const moved: number[] = [];
    for (let i = 0; i < known && this.counts[0] >= HISTORY; i++) {
      const varies = this.recent.reduce((t, r) => t + (r[i]! - now[i]!) ** 2, 0) / WINDOW;
      const error = Math.sqrt((past[i]! + varies) / WINDOW) + 1e-9;
      if (Math.abs(shift[i]!) > Math.max(SIGMAS * error, SHIFT)) moved.push(i);
    }
    moved.sort((a, b) => Math.abs(shift[b]!) - Math.abs(shift[a]!));
    const text = moved.slice(0, 3).map((i) => `${this.names[i]} ${this.mean[i]!.toFixed(2)} to ${now[i]!.toFixed(2)}`);
    let total = 0;
    let varying = 0;
    for (let i = known; i < shift.length; i++) {
      if (past[i]! <= 1e-12) continue;
      total += shift[i]! ** 2 / past[i]!;
      varying += 1;
    }
    const looks = varying ? total / varying : 0;
    if (looks > LOOKS) text.push(`looks ${Math.sqrt(looks).toFixed(1)} deviations away`);
    return text.join(", ");
  }

  private remember(signals: Float64Array): void {
    this.counts = this.counts.map((n) => Math.min(n + 1, HORIZON)) as [number, number];
    if (this.mean.length !== signals.length) {
      this.mean = new Float64Array(signals.length);
      this.square = new Float64Array(signals.length);
    }
    signals.forEach((value, i) => {
      const share = 1 / max([this.counts[i < this.names.length ? 0 : 1]!, 1]);
      this.mean[i]! += share * (value - this.mean[i]!);
      this.square[i]! += share * (value ** 2 - this.square[i]!);
    });
  }
}
