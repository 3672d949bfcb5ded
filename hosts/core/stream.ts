/** Frames one at a time, predicted at once, learned from in batches: `runtime/stream/` without budgets and threads. */

import { ALIGN_FROM } from "./affine_step.js";
import * as beyond from "./beyond.js";
import { ChangeDetector } from "./changes.js";
import { PlutoError } from "./errors.js";
import { Learner } from "./learner.js";
import { entropies } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import type { Pass } from "./network.js";
import { type Prediction, toPrediction } from "./prediction.js";
import { ImageBatch, type Picture } from "./preprocess.js";
import { type Blend, probabilitiesOf } from "./selection.js";

const GATHER = 16; // reliable frames that a stream of smaller batches waits for

export interface StreamOptions {
  readonly batch?: number; // frames that a step learns from
  readonly background?: boolean; // whether the frame that fills a batch waits for the step
  readonly onChange?: "reopen" | "mark"; // what a change of domain does
}

/** Small batches have few reliable frames, if any: their gradients gather. */
export function forBatches(config: AdaptConfig, batch: number): AdaptConfig {
  if (!(batch >= 1)) throw new PlutoError(`batch: want at least 1 frame, got ${batch}`);
  return batch >= GATHER ? config : { ...config, min_reliable: Math.max(config.min_reliable, GATHER) };
}

/** A camera's line of frames: `frame(picture)` predicts at once and learns by itself. One frame at a time. */
export class Stream {
  skipped = 0; // steps that were due while the one before them was still under way
  error: unknown = null; // what learning last failed with; predictions go on with the state before it
  private readonly batch: number;
  private readonly background: boolean;
  private readonly onChange: "reopen" | "mark";
  private buffer: { image: ImageBatch; seen: Pass }[] = [];
  private since = 0;
  private detector: ChangeDetector;
  private ran = "";
  private learning: Promise<void> | null = null;
  private still = false;

  constructor(
    readonly learner: Learner,
    { batch = 64, background = true, onChange = "reopen" }: StreamOptions = {},
  ) {
    this.batch = batch;
    this.background = background;
    this.onChange = onChange;
    this.detector = new ChangeDetector(learner.network.modules.names);
  }

  /** Whether it predicts and does not learn; a step under way is dropped when it is set. */
  get frozen(): boolean {
    return this.still;
  }

  set frozen(value: boolean) {
    this.still = value;
    if (value) {
      this.buffer = [];
      this.learner.dropStep();
    }
  }

  /** Frames that wait to be learned from. */
  get waiting(): number {
    return this.buffer.length;
  }

  /** Whether a step is under way. */
  get busy(): boolean {
    return this.learning !== null;
  }

  async frame(picture: Picture): Promise<Prediction> {
    const { learner } = this;
    const { network, config } = learner;
    const image = ImageBatch.of([picture], network.manifest.preprocessing);
    const aligns = this.batch >= ALIGN_FROM && config.objective !== "entropy";
    const { blend, passed } = await learner.watch(image, aligns && !this.still);
    const prediction = toPrediction(learner.follow(blend), network);
    this.lookOut(blend, passed);
    if (!this.still) {
      this.buffer.push({ image, seen: passed });
      if (this.buffer.length > this.batch) this.buffer.shift();
      this.since += 1;
      if (this.buffer.length === this.batch && this.since >= this.batch) {
        this.since = 0;
        await this.offer();
      }
    }
    return prediction;
  }

  /** Until no step is under way. */
  async settle(): Promise<void> {
    await this.learning;
  }

  /** Forget what was learned, and the frames that wait. */
  reset(): void {
    this.buffer = [];
    this.learner.reset();
  }

  private async offer(): Promise<void> {
    if (this.learning) {
      this.skipped += 1;
      return;
    }
    const frames = [...this.buffer];
    this.learning = this.learner
      .step(ImageBatch.join(frames.map((f) => f.image)), frames.map((f) => f.seen))
      .then(
        () => undefined,
        (error: unknown) => {
          this.error = error;
        },
      )
      .finally(() => {
        this.learning = null;
      });
    if (!this.background) await this.learning;
  }

  /** Has the stream come to see another domain? What was said without neighbours tells, and what ran for it. */
  private lookOut(blend: Blend, passed: Pass): void {
    const { network, config } = this.learner;
    const ran = passed.names.join("\n");
    if (this.ran && this.ran !== ran) this.detector.otherModules();
    this.ran = ran;
    // beyond the paper weights follow from x̂, and jump where two domains are alike
    const weights = beyond.applies(network.modules, config) ? new Float32Array(blend.weights.cols) : Float32Array.from(blend.weights.row(0));
    const share = entropies(probabilitiesOf(blend))[0]! / Math.log(blend.logits.cols);
    const change = this.detector.update(share, weights, passed.xHat.row(0));
    if (!change) return;
    if (this.onChange === "reopen" && !this.still) {
      this.buffer = [];
      this.learner.reopen(change);
    } else {
      this.learner.note(change);
    }
  }
}
