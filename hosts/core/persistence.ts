/** Learned state as one safetensors file: the schema, names and digest of `runtime/persistence.py`, both ways. */

import { Affines } from "./affines.js";
import { bytesOf, concatenated, dtype, sha256, tuple } from "./digests.js";
import { PlutoError } from "./errors.js";
import { allFinite, Matrix } from "./linear.js";
import type { Network } from "./network.js";
import { Prototypes, type Seen } from "./prototypes.js";
import { readSafetensors, type Stored, type Values, writeSafetensors } from "./safetensors.js";
import { type SelectorWeights, TENSORS, type TensorName } from "./selector.js";
import { fresh, type State } from "./state.js";

const SCHEMA_VERSION = 5;
const WRITER = "pluto-edge hosts";

type Metadata = Readonly<Record<string, string>>;

/** The bytes of a file that `restore` takes, here and in Python. */
export async function saveState(state: State, network: Network): Promise<Uint8Array> {
  const { depth, width } = network.manifest.dims;
  const rows = [2 * depth + 1, width];
  const tensors = new Map<string, Stored>();
  const put = (name: string, shape: readonly number[], data: Values) => tensors.set(name, { shape, data });
  for (const name of TENSORS) put(`selector.${name}`, state.selector[name].shape, state.selector[name].data);
  for (const [name, data] of state.moments) {
    put(`moments.${name}`, name === "t" ? [1] : state.selector[name.slice(2) as TensorName].shape, data);
  }
  for (const [group, all] of [["affines", state.affines], ["momentum", state.momentum]] as const) {
    for (const [name, a] of all) {
      put(`${group}.${name}.scale`, rows, a.scale);
      put(`${group}.${name}.bias`, rows, a.bias);
    }
  }
  for (const [name, seen] of state.prototypes.modules) {
    put(`prototypes.${name}.counts`, [seen.counts.length], seen.counts);
    put(`prototypes.${name}.sums`, [seen.sums.rows, seen.sums.cols], seen.sums.data);
    put(`prototypes.${name}.count`, [1], Float64Array.of(seen.count));
    put(`prototypes.${name}.total`, [seen.total.length], seen.total);
  }
  const learned = new Set([...state.affines.keys(), ...state.momentum.keys(), ...state.prototypes.modules.keys()]);
  const digests = Object.fromEntries([...learned].sort().map((name) => [name, network.modules.get(name).digest]));
  const { top, labels, average, steps, rollbacks, samples } = state;
  const metadata: Record<string, string> = {
    schema_version: String(SCHEMA_VERSION),
    writer: WRITER,
    bundle: network.hash,
    counters: JSON.stringify({ top, labels, average, steps, rollbacks, samples, digests }),
  };
  metadata.digest = await digestOf(tensors, metadata);
  return writeSafetensors(tensors, metadata);
}

/** The state in these bytes, if it is whole and of this very bundle. */
export async function restoreState(bytes: Uint8Array, network: Network): Promise<State> {
  const { tensors, metadata } = readSafetensors(bytes, "saved state");
  const missing = ["schema_version", "bundle", "counters", "digest"].find((key) => !(key in metadata));
  if (missing) throw new PlutoError(`not a saved state: its metadata has no ${missing}`);
  if (metadata.schema_version !== String(SCHEMA_VERSION)) {
    throw new PlutoError(`saved state: want schema version ${SCHEMA_VERSION}, got ${metadata.schema_version}`);
  }
  if (metadata.digest !== (await digestOf(tensors, metadata))) throw new PlutoError("saved state: damaged: its digest differs");
  if (metadata.bundle !== network.hash) throw new PlutoError("saved with another bundle; its weights mean nothing here");
  const counters = JSON.parse(metadata.counters!) as Pick<State, "top" | "labels" | "average" | "steps" | "rollbacks" | "samples"> & {
    digests: Record<string, string>;
  };
  for (const [name, digest] of Object.entries(counters.digests)) {
    if (network.modules.all.get(name)?.digest !== digest) {
      throw new PlutoError(`saved state: it has learned for another module ${name} than the one of this bundle`);
    }
  }
  const reader = new Reader(tensors, network);
  const prototypes = reader.prototypes();
  const { top, labels, average, steps, rollbacks, samples } = counters;
  return {
    ...fresh(network.selector),
    selector: reader.selector(),
    moments: reader.moments(),
    affines: reader.affines("affines"),
    momentum: reader.affines("momentum"),
    prototypes,
    unmoved: prototypes,
    top, labels, average, steps, rollbacks, samples,
  };
}

