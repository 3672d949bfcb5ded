/** The graphs and the modules: everything that predictions and steps share, and nothing that learns. */

import { Affines } from "./affines.js";
import { NotFiniteError, PlutoError } from "./errors.js";
import { Domains } from "./evidence.js";
import { allFinite, Matrix, mean } from "./linear.js";
import { type GraphName, type Manifest, MANIFEST, moduleFile, moduleShapes, readManifest, SELECTOR } from "./manifest.js";
import type { ImageBatch } from "./preprocess.js";
import { type Contents, readSafetensors, type Stored } from "./safetensors.js";
import type { SelectorWeights } from "./selector.js";
import { findSignature, Reference } from "./signature.js";
import { sha256, tensorsDigest } from "./digests.js";

/** Float32, on its way into or out of a graph. */
export interface Tensor {
  readonly data: Float32Array;
  readonly dims: readonly number[];
}

/** One graph of the bundle, open. */
export interface Graph {
  run(inputs: Readonly<Record<string, Tensor>>): Promise<Record<string, Tensor>>;
}

/** Compares a file of the bundle with size and sha256 in the manifest; what differs is an error. */
export type Check = (name: string, bytes: Uint8Array) => Promise<void>;

/** What a platform has to bring: the bundle's files, and sessions of its graphs, each opened when it is first needed. */
export interface Host {
  read(name: string): Promise<Uint8Array>;
  open(graph: GraphName, check: Check): Promise<Graph>;
}

// Images go through the graphs in pieces of about so many values (tokens times width): runtime/engine/graphs.py
const FORWARD_VALUES = 640_000;
const ADAPT_VALUES = 320_000;
const MOST_IMAGES = 64;

/** Images as they were embedded: x̂ [B,d], and the tokens of those that are few enough to be kept. */
export interface Look {
  readonly xHat: Matrix;
  readonly tokens: Tensor | null;
}

/** What one module said of some images, and the λ that it said it with. */
export interface Said {
  readonly logits: Matrix; // [B,K]
  readonly features: Matrix; // [B,d]
  readonly activations: Float32Array | null; // [B,L+1,d] if kept
  readonly affines: Affines;
}

/** Modules on one batch; `names` are those that ran, in the order of all. */
export interface Pass {
  readonly names: readonly string[];
  readonly said: ReadonlyMap<string, Said>;
  readonly xHat: Matrix;
  readonly leftOut: readonly string[]; // modules that ran, and said NaN or infinity
  readonly gradient: Gradient | null; // of the module that was to be differentiated
}

/** The pass of some of the images. */
export function rowsOf(passed: Pass, rows: readonly number[]): Pass {
  const said = new Map<string, Said>();
  for (const [name, s] of passed.said) {
    said.set(name, { ...s, logits: s.logits.take(rows), features: s.features.take(rows), activations: null });
  }
  return { ...passed, said, xHat: passed.xHat.take(rows), gradient: null };
}

/** The pass as if these modules alone had run. */
export function onlyOf(passed: Pass, names: readonly string[]): Pass {
  const kept = passed.names.filter((n) => names.includes(n));
  return { ...passed, names: kept, said: new Map(kept.map((n) => [n, passed.said.get(n)!])) };
}

/** Of an objective, with every sample's entropy. `loss` is the mean entropy of the reliable samples. */
export interface Gradient {
  readonly affines: Affines;
  readonly reliable: readonly number[];
  readonly loss: number;
}

/** What the gradient graph differentiates; by itself the mean entropy of the samples below the threshold. */
export interface Objective {
  readonly threshold: number;
  readonly entropyWeight: number | null; // of the sum of reliable entropies; null is their mean, and nothing else
  readonly offset: Float32Array | null; // [L+1,d]
  readonly slope: Float32Array | null;
  readonly target: Matrix | null; // of the cross-entropy, a row a sample, in the order in which they are given
}

