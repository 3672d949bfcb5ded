/** `manifest.json`: what the exporter promises. Names are those of the file. */

import { PlutoError } from "./errors.js";

/** How a runtime adapts; `pluto_edge/config.py` explains every field. */
export interface AdaptConfig {
  readonly weighting: "evidence" | "selector" | "generalist";
  readonly prototypes: boolean;
  readonly continuity: boolean;
  readonly top_m: number | null;
  readonly selector: boolean;
  readonly selector_lr: number;
  readonly selector_optimizer: "sgd" | "adam";
  readonly selector_steps: number;
  readonly sam: "batch" | "sample" | null;
  readonly sam_every: number; // 1: other hosts than Python's have no LookSAM
  readonly objective: "entropy" | "align" | "both" | "teach";
  readonly ln_lr: number | null;
  readonly ln_momentum: number;
  readonly rho: number;
  readonly filter: boolean;
  readonly entropy_margin: number;
  readonly ln_layers: readonly number[] | null;
  readonly min_reliable: number;
  readonly guard: boolean;
  readonly recovery: number | null;
}

export const DEFAULTS: AdaptConfig = {
  weighting: "evidence",
  prototypes: true,
  continuity: true,
  top_m: null,
  selector: true,
  selector_lr: 1e-3,
  selector_optimizer: "sgd",
  selector_steps: 1,
  sam: "batch",
  sam_every: 1,
  objective: "teach",
  ln_lr: null,
  ln_momentum: 0.9,
  rho: 0.05,
  filter: true,
  entropy_margin: 0.4,
  ln_layers: null,
  min_reliable: 1,
  guard: true,
  recovery: null,
};

/** Algorithm 1 to the letter: the selector's weights, and entropy for the affines. */
export const PAPER: AdaptConfig = {
  ...DEFAULTS,
  weighting: "selector",
  prototypes: false,
  continuity: false,
  objective: "entropy",
  min_reliable: 0,
};

export interface Dims {
  readonly kind: "vpt" | "adapter";
  readonly size: number;
  readonly width: number;
  readonly depth: number;
  readonly classes: number;
}

export interface Preprocessing {
  readonly size: readonly [number, number]; // height, width
  readonly mean: readonly [number, number, number];
  readonly std: readonly [number, number, number];
  readonly interpolation: "nearest" | "bilinear" | "bicubic" | "box" | "hamming" | "lanczos";
  readonly crop_pct: number;
  readonly crop_mode: "center" | "squash" | "border";
}

export interface ModuleEntry {
  readonly name: string;
  readonly role: "specialist" | "generalist";
  readonly homes: Readonly<Record<string, number>>;
}

export interface Manifest {
  readonly schema_version: number;
  readonly architecture: string;
  readonly precision: "fp32" | "fp16" | "int8";
  readonly dims: Dims;
  readonly tokens: number;
  readonly preprocessing: Preprocessing;
  readonly classes: readonly string[];
  readonly modules: readonly ModuleEntry[];
  readonly files: Readonly<Record<string, { readonly sha256: string; readonly size: number }>>;
  readonly adaptation: AdaptConfig;
}

export const SCHEMA_VERSION = 2;
export const MANIFEST = "manifest.json";
export const WEIGHTS = "weights.bin";
export const GRAPHS = ["embed.onnx", "forward.onnx", "adapt.onnx"] as const;
export type GraphName = (typeof GRAPHS)[number];
export const SELECTOR = "selector.safetensors";

/** Where a module's tensors are in the bundle. */
export function moduleFile(name: string): string {
  return `modules/${name}.safetensors`;
}

/** Names and shapes of a module's tensors, which are inputs of the graphs, but for the LayerNorm affines. */
export function moduleShapes({ kind, size, width, depth, classes }: Dims): Record<string, number[]> {
  const head = { head_weight: [classes, width], head_bias: [classes] };
  if (kind === "vpt") return { prompt: [size, width], ...head };
  return {
    down_weight: [depth, width, size],
    down_bias: [depth, size],
    up_weight: [depth, size, width],
    up_bias: [depth, width],
    ...head,
  };
}

/** The manifest in these bytes, of a version that is known here. */
export function readManifest(bytes: Uint8Array, where: string = MANIFEST): Manifest {
  let data: Manifest;
  try {
    data = JSON.parse(new TextDecoder().decode(bytes)) as Manifest;
  } catch (cause) {
    throw new PlutoError(`${where}: not valid JSON (${(cause as Error).message}); export or copy the bundle again`);
  }
  if (data?.schema_version !== SCHEMA_VERSION) {
    throw new PlutoError(
      `${where}: want schema version ${SCHEMA_VERSION}, got ${String(data?.schema_version)}; ` +
        "export the store again with the pluto-edge that this host is of",
    );
  }
  const { dims, classes, modules, files } = data;
  if (!["vpt", "adapter"].includes(dims?.kind)) throw new PlutoError(`${where}: dims.kind: got ${String(dims?.kind)}`);
  if (classes?.length !== dims.classes) throw new PlutoError(`${where}: ${classes?.length} names for ${dims.classes} classes`);
  if (!modules?.length) throw new PlutoError(`${where}: a bundle has at least one module`);
  const needed = [...GRAPHS, WEIGHTS, SELECTOR, ...modules.map((m) => moduleFile(m.name))];
  const absent = needed.find((name) => !(name in files));
  if (absent) throw new PlutoError(`${where}: files: ${absent} is not listed`);
  return { ...data, adaptation: { ...DEFAULTS, ...data.adaptation } };
}
