/**
 * Whether a step is taken: a proposal becomes the next state, is put off, or is taken back. The rules come one after
 * another: what cannot be used at all; a sudden collapse; loss little by little.
 */

import * as beyond from "./beyond.js";
import type { Continuity } from "./continuity.js";
import { NotFiniteError } from "./errors.js";
import * as guard from "./guard.js";
import { argmax, entropies, type Matrix, mean } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import { every, type Network, type Pass, rowsOf, type Said } from "./network.js";
import { predict, predictFrom } from "./prediction.js";
import { type ImageBatch, round } from "./preprocess.js";
import { Prototypes } from "./prototypes.js";
import { type Blend, probabilitiesOf } from "./selection.js";
import { finite, shrunk, type State } from "./state.js";
import type { Proposal } from "./step.js";

const AVERAGE = 0.9; // of SAR's moving average

/** One step on a batch, with all that it started from. */
export interface Attempt {
  readonly batch: ImageBatch;
  readonly network: Network;
  readonly before: State;
  readonly recent: Matrix; // x̂ of the last images, the batch's among them
  readonly continuity: Continuity;
  readonly exported: State;
  readonly config: AdaptConfig;
}

/** What becomes of a proposal; `over` says that all that was learned is gone. */
export interface Judged {
  readonly blend: Blend;
  readonly state: State;
  readonly kind: "step" | "gather" | "rollback";
  readonly reason: string;
  readonly over: boolean;
}

export async function judge(attempt: Attempt, proposal: Proposal): Promise<Judged> {
  return gradual(attempt, proposal, (await unusable(attempt, proposal)) ?? (await sudden(attempt, proposal)));
}

function said(attempt: Attempt, passed: Pass, state: State): Blend {
  return predictFrom(attempt.network.modules, passed, state, attempt.recent, attempt.config);
}

/** What the exported weights say of all images. */
export async function fallBack({ network, batch, exported, recent, config }: Attempt): Promise<Blend> {
  return (await predict(network, batch, exported, recent, new Prototypes(), config)).blend;
}

/** Proposals that are none: not finite, or of too few reliable images. These may be put off. */
async function unusable(attempt: Attempt, proposal: Proposal): Promise<Judged | null> {
  const { config, before } = attempt;
  if (proposal.passed.leftOut.some((n) => before.affines.has(n))) return over(attempt, await fallBack(attempt), "logits are not finite");
  if (!finite(proposal.state) || !proposal.blend.logits.finite) return unchanged(attempt, proposal, "the update is not finite");
  if (proposal.gathering) {
    const reason = `${proposal.state.gathered.reliable} of ${config.min_reliable} reliable samples`;
    return { blend: said(attempt, proposal.passed, proposal.state), state: proposal.state, kind: "gather", reason, over: false };
  }
  const needed = config.sam === "sample" ? config.min_reliable : Math.min(config.min_reliable, 1);
  const learned = hasPrototypes(attempt); // they learn from every image
  if (config.sam !== null && proposal.reliable < needed && !learned) {
    return unchanged(attempt, proposal, `${proposal.reliable} reliable samples, want ${needed}`);
  }
  return null;
}

/** The proposal, unless entropy is so low, or predictions are of so few classes, that this is a collapse. */
async function sudden(attempt: Attempt, proposal: Proposal): Promise<Judged> {
  const { config, before, network } = attempt;
  const { classes } = network.manifest.dims;
  const probabilities = probabilitiesOf(proposal.blend);
  const found = Array.from({ length: probabilities.rows }, (_, i) => argmax(probabilities.row(i)));
  const labels = [...before.labels, ...found].slice(-guard.window(classes));
  let state: State = { ...proposal.state, labels };
  if (config.recovery !== null && proposal.loss !== null) {
    const average = AVERAGE * (before.average ?? proposal.loss) + (1 - AVERAGE) * proposal.loss;
    if (average < config.recovery * Math.log(classes)) {
      const reason = `recovery: the moving average of the entropy is ${average.toFixed(3)}`;
      return over(attempt, said(attempt, proposal.passed, before), reason);
    }
    state = { ...state, average };
  }
  const taken = { blend: proposal.blend, kind: "step", reason: "", over: false } as const;
  if (!config.guard || !guard.suspicion(labels, mean(entropies(probabilities)), classes)) {
    return { ...taken, state: { ...state, evidence: [] } };
  }
  const plain = said(attempt, await exportedPass(attempt, proposal.passed), attempt.exported);
  const evidence = [...before.evidence, ...guard.compare(probabilities, probabilitiesOf(plain))].slice(-guard.window(classes));
  const collapse = guard.verdict(evidence, classes);
  return collapse ? over(attempt, plain, collapse) : { ...taken, state: { ...state, evidence } };
}