class Reader {
  constructor(
    private readonly tensors: ReadonlyMap<string, Stored>,
    private readonly network: Network,
  ) {}

  private take<T extends Values>(name: string, shape: readonly number[], type: new (n: number) => T): T {
    const found = this.tensors.get(name);
    const right = found && found.shape.join() === shape.join() && found.data instanceof type;
    if (!right || !allFinite(found.data as Float32Array)) throw new PlutoError(`saved state: ${name}: want finite ${type.name} [${shape}]`);
    return found.data as T;
  }

  /** Names of the modules that a group is of, which must be loaded. */
  private of(group: string): string[] {
    const keys = [...this.tensors.keys()].filter((key) => key.startsWith(`${group}.`));
    const names = [...new Set(keys.map((key) => key.slice(group.length + 1, key.lastIndexOf("."))))];
    const unknown = names.find((name) => !this.network.modules.all.has(name));
    if (unknown !== undefined) throw new PlutoError(`saved state: it has learned for module ${unknown}, which is not in this bundle`);
    return names;
  }

  selector(): SelectorWeights {
    const found = TENSORS.map((name) => {
      const { shape } = this.network.selector[name];
      return [name, { shape, data: this.take(`selector.${name}`, shape, Float32Array) }];
    });
    return Object.fromEntries(found) as SelectorWeights;
  }

  moments(): Map<string, Float64Array> {
    const out = new Map<string, Float64Array>();
    if (![...this.tensors.keys()].some((key) => key.startsWith("moments."))) return out;
    out.set("t", this.take("moments.t", [1], Float64Array));
    for (const name of TENSORS) {
      const { shape } = this.network.selector[name];
      for (const moment of ["m", "v"]) out.set(`${moment}.${name}`, this.take(`moments.${moment}.${name}`, shape, Float64Array));
    }
    return out;
  }

  affines(group: "affines" | "momentum"): Map<string, Affines> {
    const { depth, width } = this.network.manifest.dims;
    const take = (name: string, part: string) => this.take(`${group}.${name}.${part}`, [2 * depth + 1, width], Float32Array);
    return new Map(this.of(group).map((name) => [name, new Affines(take(name, "scale"), take(name, "bias"))]));
  }

  prototypes(): Prototypes {
    const { classes, width } = this.network.manifest.dims;
    const take = (name: string, part: string, shape: number[]) => this.take(`prototypes.${name}.${part}`, shape, Float64Array);
    const seen = (name: string): Seen => ({
      counts: take(name, "counts", [classes]),
      sums: new Matrix(classes, width, take(name, "sums", [classes, width])),
      count: take(name, "count", [1])[0]!,
      total: take(name, "total", [width]),
    });
    return new Prototypes(new Map(this.of("prototypes").map((name) => [name, seen(name)])));
  }
}

/** Of everything that a state is made of. */
function digestOf(tensors: ReadonlyMap<string, Stored>, metadata: Metadata): Promise<string> {
  const parts: (string | Uint8Array)[] = [`[${pythonText(metadata.bundle!)}, ${pythonText(metadata.counters!)}]`];
  for (const name of [...tensors.keys()].sort()) {
    const { shape, data } = tensors.get(name)!;
    parts.push(`${name}\0${dtype(data)}${tuple(shape)}`, bytesOf(data));
  }
  return sha256(concatenated(parts));
}

/** A text as Python's json.dumps writes it, in ASCII. */
function pythonText(text: string): string {
  return JSON.stringify(text).replace(/[\u007f-\uffff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
