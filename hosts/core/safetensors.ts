/** safetensors files: a length, a header in JSON, and the tensors' bytes. Half precision is widened when it is read. */

import { PlutoError } from "./errors.js";

export type Values = Float32Array | Float64Array | Uint8Array;

export interface Stored {
  readonly shape: readonly number[];
  readonly data: Values;
}

export interface Contents {
  readonly tensors: ReadonlyMap<string, Stored>;
  readonly metadata: Readonly<Record<string, string>>;
}

const MOST_HEADER = 100_000_000; // bytes, as in the reference implementation
const BYTES: Record<string, number> = { F16: 2, F32: 4, F64: 8, U8: 1 };

/** What is in a file; anything that is not whole is an error that names the file. */
export function readSafetensors(bytes: Uint8Array, where: string): Contents {
  const broken = (why: string) => new PlutoError(`${where}: not a whole safetensors file (${why})`);
  if (bytes.length < 8) throw broken("it has no header");
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = Number(view.getBigUint64(0, true));
  if (length > MOST_HEADER || 8 + length > bytes.length) throw broken(`its header would have ${length} bytes`);
  let header: unknown;
  try {
    header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(8, 8 + length)));
  } catch (cause) {
    throw broken(`its header is not JSON: ${(cause as Error).message}`);
  }
  if (typeof header !== "object" || header === null) throw broken("its header is no object");
  const tensors = new Map<string, Stored>();
  let metadata: Record<string, string> = {};
  for (const [name, entry] of Object.entries(header as Record<string, any>)) {
    if (name === "__metadata__") {
      metadata = entry as Record<string, string>;
      continue;
    }
    const size = BYTES[entry?.dtype];
    const shape = entry?.shape;
    const [from, to] = Array.isArray(entry?.data_offsets) ? entry.data_offsets : [];
    if (size === undefined) throw broken(`${name}: want F16, F32, F64 or U8, got ${String(entry?.dtype)}`);
    const right = Array.isArray(shape) && shape.every((n: unknown) => Number.isInteger(n) && (n as number) >= 0);
    const count = right ? shape.reduce((n: number, m: number) => n * m, 1) : -1;
    if (!right || !(from >= 0) || to - from !== count * size || 8 + length + to > bytes.length) {
      throw broken(`${name}: shape and place do not fit`);
    }
    const start = bytes.byteOffset + 8 + length + from;
    tensors.set(name, { shape, data: values(entry.dtype, bytes.buffer.slice(start, start + (to - from)) as ArrayBuffer) });
  }
  return { tensors, metadata };
}

function values(dtype: string, buffer: ArrayBuffer): Values {
  if (dtype === "F64") return new Float64Array(buffer);
  if (dtype === "F32") return new Float32Array(buffer);
  if (dtype === "U8") return new Uint8Array(buffer);
  return Float32Array.from(new Uint16Array(buffer), widened);
}

/** A half-precision number, given as its 16 bits. */
function widened(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** The bytes of a file with these tensors. */
export function writeSafetensors(tensors: ReadonlyMap<string, Stored>, metadata: Record<string, string>): Uint8Array {
  const width = (value: Values) => value.BYTES_PER_ELEMENT;
  const order = [...tensors].sort(([a, x], [b, y]) => width(y.data) - width(x.data) || (a < b ? -1 : 1));
  const header: Record<string, unknown> = { __metadata__: metadata };
  let at = 0;
  for (const [name, { shape, data }] of order) {
    const dtype = data instanceof Float64Array ? "F64" : data instanceof Float32Array ? "F32" : "U8";
    header[name] = { dtype, shape, data_offsets: [at, at + data.byteLength] };
    at += data.byteLength;
  }
  let text = JSON.stringify(header);
  const encoder = new TextEncoder();
  text += " ".repeat((8 - (encoder.encode(text).length % 8)) % 8);
  const head = encoder.encode(text);
  const out = new Uint8Array(8 + head.length + at);
  new DataView(out.buffer).setBigUint64(0, BigInt(head.length), true);
  out.set(head, 8);
  let place = 8 + head.length;
  for (const [, { data }] of order) {
    out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), place);
    place += data.byteLength;
  }
  return out;
}
