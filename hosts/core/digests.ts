/** Hashes as Python's runtime computes them, so that what was learned here can be used there, and the other way. */

import { PlutoError } from "./errors.js";
import type { Stored, Values } from "./safetensors.js";

/** In hexadecimal digits. */
export async function sha256(bytes: Uint8Array): Promise<string> {
  if (!globalThis.crypto?.subtle) {
    throw new PlutoError("this page may not compute hashes: open it from https:// or from http://localhost");
  }
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as BufferSource));
  return Array.from(found, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** numpy's name of a type. */
export function dtype(values: Values): string {
  return values instanceof Float64Array ? "float64" : values instanceof Float32Array ? "float32" : "uint8";
}

/** A shape as Python writes a tuple. */
export function tuple(shape: readonly number[]): string {
  return shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`;
}

/** Texts and bytes one after the other. */
export function concatenated(parts: readonly (string | Uint8Array)[]): Uint8Array {
  const bytes = parts.map((p) => (typeof p === "string" ? new TextEncoder().encode(p) : p));
  const out = new Uint8Array(bytes.reduce((n, b) => n + b.length, 0));
  let at = 0;
  for (const part of bytes) {
    out.set(part, at);
    at += part.length;
  }
  return out;
}

export function bytesOf(values: Values): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

/** Of all tensors of a module: what was learned with it is of use to that very module only. */
export function tensorsDigest(tensors: ReadonlyMap<string, Stored>): Promise<string> {
  const parts = [...tensors.keys()].sort().flatMap((name) => {
    const { shape, data } = tensors.get(name)!;
    return [`${name} ${dtype(data)} ${tuple(shape)} `, bytesOf(data)];
  });
  return sha256(concatenated(parts));
}