export const MEAN_ENTROPY: Objective = { threshold: Infinity, entropyWeight: null, offset: null, slope: null, target: null };

/** A module's tensors, its exported λ, and its source's statistics if known. */
export interface Loaded {
  readonly name: string;
  readonly tensors: Readonly<Record<string, Tensor>>;
  readonly exported: Affines;
  readonly role: "specialist" | "generalist";
  readonly homes: Readonly<Record<string, number>>;
  readonly reference: Reference | null;
  readonly digest: string;
}

/** All modules, and what follows from who is among them. */
export class Modules {
  readonly names: readonly string[];
  readonly generalist: string | null;
  readonly specialists: readonly string[];
  readonly homes: Readonly<Record<string, number>>;
  readonly references: ReadonlyMap<string, Reference>;
  private known: Domains | null | undefined;

  constructor(readonly all: ReadonlyMap<string, Loaded>) {
    this.names = [...all.keys()];
    this.generalist = this.names.find((n) => this.get(n).role === "generalist") ?? null;
    const others = this.names.filter((n) => n !== this.generalist);
    this.specialists = others.length ? others : this.names;
    // beside the generalist or, where there is none, each specialist's own beside the others
    const beside = this.generalist === null ? [...all.values()] : [this.get(this.generalist)];
    this.homes = Object.assign({}, ...beside.map((m) => m.homes));
    this.references = new Map(
      [...all.values()].filter((m) => m.reference !== null).map((m) => [m.name, m.reference!] as const),
    );
  }

  get(name: string): Loaded {
    return this.all.get(name)!;
  }

  /** What the specialists know; null where none has a signature. */
  get domains(): Domains | null {
    if (this.known === undefined) {
      const signed = this.specialists.filter((n) => this.references.has(n));
      this.known = Domains.of(new Map(signed.map((n) => [n, this.references.get(n)!.signature])));
    }
    return this.known;
  }
}

interface Piece {
  readonly rows: readonly number[];
  readonly tokens: Tensor;
  readonly xHat: Matrix;
}

export interface RunOptions {
  readonly seen?: readonly Pass[];
  readonly look?: Look;
  readonly activations?: boolean;
  readonly differentiate?: string | null; // the module whose logits come from the gradient graph
  readonly objective?: Objective; // that is differentiated
}

/** What the gradient graph gives for a piece; gradients are sums over its samples. */
interface Summed {
  readonly said: Said;
  readonly entropy: Float32Array;
  readonly scale: Float32Array;
  readonly bias: Float32Array;
}

/** How a bundle is opened; `verify` compares the sha256 of every file that is read with the manifest's. */
export interface OpenOptions {
  readonly verify?: boolean;
}

export class Network {
  private readonly graphs = new Map<GraphName, Promise<Graph>>();
  private busy: Promise<unknown> = Promise.resolve();

  private constructor(
    private readonly host: Host,
    readonly manifest: Manifest,
    readonly modules: Modules,
    readonly selector: SelectorWeights,
    readonly hash: string, // of the manifest: tells this bundle from every other
    private readonly check: Check,
  ) {}

  static async open(host: Host, { verify = true }: OpenOptions = {}): Promise<Network> {
    const bytes = await host.read(MANIFEST);
    const manifest = readManifest(bytes);
    const check: Check = async (name, found) => {
      const entry = manifest.files[name]!;
      if (found.length !== entry.size || (verify && (await sha256(found)) !== entry.sha256)) {
        throw new PlutoError(`${name}: truncated, or changed since export; export or copy the bundle again`);
      }
    };
    const checked = async (name: string) => {
      const found = await host.read(name);
      await check(name, found);
      return readSafetensors(found, name);
    };
    const selector = selectorOf(await checked(SELECTOR));
    const loaded = new Map<string, Loaded>();
    for (const entry of manifest.modules) {
      loaded.set(entry.name, await place(await checked(moduleFile(entry.name)), entry, manifest));
    }
    return new Network(host, manifest, new Modules(loaded), selector, await sha256(bytes), check);
  }

