/**
 * One line of learning: a state, and the steps that change it. Steps are transactions: the state is replaced in one
 * assignment at the very end, or not at all, and only if nobody else has replaced it meanwhile.
 */

import * as beyond from "./beyond.js";
import { ChangeDetector } from "./changes.js";
import { Continuity } from "./continuity.js";
import { NotFiniteError, PlutoError } from "./errors.js";
import { type Attempt, fallBack, judge, type Judged } from "./judging.js";
import { columnMeans, Matrix, TINY } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import type { Network, Pass } from "./network.js";
import { restoreState, saveState } from "./persistence.js";
import { lookAt, newest, predict, requireFinite } from "./prediction.js";
import type { ImageBatch } from "./preprocess.js";
import { Prototypes } from "./prototypes.js";
import { type Blend, probabilitiesOf, widened } from "./selection.js";
import { fresh, reopened, type State } from "./state.js";
import { propose, type Proposal } from "./step.js";

const MOST_EVENTS = 1000;

/** One thing that happened to a learner. */
export interface Event {
  readonly kind: "step" | "gather" | "rollback" | "change" | "reset" | "restore";
  readonly step: number;
  readonly reason: string;
  readonly frame: number;
  readonly top?: string;
  readonly weights?: Readonly<Record<string, number>>; // mean over the batch, before the selection
  readonly samples?: number;
  readonly reliable?: number;
  readonly entropyBefore?: number;
  readonly entropyAfter?: number;
  readonly milliseconds?: number;
}

/** What is known of the images that came last. */
interface Recent {
  readonly xHat: Matrix;
  readonly tried: Prototypes; // where the classes of the images that were watched are
  readonly continuity: Continuity;
}

export class Learner {
  readonly events: Event[] = [];
  frames = 0; // that were watched
  private readonly exported: State;
  private readonly nothing: Recent;
  private current: State;
  private recent: Recent;
  private changes = new ChangeDetector();
  private steps: Promise<unknown> = Promise.resolve();

  constructor(
    readonly network: Network,
    readonly config: AdaptConfig,
    private readonly onEvent: (event: Event) => void = () => undefined,
  ) {
    const rows = 2 * network.manifest.dims.depth + 1;
    const beyondRows = config.ln_layers?.find((row) => !(row >= 0 && row < rows));
    if (beyondRows !== undefined) throw new PlutoError(`ln_layers: want rows from 0 to ${rows - 1}, got ${beyondRows}`);
    if (config.sam_every !== 1) throw new PlutoError(`sam_every: want 1, which is all that this host has, got ${config.sam_every}`);
    this.exported = fresh(network.selector);
    this.nothing = { xHat: new Matrix(0, network.manifest.dims.width), tried: new Prototypes(), continuity: new Continuity() };
    this.current = this.exported;
    this.recent = this.nothing;
  }

  get state(): State {
    return this.current;
  }

  /** How sticky the stream's classes are: 0 where images have nothing to do with each other. */
  get stickiness(): number {
    return this.recent.continuity.stickiness;
  }

  /** The blend with what was learned so far; nothing changes. */
  async predict(batch: ImageBatch): Promise<Blend> {
    const { state, recent } = this;
    return (await predict(this.network, batch, state, recent.xHat, state.prototypes, this.config)).blend;
  }

  /** `predict` for a stream: how its images look, and which modules fit them, is kept for the next ones. */
  async watch(batch: ImageBatch, activations = false): Promise<{ blend: Blend; passed: Pass }> {
    const { recent } = this;
    const { blend, passed, tried } = await predict(this.network, batch, this.state, recent.xHat, recent.tried, this.config, [], activations);
    this.recent = { ...this.recent, xHat: newest(this.recent.xHat, passed.xHat), tried };
    this.frames += batch.length;
    return { blend, passed };
  }

  /** What was said of the stream's next images, in the light of those before them and of each other. */
  follow(blend: Blend, keep = true): Blend {
    if (!this.config.continuity || !this.network.modules.references.size) return blend;
    const alone = probabilitiesOf(blend).map((p) => Math.max(p, TINY));
    const { followed, after } = this.recent.continuity.follow(alone);
    if (keep) this.recent = { ...this.recent, continuity: after };
    return { ...blend, logits: blend.logits.map((v, at) => v + Math.log(followed.data[at]! / alone.data[at]!)) };
  }

  /** Predict a batch and learn from it; `seen` are passes of the same images that `watch` gave. Steps come in turn. */
  step(batch: ImageBatch, seen: readonly Pass[] = []): Promise<{ blend: Blend; event: Event }> {
    const turn = this.steps.then(async () => {
      const { blend, event } = await this.one(batch, seen);
      return { blend: seen.length ? blend : this.follow(blend, event.kind !== "rollback"), event };
    });
    this.steps = turn.catch(() => undefined);
    return turn;
  }