/**
 * Compare some images with what would be said of them if no gradient had ever been followed. Where that is contradicted
 * too often, the step is not taken, and what gradients have made goes back a part of the way, or altogether.
 */
async function gradual(attempt: Attempt, proposal: Proposal, judged: Judged): Promise<Judged> {
  const { before, exported, config, batch } = attempt;
  if (!config.guard || judged.over) return judged;
  if (!before.affines.size && before.selector === exported.selector) {
    return { ...judged, state: { ...judged.state, unmoved: judged.state.prototypes } };
  }
  const all = every(batch);
  const few = all.filter((i) => (before.samples + i) % guard.CANARY === 0);
  if (!few.length) return judged;
  const others = all.filter((i) => !few.includes(i));
  const adapted = probabilitiesOf(judged.blend);
  let plain: Blend;
  let unmoved: Prototypes;
  let compared = before.compared;
  try {
    ({ blend: plain, unmoved } = await withoutGradients(attempt, few, proposal.passed));
    const multiplied = hasPrototypes(attempt);
    compared = [...compared, ...guard.contradictions(adapted.take(few), probabilitiesOf(plain), multiplied)];
    if (guard.lookCloser(compared.slice(-guard.RECENT)) && others.length) {
      ({ blend: plain, unmoved } = await withoutGradients(attempt, all, proposal.passed));
      const told = probabilitiesOf(plain);
      compared = [...compared, ...guard.contradictions(adapted.take(others), told.take(others), multiplied)];
    }
  } catch (error) {
    if (error instanceof NotFiniteError) return judged; // the exported weights say nothing to compare with
    throw error;
  }
  compared = compared.slice(-guard.RECENT);
  const share = guard.mayStay(compared);
  if (share === 1) {
    const kept = compared.length === guard.RECENT ? 1 : before.kept;
    return { ...judged, state: { ...judged.state, unmoved, compared, kept } };
  }
  return wayBack(attempt, plain, unmoved, share);
}

/** Whether prototypes have a say. */
function hasPrototypes({ network, config }: Attempt): boolean {
  return beyond.applies(network.modules, config) && config.prototypes;
}

/** What would be said of some of the images, which `passed` is of; that has prototypes of its own, which learn. */
async function withoutGradients(attempt: Attempt, samples: readonly number[], passed: Pass): Promise<{ blend: Blend; unmoved: Prototypes }> {
  const { network, batch, before, recent, exported, config } = attempt;
  const { unmoved } = before;
  const state = { ...exported, prototypes: unmoved };
  const seen = [rowsOf(passed, samples)];
  const plain = await predict(network, batch.part(samples), state, recent, unmoved, config, seen);
  if (!hasPrototypes(attempt)) return { blend: plain.blend, unmoved };
  const independence = config.continuity ? attempt.continuity.independence : 0;
  const told = probabilitiesOf(plain.blend);
  const times = batch.length / samples.length;
  const found = beyond.learned(network.modules, unmoved, plain.passed, plain.blend, told, independence, times);
  return { blend: plain.blend, unmoved: found };
}

/** Back a part of the way to the exported weights, or altogether where too little would be left. */
function wayBack(attempt: Attempt, plain: Blend, unmoved: Prototypes, share: number): Judged {
  const kept = attempt.before.kept * share;
  const often = (guard.HELPFUL / share).toFixed(1);
  const reason = `the exported weights are contradicted ${often} times as often as they expect to be wrong`;
  if (kept < guard.GIVE_UP) return over(attempt, plain, `${reason}: all that was learned is taken back`);
  const { network, exported } = attempt;
  const back = shrunk({ ...attempt.before, unmoved }, share, exported.selector, (n) => network.modules.get(n).exported);
  const text = `${reason}: ${round(100 * share)}% of what was learned stays`;
  return { blend: plain, state: { ...back, compared: [], kept }, kind: "rollback", reason: text, over: false };
}

/** The same modules on the same images as they were exported; those that never learned are not run again. */
async function exportedPass(attempt: Attempt, passed: Pass): Promise<Pass> {
  const changed = passed.names.filter((n) => attempt.before.affines.has(n));
  if (!changed.length) return passed;
  const again = await attempt.network.run(attempt.batch, new Map(), changed);
  const all = new Map<string, Said>(passed.names.map((n) => [n, again.said.get(n) ?? passed.said.get(n)!]));
  return { ...passed, said: all };
}

/** As if there had been no step. */
function unchanged(attempt: Attempt, proposal: Proposal, reason: string): Judged {
  return { blend: said(attempt, proposal.passed, attempt.before), state: attempt.before, kind: "rollback", reason, over: false };
}

/** Back to the exported weights. */
function over(attempt: Attempt, blend: Blend, reason: string): Judged {
  return { blend, state: attempt.exported, kind: "rollback", reason, over: true };
}