  /** Images that go through a graph at a time. */
  private microBatch(values: number): number {
    const { tokens, dims } = this.manifest;
    const each = (tokens + (dims.kind === "vpt" ? dims.size : 0)) * dims.width;
    return Math.min(Math.max(Math.floor(values / each), 1), MOST_IMAGES);
  }

  /** One graph at a time: what is asked meanwhile waits for its turn. */
  private run1(name: GraphName, inputs: Readonly<Record<string, Tensor>>): Promise<Record<string, Tensor>> {
    let graph = this.graphs.get(name);
    if (!graph) this.graphs.set(name, (graph = this.host.open(name, this.check)));
    const turn = this.busy.then(async () => (await graph).run(inputs));
    this.busy = turn.catch(() => undefined);
    return turn;
  }

  private async *pieces(batch: ImageBatch, step: number, samples: readonly number[]): AsyncGenerator<Piece> {
    for (let start = 0; start < samples.length; start += step) {
      const rows = samples.slice(start, start + step);
      const out = await this.run1("embed.onnx", { pixels: batch.pixels(rows) });
      yield { rows, tokens: out.tokens!, xHat: matrix(out.x_hat!) };
    }
  }

  /** How the images look to the selector, before any module runs. */
  async look(batch: ImageBatch): Promise<Look> {
    const step = this.microBatch(FORWARD_VALUES);
    const parts: Piece[] = [];
    for await (const piece of this.pieces(batch, step, every(batch))) parts.push(piece);
    return { xHat: Matrix.join(parts.map((p) => p.xHat)), tokens: parts.length === 1 ? parts[0]!.tokens : null };
  }

  private inputs(piece: Piece, module: Loaded, affines: Affines): Record<string, Tensor> {
    const { depth, width } = this.manifest.dims;
    const dims = [2 * depth + 1, width];
    return {
      tokens: piece.tokens,
      ...module.tensors,
      ln_scale: { data: affines.scale, dims },
      ln_bias: { data: affines.bias, dims },
    };
  }

  private async say(piece: Piece, module: Loaded, affines: Affines, keep: boolean): Promise<Said> {
    return heard(await this.run1("forward.onnx", this.inputs(piece, module, affines)), affines, keep);
  }

  private async differentiate(piece: Piece, module: Loaded, affines: Affines, objective: Objective, keep = false): Promise<Summed> {
    const { depth, width, classes } = this.manifest.dims;
    const count = piece.rows.length;
    const zeros = new Float32Array((depth + 1) * width);
    const number = (value: number) => ({ data: Float32Array.of(value), dims: [] });
    const out = await this.run1("adapt.onnx", {
      ...this.inputs(piece, module, affines),
      threshold: number(objective.threshold),
      entropy_weight: number(objective.entropyWeight ?? 1),
      align_offset: { data: objective.offset ?? zeros, dims: [depth + 1, width] },
      align_slope: { data: objective.slope ?? zeros, dims: [depth + 1, width] },
      target: { data: objective.target ? Float32Array.from(objective.target.data) : new Float32Array(count * classes), dims: [count, classes] },
    });
    return { said: heard(out, affines, keep), entropy: out.entropy!.data, scale: out.ln_scale_grad!.data, bias: out.ln_bias_grad!.data };
  }

