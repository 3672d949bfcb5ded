/** `Runtime`: a bundle that predicts and adapts, on whatever host opens its graphs. */

import { type Event, Learner } from "./learner.js";
import type { AdaptConfig, Manifest } from "./manifest.js";
import { type Host, Network, type OpenOptions } from "./network.js";
import { type Prediction, toPrediction } from "./prediction.js";
import { ImageBatch, type Picture } from "./preprocess.js";
import { forBatches, Stream, type StreamOptions } from "./stream.js";

export interface RuntimeOptions extends OpenOptions {
  readonly config?: Partial<AdaptConfig>; // over the bundle's own
  readonly onEvent?: (event: Event) => void;
}

export class Runtime {
  readonly learner: Learner;

  private constructor(
    readonly network: Network,
    private readonly options: RuntimeOptions,
  ) {
    this.learner = new Learner(network, this.config, options.onEvent);
  }

  static async open(host: Host, options: RuntimeOptions = {}): Promise<Runtime> {
    return new Runtime(await Network.open(host, options), options);
  }

  get manifest(): Manifest {
    return this.network.manifest;
  }

  get config(): AdaptConfig {
    return { ...this.manifest.adaptation, ...this.options.config };
  }

  /** Blend the modules' predictions with what was learned so far; nothing changes. */
  async predict(pictures: readonly Picture[]): Promise<Prediction> {
    return toPrediction(await this.learner.predict(this.batch(pictures)), this.network);
  }

  /** Predict a batch and learn from it. A step that goes wrong changes nothing and says so in `learner.events`. */
  async step(pictures: readonly Picture[]): Promise<Prediction> {
    return toPrediction((await this.learner.step(this.batch(pictures))).blend, this.network);
  }

  /** A line of frames with a state of its own over the same graphs and modules: one for each camera. */
  stream(options: StreamOptions = {}): Stream {
    return new Stream(new Learner(this.network, forBatches(this.config, options.batch ?? 64), this.options.onEvent), options);
  }

  private batch(pictures: readonly Picture[]): ImageBatch {
    return ImageBatch.of(pictures, this.manifest.preprocessing);
  }
}
