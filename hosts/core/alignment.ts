/**
 * Activations brought back to the source's statistics: a batch's loss, and its gradient in two numbers a channel. At a
 * sample's activation a the gradient is offset + slope a, so pieces of a batch can be differentiated one by one.
 */

import { TINY_32 } from "./linear.js";

const FLAT = 1e-5; // of a channel's mean: a smaller deviation is rounding

export interface Alignment {
  readonly loss: number;
  readonly excess: number; // the loss as a multiple of what as many images of the source would have by chance
  readonly offset: Float32Array; // [L+1,d]
  readonly slope: Float32Array;
}

/** Σ_l mean_d (m_l - mean_l)² + mean_d (s_l - std_l)², with m and s of the activations of `count` samples. */
export function align(activations: Float32Array, count: number, width: number, source: { mean: Float32Array; std: Float32Array }): Alignment {
  const size = activations.length / count;
  const share = 2 / (count * width);
  const offset = new Float32Array(size);
  const slope = new Float32Array(size);
  let loss = 0;
  let chance = 0;
  for (let at = 0; at < size; at++) {
    let m = 0;
    for (let i = 0; i < count; i++) m += activations[i * size + at]!;
    m /= count;
    let variance = 0;
    for (let i = 0; i < count; i++) variance += (activations[i * size + at]! - m) ** 2;
    const s = Math.sqrt(variance / count);
    const byMean = m - source.mean[at]!;
    const byStd = s - source.std[at]!;
    const own = s <= FLAT * Math.abs(m) ? 0 : (share * byStd) / s;
    offset[at] = share * byMean - own * m;
    slope[at] = own;
    loss += (byMean ** 2 + byStd ** 2) / width;
    chance += source.std[at]! ** 2 / width;
  }
  return { loss, excess: loss / Math.max((1.5 / count) * chance, TINY_32), offset, slope };
}