  /**
   * Modules on every image; each image is embedded once. What `seen` (passes of the same images, one after the
   * other) has of a module with the same λ is not computed again, unless activations are wanted that it has not.
   */
  async run(
    batch: ImageBatch,
    affines: ReadonlyMap<string, Affines>,
    wanted: readonly string[],
    { seen = [], look, activations = false, differentiate = null, objective = MEAN_ENTROPY }: RunOptions = {},
  ): Promise<Pass> {
    const names = this.modules.names.filter((n) => wanted.includes(n));
    const used = new Map(names.map((n) => [n, affines.get(n) ?? this.modules.get(n).exported]));
    const holds = (name: string) =>
      seen.length > 0 &&
      seen.every((p) => p.said.get(name)?.affines === used.get(name) && (!activations || p.said.get(name)!.activations));
    const parts = new Map(names.map((n) => [n, n !== differentiate && holds(n) ? seen.map((p) => p.said.get(n)!) : []]));
    const missing = names.filter((n) => !parts.get(n)!.length);
    const looks = seen.map((p) => p.xHat);
    const summed: Summed[] = [];
    if (missing.length) {
      const step = this.microBatch(differentiate ? ADAPT_VALUES : FORWARD_VALUES);
      const kept = look?.tokens && batch.length <= step ? [{ rows: every(batch), tokens: look.tokens, xHat: look.xHat }] : null;
      for await (const piece of kept ?? this.pieces(batch, step, every(batch))) {
        for (const name of missing) {
          const module = this.modules.get(name);
          const affines = used.get(name)!;
          if (name === differentiate) summed.push(await this.differentiate(piece, module, affines, objective, activations));
          parts.get(name)!.push(
            name === differentiate ? summed[summed.length - 1]!.said : await this.say(piece, module, affines, activations),
          );
        }
        if (!seen.length) looks.push(piece.xHat);
      }
    }
    const said = new Map([...parts].map(([name, found]) => [name, join(found)]));
    const gradient = summed.length ? combine(summed, objective) : null;
    return { names, said, xHat: Matrix.join(looks), leftOut: [], gradient };
  }

  /** `run` without the modules that say NaN or infinity; where that is all of them, the others are asked. */
  async runFinite(
    batch: ImageBatch,
    affines: ReadonlyMap<string, Affines>,
    names: readonly string[],
    options: RunOptions = {},
  ): Promise<Pass> {
    let passed = await this.run(batch, affines, names, options);
    let leftOut = notFinite(passed);
    if (leftOut.length && leftOut.length === passed.names.length) {
      const others = this.modules.names.filter((n) => !leftOut.includes(n));
      if (others.length) {
        passed = await this.run(batch, affines, others, { ...options, seen: [], differentiate: null });
        leftOut = [...leftOut, ...notFinite(passed)];
      }
    }
    if (!leftOut.length) return passed;
    const finite = passed.names.filter((n) => !leftOut.includes(n));
    if (!finite.length) {
      throw new NotFiniteError(
        `no module says anything finite of these images (${leftOut.join(", ")}); look at the images, ` +
          "at mean and std of the preprocessing and at the modules' weights",
      );
    }
    return { ...onlyOf(passed, finite), leftOut };
  }

  /** The gradient of one module's λ on some samples of the batch. */
  async gradient(
    batch: ImageBatch,
    samples: readonly number[],
    name: string,
    affines: Affines,
    objective: Objective = MEAN_ENTROPY,
  ): Promise<Gradient> {
    const parts: Summed[] = [];
    let given = 0;
    for await (const piece of this.pieces(batch, this.microBatch(ADAPT_VALUES), samples)) {
      parts.push(await this.differentiate(piece, this.modules.get(name), affines, part(objective, given, piece.rows.length)));
      given += piece.rows.length;
    }
    return combine(parts, objective);
  }
}

/** The same of `count` samples from one on. */
function part(objective: Objective, from: number, count: number): Objective {
  const { target } = objective;
  return target === null ? objective : { ...objective, target: target.take(Array.from({ length: count }, (_, i) => from + i)) };
}

/** Pieces to a batch: a sum of sums, divided once where a mean is wanted. */
function combine(parts: readonly Summed[], objective: Objective): Gradient {
  const found = parts.flatMap((p) => Array.from(p.entropy));
  const below = Math.fround(objective.threshold);
  const reliable = found.flatMap((h, i) => (h < below ? [i] : []));
  const divisor = objective.entropyWeight === null ? Math.max(reliable.length, 1) : 1;
  const total = (of: (part: Summed) => Float32Array) => {
    const sum = new Float64Array(of(parts[0]!).length);
    for (const part of parts) of(part).forEach((v, i) => (sum[i]! += v));
    return Float32Array.from(sum, (v) => v / divisor);
  };
  return {
    affines: new Affines(total((p) => p.scale), total((p) => p.bias)),
    reliable,
    loss: reliable.length ? mean(reliable.map((i) => found[i]!)) : 0,
  };
}

