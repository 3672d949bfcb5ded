/** Golden vectors against this code, on whatever host opens the graphs: `hosts/golden/README.md` has the files. */

import {
  type AdaptConfig, crop, type Event, type Host, ImageBatch, Matrix, type Picture, type Prediction, readSafetensors, Runtime,
} from "../index.js";
import type { Preprocessing } from "../manifest.js";
import type { Stored } from "../safetensors.js";

/** Largest difference that is allowed; relative to the largest value, but for probabilities and weights. */
export interface Tolerance {
  readonly probabilities: number;
  readonly logits: number;
  readonly state: number;
  readonly momentum: number;
}

/**
 * Other kernels add in another order: 1e-6 in a pass, and every step feeds the next. WebAssembly against Python after ten
 * steps: up to 9e-5 in probabilities (where Adam divides small gradients by their size), else 1e-5.
 */
export const FP32: Tolerance = { probabilities: 2e-4, logits: 2e-4, state: 2e-3, momentum: 2e-3 };
/**
 * A rounding that falls the other way moves an int8 activation by a whole step, and a gradient too: that of images which
 * are sure is small, so the memory of gradients may differ by as much as it is, where weights hardly do.
 */
export const INT8: Tolerance = { probabilities: 0.2, logits: 0.05, state: 0.05, momentum: 1 };

export interface Case {
  readonly name: string;
  readonly bundle: string;
  readonly mode: "step" | "stream";
  readonly batch: number;
  readonly frames: number;
  readonly rounding: number; // times the usual tolerance
  readonly config: AdaptConfig;
  readonly events: readonly Record<string, any>[];
}

export interface Golden {
  readonly cases: readonly Case[];
  readonly frames: readonly Picture[];
  readonly resizes: { readonly file: string; readonly normalised: string; readonly ways: Readonly<Record<string, Preprocessing>> };
}

/** What a host has to bring to be checked. */
export interface Checked {
  read(path: string): Promise<Uint8Array>; // a file of the folder of golden vectors
  host(bundle: string): Host; // a bundle of it
}

export interface Result {
  readonly name: string;
  readonly errors: Record<string, number>;
  readonly problems: string[];
  readonly milliseconds: number;
}

export async function readGolden(from: Checked): Promise<Golden> {
  const listed = JSON.parse(new TextDecoder().decode(await from.read("cases.json")));
  const { shape, data } = readSafetensors(await from.read(listed.frames), listed.frames).tensors.get("frames")!;
  const [count, height, width, channels] = shape as [number, number, number, number];
  const size = height * width * channels;
  const frames = Array.from({ length: count }, (_, i) => ({ width, height, data: (data as Uint8Array).subarray(i * size, (i + 1) * size) }));
  return { cases: listed.cases, frames, resizes: listed.resizes };
}

export async function checkCase(from: Checked, one: Case, frames: readonly Picture[]): Promise<Result> {
  const began = performance.now();
  const runtime = await Runtime.open(from.host(one.bundle), { config: one.config });
  const tolerance = runtime.manifest.precision === "fp32" ? FP32 : INT8;
  const found: Record<string, Matrix[]> = {};
  const keep = (what: string, p: Prediction) => {
    for (const part of ["probabilities", "logits", "weights"] as const) (found[`${what}.${part}`] ??= []).push(p[part]);
  };
  keep("before", await runtime.predict(frames.slice(0, one.batch)));
  let { learner } = runtime;
  if (one.mode === "step") {
    for (let at = 0; at < one.frames; at += one.batch) keep("during", await runtime.step(frames.slice(at, at + one.batch)));
  } else {
    const stream = runtime.stream({ batch: one.batch, background: false });
    for (const frame of frames.slice(0, one.frames)) keep("during", await stream.frame(frame));
    if (stream.error) throw stream.error;
    ({ learner } = stream);
  }
  const milliseconds = performance.now() - began;

  const errors: Record<string, number> = {};
  const problems: string[] = [];
  const judge = (what: string, error: number, usual: number) => {
    const most = usual * one.rounding;
    errors[what] = Math.max(errors[what] ?? 0, error);
    if (!(error <= most)) problems.push(`${what}: differs by ${error.toExponential(1)}, tolerance ${most}`);
  };
  const tensors = readSafetensors(await from.read(`cases/${one.name}.safetensors`), one.name).tensors;
  for (const [name, parts] of Object.entries(found)) {
    const absolute = !name.endsWith("logits");
    judge(name, difference(Matrix.join(parts).data, tensors.get(name)!, absolute), absolute ? tolerance.probabilities : tolerance.logits);
  }
  const saved = await from.read(`cases/${one.name}.state.safetensors`);
  const want = readSafetensors(saved, one.name);
  const got = readSafetensors(await learner.save(), "saved here");
  const names = [...want.tensors.keys()].sort();
  if (names.join() !== [...got.tensors.keys()].sort().join()) problems.push(`state: tensors ${[...got.tensors.keys()].sort()}, want ${names}`);
  for (const name of names.filter((n) => got.tensors.has(n))) {
    const group = name.split(".")[0]!;
    const most = group === "momentum" ? tolerance.momentum : tolerance.state;
    judge(`state.${group}`, difference(got.tensors.get(name)!.data, want.tensors.get(name)!, false), most);
  }
  const counters = (text: string) => {
    const { average: _, digests, ...counted } = JSON.parse(text);
    const own = names.filter((n) => /^(affines|momentum|prototypes)\./.test(n)).map((n) => n.split(".")[1]!);
    return JSON.stringify([Object.entries(counted).sort(), [...new Set(own)].map((n) => [n, digests[n]])]);
  };
  if (tolerance === FP32 && counters(got.metadata.counters!) !== counters(want.metadata.counters!)) {
    problems.push(`counters: ${got.metadata.counters}, want ${want.metadata.counters}`);
  }
  if (got.metadata.bundle !== want.metadata.bundle) problems.push("the bundle's hash differs");
  problems.push(...compareEvents(learner.events, one, tolerance));
  await learner.restore(saved); // a state that Python wrote can be gone on from
  if (learner.state.steps !== JSON.parse(want.metadata.counters!).steps) problems.push("restored another state");
  return { name: one.name, errors, problems, milliseconds };
}

