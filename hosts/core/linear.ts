/** Matrices of float64, row after row, and the few operations that the method needs of them. */

export type Numbers = Float32Array | Float64Array;

/** The smallest positive normal numbers, as numpy's finfo has them. */
export const TINY = 2.2250738585072014e-308;
export const TINY_32 = 1.1754943508222875e-38;

export class Matrix {
  constructor(
    readonly rows: number,
    readonly cols: number,
    readonly data: Float64Array = new Float64Array(rows * cols),
  ) {}

  /** A copy of numbers of any width, as `rows` rows. */
  static of(rows: number, cols: number, data: ArrayLike<number>): Matrix {
    return new Matrix(rows, cols, Float64Array.from(data));
  }

  /** Rows one below the other. */
  static stack(rows: readonly ArrayLike<number>[], cols: number): Matrix {
    const out = new Matrix(rows.length, cols);
    rows.forEach((row, i) => out.data.set(row, i * cols));
    return out;
  }

  /** Matrices one below the other. */
  static join(parts: readonly Matrix[]): Matrix {
    const cols = parts[0]!.cols;
    const out = new Matrix(parts.reduce((n, p) => n + p.rows, 0), cols);
    let at = 0;
    for (const part of parts) {
      out.data.set(part.data, at);
      at += part.data.length;
    }
    return out;
  }

  /** One row; a view, not a copy. */
  row(i: number): Float64Array {
    return this.data.subarray(i * this.cols, (i + 1) * this.cols);
  }

  /** Some of the rows, in this order. */
  take(rows: readonly number[]): Matrix {
    return Matrix.stack(rows.map((i) => this.row(i)), this.cols);
  }

  map(f: (value: number, index: number) => number): Matrix {
    return new Matrix(this.rows, this.cols, this.data.map(f));
  }

  get finite(): boolean {
    return allFinite(this.data);
  }
}

export function allFinite(values: Numbers): boolean {
  for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i])) return false;
  return true;
}

/** a b */
export function matmul(a: Matrix, b: Matrix): Matrix {
  const out = new Matrix(a.rows, b.cols);
  for (let i = 0; i < a.rows; i++) {
    const to = out.row(i);
    for (let k = 0; k < a.cols; k++) {
      const factor = a.data[i * a.cols + k]!;
      if (factor === 0) continue;
      const at = k * b.cols;
      for (let j = 0; j < b.cols; j++) to[j]! += factor * b.data[at + j]!;
    }
  }
  return out;
}

/** a bᵀ */
export function matmulT(a: Matrix, b: Matrix): Matrix {
  const out = new Matrix(a.rows, b.rows);
  for (let i = 0; i < a.rows; i++) for (let j = 0; j < b.rows; j++) out.data[i * b.rows + j] = dot(a.row(i), b.row(j));
  return out;
}

/** aᵀ b */
export function tmatmul(a: Matrix, b: Matrix): Matrix {
  const out = new Matrix(a.cols, b.cols);
  for (let k = 0; k < a.rows; k++) {
    const from = b.row(k);
    for (let i = 0; i < a.cols; i++) {
      const factor = a.data[k * a.cols + i]!;
      if (factor === 0) continue;
      const at = i * b.cols;
      for (let j = 0; j < b.cols; j++) out.data[at + j]! += factor * from[j]!;
    }
  }
  return out;
}

export function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i]! * b[i]!;
  return total;
}

export function sum(values: ArrayLike<number>): number {
  let total = 0;
  for (let i = 0; i < values.length; i++) total += values[i]!;
  return total;
}

export function mean(values: ArrayLike<number>): number {
  return sum(values) / values.length;
}

export function max(values: ArrayLike<number>): number {
  let found = -Infinity;
  for (let i = 0; i < values.length; i++) if (values[i]! > found) found = values[i]!;
  return found;
}

/** The first of the largest. */
export function argmax(values: ArrayLike<number>): number {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i]! > values[best]!) best = i;
  return best;
}

/** Of every column. */
export function columnMeans(m: Matrix): Float64Array {
  const out = new Float64Array(m.cols);
  for (let i = 0; i < m.rows; i++) for (let j = 0; j < m.cols; j++) out[j]! += m.data[i * m.cols + j]!;
  return out.map((v) => v / m.rows);
}

/** |row|² of every row. */
export function squares(m: Matrix): Float64Array {
  return Float64Array.from({ length: m.rows }, (_, i) => dot(m.row(i), m.row(i)));
}

/** |a_i - b_k|² */
export function squaredDistances(a: Matrix, b: Matrix): Matrix {
  const left = squares(a);
  const right = squares(b);
  return matmulT(a, b).map((product, at) => left[Math.floor(at / b.rows)]! - 2 * product + right[at % b.rows]!);
}

/** Along rows. */
export function softmax(m: Matrix): Matrix {
  const out = new Matrix(m.rows, m.cols);
  for (let i = 0; i < m.rows; i++) out.data.set(softmaxRow(m.row(i)), i * m.cols);
  return out;
}

export function softmaxRow(row: ArrayLike<number>): Float64Array {
  const top = max(row);
  const out = Float64Array.from(row, (v) => Math.exp(v - top));
  const total = sum(out);
  return out.map((v) => v / total);
}

/** Shannon entropy of probabilities, in nats; 0 log 0 is 0. */
export function entropy(row: ArrayLike<number>): number {
  let total = 0;
  for (let i = 0; i < row.length; i++) total -= row[i]! * Math.log(Math.max(row[i]!, TINY));
  return total;
}

/** Of every row. */
export function entropies(m: Matrix): Float64Array {
  return Float64Array.from({ length: m.rows }, (_, i) => entropy(m.row(i)));
}

export function sigmoid(x: number): number {
  return 0.5 * (1 + Math.tanh(0.5 * x));
}

/** The lower L with L Lᵀ = a, of a symmetric positive matrix. */
export function cholesky(a: Matrix): Matrix {
  const n = a.rows;
  const out = new Matrix(n, n);
  for (let i = 0; i < n; i++) {
    const here = out.row(i);
    for (let j = 0; j <= i; j++) {
      const there = out.row(j);
      let value = a.data[i * n + j]!;
      for (let k = 0; k < j; k++) value -= here[k]! * there[k]!;
      here[j] = i === j ? Math.sqrt(value) : value / there[j]!;
    }
  }
  return out;
}

/** L⁻¹ b of a lower L. */
export function solveLower(lower: Matrix, b: Matrix): Matrix {
  const out = Matrix.of(b.rows, b.cols, b.data);
  for (let i = 0; i < lower.rows; i++) {
    const here = out.row(i);
    for (let k = 0; k < i; k++) {
      const factor = lower.data[i * lower.cols + k]!;
      const there = out.row(k);
      for (let j = 0; j < b.cols; j++) here[j]! -= factor * there[j]!;
    }
    const pivot = lower.data[i * lower.cols + i]!;
    for (let j = 0; j < b.cols; j++) here[j]! /= pivot;
  }
  return out;
}

export function identity(n: number): Matrix {
  const out = new Matrix(n, n);
  for (let i = 0; i < n; i++) out.data[i * n + i] = 1;
  return out;
}