/** Logits and activations of a graph; the last row of these is the features. */
function heard(out: Record<string, Tensor>, affines: Affines, keep: boolean): Said {
  const all = out.activations!;
  const [count, rows, width] = all.dims as [number, number, number];
  const features = new Matrix(count, width);
  for (let i = 0; i < count; i++) {
    const at = (i * rows + rows - 1) * width;
    features.data.set(all.data.subarray(at, at + width), i * width);
  }
  return { logits: matrix(out.logits!), features, activations: keep ? all.data : null, affines };
}

export function every(batch: { readonly length: number }): number[] {
  return Array.from({ length: batch.length }, (_, i) => i);
}

function matrix({ data, dims }: Tensor): Matrix {
  return Matrix.of(dims[0]!, dims[1]!, data);
}

function join(parts: readonly Said[]): Said {
  if (parts.length === 1) return parts[0]!;
  const kept = parts.every((p) => p.activations);
  const activations = kept ? new Float32Array(parts.reduce((n, p) => n + p.activations!.length, 0)) : null;
  let at = 0;
  for (const part of kept ? parts : []) {
    activations!.set(part.activations!, at);
    at += part.activations!.length;
  }
  return {
    logits: Matrix.join(parts.map((p) => p.logits)),
    features: Matrix.join(parts.map((p) => p.features)),
    activations,
    affines: parts[0]!.affines,
  };
}

function notFinite(passed: Pass): string[] {
  return passed.names.filter((n) => !passed.said.get(n)!.logits.finite || !passed.said.get(n)!.features.finite);
}

function selectorOf({ tensors }: Contents): SelectorWeights {
  const names = ["down_x", "up_x", "down_l", "up_l", "scale_x", "bias_x", "scale_l", "bias_l"] as const;
  const found = names.map((name) => {
    const tensor = tensors.get(name);
    if (!tensor) throw new PlutoError(`${SELECTOR}: tensor ${name} is missing`);
    return [name, { shape: tensor.shape, data: tensor.data as Float32Array }] as const;
  });
  return Object.fromEntries(found) as unknown as SelectorWeights;
}

async function place(contents: Contents, entry: Manifest["modules"][number], manifest: Manifest): Promise<Loaded> {
  const { dims } = manifest;
  const where = moduleFile(entry.name);
  const rows = [2 * dims.depth + 1, dims.width];
  const take = (name: string, shape: readonly number[]): Tensor => {
    const found: Stored | undefined = contents.tensors.get(name);
    if (!found) throw new PlutoError(`${where}: tensor ${name} is missing`);
    if (found.shape.join() !== shape.join()) throw new PlutoError(`${where}: ${name}: want shape [${shape}], got [${found.shape}]`);
    if (!allFinite(found.data as Float32Array)) throw new PlutoError(`${where}: ${name} holds NaN or infinity`);
    return { data: found.data as Float32Array, dims: shape };
  };
  const tensors: Record<string, Tensor> = {};
  for (const [name, shape] of Object.entries(moduleShapes(dims))) tensors[name] = take(name, shape);
  const signature = findSignature(contents.tensors, where);
  return {
    name: entry.name,
    tensors,
    exported: new Affines(take("ln_scale", rows).data, take("ln_bias", rows).data),
    role: entry.role,
    homes: entry.homes,
    reference: signature && new Reference(signature, Matrix.of(dims.classes, dims.width, tensors.head_weight!.data)),
    digest: await tensorsDigest(contents.tensors),
  };
}