function compareEvents(got: readonly Event[], { events: want, rounding }: Case, tolerance: Tolerance): string[] {
  const told = (e: { kind: string; step: number; top?: string }) => `${e.kind} ${e.step} ${e.top ?? ""}`;
  const line = (events: readonly any[]) => events.map(told).join(", ");
  if (line(got) !== line(want)) return [`events: ${line(got)}, want ${line(want)}`];
  const problems: string[] = [];
  got.forEach((event, i) => {
    const other = want[i]!;
    if (event.top === undefined) return;
    const numbers: [string, number, number, number][] = [
      ["entropy before", event.entropyBefore!, other.entropy_before, tolerance.probabilities],
      ["entropy after", event.entropyAfter!, other.entropy_after, tolerance.probabilities],
      ["reliable", event.reliable!, other.reliable, tolerance === FP32 ? 0 : 1],
      ...Object.entries(event.weights!).map(([n, w]): [string, number, number, number] => [n, w, other.weights[n], tolerance.probabilities]),
    ];
    for (const [what, a, b, most] of numbers) if (!(Math.abs(a - b) <= rounding * most)) problems.push(`event ${i}: ${what}: ${a}, want ${b}`);
    if (tolerance === FP32 && event.reason !== other.reason) problems.push(`event ${i}: ${event.reason}, want ${other.reason}`);
  });
  return problems;
}

function difference(got: ArrayLike<number>, want: Stored, absolute: boolean): number {
  if (got.length !== want.data.length) return Infinity;
  let most = 0;
  let largest = 1e-6;
  for (let i = 0; i < got.length; i++) {
    most = Math.max(most, Math.abs(got[i]! - want.data[i]!));
    largest = Math.max(largest, Math.abs(want.data[i]!));
    if (Number.isNaN(got[i])) return Infinity;
  }
  return absolute ? most : most / largest;
}

/** Every way of resizing, to the byte; gives what differs, and how many pictures were compared. */
export async function checkResizes(from: Checked, { resizes }: Golden): Promise<{ problems: string[]; compared: number }> {
  const { tensors } = readSafetensors(await from.read(`cases/${resizes.file}`), resizes.file);
  const pictures = [...tensors].filter(([name]) => name.startsWith("picture."));
  const problems: string[] = [];
  let compared = 0;
  for (const [way, preprocessing] of Object.entries(resizes.ways)) {
    for (const [name, { shape, data }] of pictures) {
      const picture = { height: shape[0]!, width: shape[1]!, data: data as Uint8Array };
      const got = crop(picture, preprocessing);
      const want = tensors.get(`${way}.${name.slice("picture.".length)}`)!.data;
      const wrong = got.length === want.length ? got.filter((v, i) => v !== want[i]).length : Infinity;
      if (wrong) problems.push(`${way} of ${name}: ${wrong} of ${want.length} bytes differ`);
      compared += 1;
      if (way !== resizes.normalised || name !== "picture.wide") continue;
      const pixels = new ImageBatch([got], preprocessing).pixels([0]).data;
      const error = difference(pixels, tensors.get("normalised")!, true);
      if (error !== 0) problems.push(`normalised: differs by ${error}`);
    }
  }
  return { problems, compared };
}
