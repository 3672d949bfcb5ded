/** λ of one module: LayerNorm scale and bias, [2L+1, d] each, in float32. Also its gradient, and its momentum. */

import { allFinite } from "./linear.js";

export class Affines {
  constructor(
    readonly scale: Float32Array,
    readonly bias: Float32Array,
  ) {}

  /** this + factor * other, rounded as float32 rounds it. */
  plus(other: Affines, factor: number): Affines {
    const f = Math.fround(factor);
    const add = (a: Float32Array, b: Float32Array) => a.map((v, i) => v + Math.fround(f * b[i]!));
    return new Affines(add(this.scale, other.scale), add(this.bias, other.bias));
  }

  times(factor: number): Affines {
    const f = Math.fround(factor);
    return new Affines(this.scale.map((v) => v * f), this.bias.map((v) => v * f));
  }

  /** A share of the way from here to `other`. */
  towards(other: Affines, share: number): Affines {
    return other.plus(this.plus(other, -1), 1 - share);
  }

  /** No farther from `other` than this share of its norm. */
  near(other: Affines, radius: number): Affines {
    const distance = this.plus(other, -1).norm;
    const most = radius * other.norm;
    return distance <= most ? this : this.towards(other, 1 - most / distance);
  }

  /** Zero outside of these rows of `width` values. */
  only(rows: readonly number[] | null, width: number): Affines {
    if (rows === null) return this;
    const keep = (values: Float32Array) => values.map((v, i) => (rows.includes(Math.floor(i / width)) ? v : 0));
    return new Affines(keep(this.scale), keep(this.bias));
  }

  /** The Euclidean norm of scale and bias together. */
  get norm(): number {
    let total = 0;
    for (const values of [this.scale, this.bias]) for (const v of values) total += v * v;
    return Math.sqrt(total);
  }

  get finite(): boolean {
    return allFinite(this.scale) && allFinite(this.bias);
  }
}