  private async one(batch: ImageBatch, seen: readonly Pass[]): Promise<{ blend: Blend; event: Event }> {
    const began = performance.now();
    const { network, config } = this;
    let attempt = this.attempt(batch);
    try {
      const look = beyond.applies(network.modules, config) ? await lookAt(network, batch, seen) : null;
      if (look && !seen.length) {
        this.lookOut(look.xHat);
        attempt = { ...this.attempt(batch), recent: newest(this.recent.xHat, look.xHat) };
      }
      const { before, recent } = attempt;
      const known = seen.length ? new Continuity(null, attempt.continuity.weights, attempt.continuity.counts) : attempt.continuity; // followed already
      const proposal = look
        ? await beyond.propose(network, before, batch, config, seen, look, recent, config.continuity ? known : null)
        : await propose(network, before, batch, config, seen);
      const judged = await judge(attempt, proposal);
      requireFinite(judged.blend);
      return this.end(attempt, proposal, judged, seen, performance.now() - began);
    } catch (error) {
      return this.failed(attempt, error);
    }
  }

  private attempt(batch: ImageBatch): Attempt {
    const { network, config, exported, recent } = this;
    return { batch, network, before: this.current, recent: recent.xHat, continuity: recent.continuity, exported, config };
  }

  /** Where the images look like another domain than those before them, learning starts anew. */
  private lookOut(xHat: Matrix): void {
    let change = "";
    for (let i = 0; i < xHat.rows; i++) change = this.changes.update(0, [], xHat.row(i)) || change;
    if (change) this.reopen(change);
  }

  /** The step as it was judged, unless another state than it started from is there by now. */
  private end(attempt: Attempt, proposal: Proposal, judged: Judged, seen: readonly Pass[], milliseconds: number): { blend: Blend; event: Event } {
    const { before } = attempt;
    const rolledBack = judged.kind === "rollback";
    let { kind, reason } = judged;
    if (this.current === before) {
      this.current = {
        ...judged.state,
        steps: before.steps + 1,
        samples: before.samples + attempt.batch.length,
        reliable: proposal.reliable / attempt.batch.length,
        rollbacks: before.rollbacks + (rolledBack ? 1 : 0),
      };
      if (!rolledBack && !seen.length) this.recent = { ...this.recent, xHat: attempt.recent };
    } else {
      kind = "rollback";
      reason = "the state was replaced during the step";
    }
    const means = columnMeans(widened(this.network.modules, proposal.passed, proposal.weights));
    const event = this.write(kind, reason, {
      top: proposal.top,
      weights: Object.fromEntries(this.network.modules.names.map((name, i) => [name, means[i]!])),
      samples: attempt.batch.length,
      reliable: proposal.reliable,
      entropyBefore: proposal.entropyBefore,
      entropyAfter: proposal.entropyAfter,
      milliseconds,
    });
    return { blend: judged.blend, event };
  }

  /** Back to the exported weights where what was learned is why nothing is finite; else the error goes on. */
  private async failed(attempt: Attempt, error: unknown): Promise<{ blend: Blend; event: Event }> {
    const { before } = attempt;
    let plain: Blend | null = null;
    if (error instanceof NotFiniteError && before.affines.size) plain = await fallBack(attempt).catch(() => null);
    const state = plain ? this.exported : before;
    if (this.current === before) this.current = { ...state, steps: before.steps + 1, rollbacks: before.rollbacks + 1 };
    const reason = plain ? "logits are not finite" : String(error);
    const event = this.write("rollback", reason, { samples: attempt.batch.length });
    if (!plain) throw error;
    return { blend: plain, event };
  }

  /** Another domain: modules and prototypes start anew, from the exported selector; learned affines stay. */
  reopen(reason: string): void {
    this.current = reopened(this.current, this.exported.selector);
    this.recent = this.nothing;
    this.write("change", reason);
  }

  /** Something was noticed that changes nothing. */
  note(reason: string): void {
    this.write("change", reason);
  }

  /** Back to the exported weights, bit for bit; a step under way is dropped. */
  reset(): void {
    this.current = { ...this.exported, steps: this.current.steps };
    this.recent = this.nothing;
    this.changes = new ChangeDetector();
    this.write("reset", "all modules and the selector");
  }

  /** A step that is under way will not be taken; nothing else changes. */
  dropStep(): void {
    this.current = { ...this.current };
  }

  /** What was learned, in the file format of `Runtime.save`. */
  save(): Promise<Uint8Array> {
    return saveState(this.current, this.network);
  }

  /** Take up what was saved, here or by Python's runtime, with the same bundle. */
  async restore(bytes: Uint8Array): Promise<void> {
    this.current = await restoreState(bytes, this.network);
    this.write("restore", `${this.current.steps} steps`);
  }

  private write(kind: Event["kind"], reason: string, more: Partial<Event> = {}): Event {
    const event: Event = { kind, step: this.current.steps, reason, frame: this.frames, ...more };
    this.events.push(event);
    if (this.events.length > MOST_EVENTS) this.events.shift();
    this.onEvent(event);
    return event;
  }
}
