/** A bundle behind an address, on onnxruntime-web: one weights file, fetched once, and a session for each graph. */

import type * as Ort from "onnxruntime-web";
import { type Check, type Graph, type GraphName, type Host, PlutoError, type Tensor, WEIGHTS } from "../core/index.js";

/** Where the three files of onnxruntime-web are: its module, the glue of its WebAssembly, and that itself. */
export interface OrtFiles {
  readonly module: string;
  readonly glue: string;
  readonly wasm: string;
}

/** onnxruntime-web with one thread, which needs no headers of the server. */
export async function loadOrt({ module, glue, wasm }: OrtFiles): Promise<typeof Ort> {
  const ort = (await import(/* @vite-ignore */ module)) as typeof Ort;
  ort.env.wasm.numThreads = 1;
  ort.env.wasm.wasmPaths = { mjs: glue, wasm };
  ort.env.logLevel = "error";
  return ort;
}

export class WebHost implements Host {
  private weights: Promise<Uint8Array> | null = null;
  private readonly opened = new Set<GraphName>();

  /** `base` is the bundle's address, with a slash at its end. */
  constructor(
    private readonly base: string,
    private readonly ort: typeof Ort,
  ) {}

  async read(name: string): Promise<Uint8Array> {
    const answer = await fetch(new URL(name, this.base)).catch((cause: Error) => cause);
    if (answer instanceof Error || !answer.ok) {
      const why = answer instanceof Error ? answer.message : `${answer.status} ${answer.statusText}`;
      throw new PlutoError(`${name}: cannot be fetched (${why}); is the bundle beside the page?`);
    }
    return new Uint8Array(await answer.arrayBuffer());
  }

  async open(graph: GraphName, check: Check): Promise<Graph> {
    this.weights ??= this.read(WEIGHTS).then(async (bytes) => {
      await check(WEIGHTS, bytes);
      return bytes;
    });
    const [model, data] = await Promise.all([this.read(graph), this.weights]);
    await check(graph, model);
    const { InferenceSession, Tensor } = this.ort;
    const options = { executionProviders: ["wasm"], externalData: [{ path: WEIGHTS, data }] };
    const session = await InferenceSession.create(model, options);
    if (this.opened.add(graph).size === 3) this.weights = null; // every session has what it needs of them
    return {
      async run(inputs) {
        const given = Object.entries(inputs).map(([name, t]) => [name, new Tensor("float32", t.data, t.dims)]);
        return (await session.run(Object.fromEntries(given))) as unknown as Record<string, Tensor>;
      },
    };
  }
}
