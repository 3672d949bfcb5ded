/** A pluto-edge bundle in JavaScript: predictions, the selector, prototypes and the whole step, on any ONNX Runtime. */

export { NotFiniteError, PlutoError } from "./errors.js";
export { type Event, Learner } from "./learner.js";
export { Matrix } from "./linear.js";
export { type AdaptConfig, DEFAULTS, type GraphName, type Manifest, PAPER, WEIGHTS } from "./manifest.js";
export { type Check, type Graph, type Host, Network, type Tensor } from "./network.js";
export type { Prediction } from "./prediction.js";
export { crop, ImageBatch, type Picture } from "./preprocess.js";
export { Runtime, type RuntimeOptions } from "./runtime.js";
export { readSafetensors, writeSafetensors } from "./safetensors.js";
export { Stream, type StreamOptions } from "./stream.js";
