/** A bundle in a folder, on onnxruntime-node. */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import ort from "onnxruntime-node";
import { type Check, type Graph, type GraphName, type Host, PlutoError, Runtime, type RuntimeOptions, type Tensor, WEIGHTS } from "../core/index.js";

/** Files and sessions of a bundle's folder. */
export class NodeHost implements Host {
  private checked: Promise<void> | null = null; // the weights, once for all graphs

  constructor(
    private readonly folder: string,
    private readonly threads?: number, // by itself one for each core
  ) {}

  async read(name: string): Promise<Uint8Array> {
    try {
      return await readFile(join(this.folder, name));
    } catch (cause) {
      throw new PlutoError(`${this.folder}: no ${name} to read (${(cause as Error).message}); is this a bundle of pluto export?`);
    }
  }

  async open(graph: GraphName, check: Check): Promise<Graph> {
    await check(graph, await this.read(graph));
    this.checked ??= this.read(WEIGHTS).then((bytes) => check(WEIGHTS, bytes));
    await this.checked;
    const options = this.threads === undefined ? {} : { intraOpNumThreads: this.threads };
    const session = await ort.InferenceSession.create(join(this.folder, graph), options);
    return {
      async run(inputs) {
        const given = Object.entries(inputs).map(([name, t]) => [name, new ort.Tensor("float32", t.data, t.dims)]);
        const out = await session.run(Object.fromEntries(given));
        return out as unknown as Record<string, Tensor>;
      },
    };
  }
}

/** Open the bundle in a folder. */
export function openBundle(folder: string, options: RuntimeOptions & { readonly threads?: number } = {}): Promise<Runtime> {
  return Runtime.open(new NodeHost(folder, options.threads), options);
}
