/**
 * A step beyond the paper: evidence says who has a say, prototypes help to predict, `affine_step.ts` is what is
 * learned. It has the frame of Algorithm 1 (`step.ts`); `AdaptConfig` switches each part off.
 */

import { ALIGN_FROM, learnBeyond } from "./affine_step.js";
import type { Continuity } from "./continuity.js";
import { SHORTLIST, STAKES, trust } from "./evidence.js";
import { Matrix, max, sum, TINY_32 } from "./linear.js";
import type { AdaptConfig } from "./manifest.js";
import { type Look, type Modules, type Network, onlyOf, type Pass } from "./network.js";
import type { ImageBatch } from "./preprocess.js";
import type { Prototypes } from "./prototypes.js";
import { type Blend, blend, narrowed, probabilitiesOf, updateSelector } from "./selection.js";
import { logitsOf, mixedEntropy, select, weights as selectorWeights } from "./selector.js";
import { learnAffines, type Learned, notLearned, reliableBelow } from "./sharpness.js";
import { type State } from "./state.js";
import type { Proposal } from "./step.js";
import { evenness } from "./teaching.js";

const LITTLE = 0.05; // a module that has less say than this on every image is not run
const AT_RANDOM = 0.5; // independence below which a batch shows its classes, and not its domain
const ROUNDS = 2; // the batch is predicted, learned from, and predicted with what was learned

/** Whether anything here is asked for, and any module has a signature. */
export function applies(modules: Modules, config: AdaptConfig): boolean {
  const asked = config.weighting !== "selector" || config.prototypes || config.objective !== "entropy";
  return asked && modules.references.size > 0;
}

/** What is known of the images before any module runs: shares [B,N] by known domain, and whom the selector weighs. */
export interface Recognised {
  readonly shares: Matrix;
  readonly asked: readonly string[];
}

/** Who has a say: by module its share of every image, [B]; and what is left to the selector, [B], for those asked. */
export interface Say {
  readonly shares: ReadonlyMap<string, Float64Array>;
  readonly rest: Float64Array;
  readonly asked: readonly string[];
}

/** The modules that must run. */
export function namesOf(say: Say, modules: Modules): string[] {
  const asked = max(say.rest) > LITTLE ? say.asked : [];
  return modules.names.filter((n) => say.shares.has(n) || asked.includes(n));
}

/** [B,n] of the modules that ran, rows sum to 1; one that did not run leaves its share to the others. */
export function weightsOf(say: Say, state: State, passed: Pass): Matrix {
  const out = new Matrix(passed.xHat.rows, passed.names.length);
  const asked = passed.names.filter((n) => say.asked.includes(n));
  const few = asked.length && max(say.rest) > LITTLE ? onlyOf(passed, asked) : null;
  const chosen = few && selectorWeights(state.selector, passed.xHat, logitsOf(few));
  for (let i = 0; i < out.rows; i++) {
    const row = out.row(i);
    passed.names.forEach((name, j) => (row[j] = say.shares.get(name)?.[i] ?? 0));
    asked.forEach((name, j) => {
      if (chosen) row[passed.names.indexOf(name)]! += say.rest[i]! * chosen.row(i)[j]!;
    });
    for (let j = 0; j < row.length; j++) row[j]! += TINY_32;
    const total = sum(row);
    for (let j = 0; j < row.length; j++) row[j]! /= total;
  }
  return out;
}

/** From how the images look, and the recent ones, this batch's among them or not. */
export function recognise(modules: Modules, recent: Matrix, xHat: Matrix, config: AdaptConfig): Recognised {
  const { domains, generalist, specialists } = modules;
  if (config.weighting !== "evidence" || domains === null) return { shares: new Matrix(xHat.rows, 0), asked: specialists };
  const shares = domains.weigh(recent, xHat, generalist === null ? 1 : STAKES);
  if (generalist !== null || specialists.length <= SHORTLIST) return { shares, asked: specialists };
  const near = domains.nearest(recent.rows ? recent : xHat, SHORTLIST);
  return { shares, asked: specialists.filter((n) => near.includes(n) || !domains.names.includes(n)) };
}

/** From what is recognised in the images, and from how well each module's features fit so far. */
export function whoHasASay(modules: Modules, prototypes: Prototypes, recognised: Recognised, config: AdaptConfig): Say {
  const { shares: looks, asked } = recognised;
  const ones = new Float64Array(looks.rows).fill(1);
  const none = new Float64Array(looks.rows);
  const { generalist } = modules;
  if (config.weighting === "generalist" && generalist !== null) return { shares: new Map([[generalist, ones]]), rest: none, asked: [] };
  const shares = new Map<string, Float64Array>();
  let rest: Float64Array = ones;
  if (config.weighting === "evidence" && modules.domains !== null) {
    modules.domains.names.forEach((name, column) => {
      const fits = trust(prototypes.misfit(name, modules.references.get(name)!));
      const share = ones.map((_, i) => looks.row(i)[column]! * fits * (modules.homes[name] ?? 1));
      if (max(share) > LITTLE) shares.set(name, share);
    });
    for (const share of shares.values()) rest = rest.map((v, i) => v - share[i]!);
    if (generalist !== null && max(rest) > LITTLE) return { shares: new Map(shares).set(generalist, rest), rest: none, asked: [] };
  }
  return { shares, rest: rest.map((v) => Math.max(v, 0)), asked };
}

/** Where the classes of these images are, for `Prototypes.misfit`; nothing is predicted with it. */
export function tryOn(modules: Modules, tried: Prototypes, passed: Pass, said: Blend, config: AdaptConfig): Prototypes {
  if (!config.prototypes || config.weighting !== "evidence") return tried;
  return learned(modules, tried, passed, said, probabilitiesOf(said), 0);
}

/** With these images, as they were blended and predicted; `Prototypes.learn` explains the last two. */
export function learned(
  modules: Modules,
  prototypes: Prototypes,
  passed: Pass,
  said: Blend,
  probabilities: Matrix,
  independence: number,
  times = 1,
): Prototypes {
  const kept = narrowed(modules, passed, said.weights);
  const shown = probabilities.rows >= ALIGN_FROM ? evenness(probabilities) : 1; // few classes: no guide to the domain
  return prototypes.learn(modules.references, passed, kept, probabilities, independence * shown, times);
}

/** The blend of the top M: by head and prototypes or, without these, as in the paper. */
export function predict(modules: Modules, state: State, passed: Pass, weight: Matrix, config: AdaptConfig): Blend {
  const plain = blend(modules, passed, weight, config).blend;
  if (!config.prototypes) return plain;
  const p = state.prototypes.predict(modules.references, passed, narrowed(modules, passed, plain.weights));
  return { ...plain, logits: p.map(Math.log) };
}

/**
 * One step. `look` is of the batch, `recent` are x̂ of the last images, this batch's among them, and `continuity` is
 * that of the images before it, if one image is to tell of the next.
 */
export async function propose(
  network: Network,
  state: State,
  batch: ImageBatch,
  config: AdaptConfig,
  given: readonly Pass[],
  look: Look,
  recent: Matrix,
  continuity: Continuity | null,
): Promise<Proposal> {
  const { modules } = network;
  const threshold = reliableBelow(network, config);
  const aligning = config.sam === "batch" && config.objective !== "entropy" && batch.length >= ALIGN_FROM;
  const recognised = recognise(modules, recent, look.xHat, config);
  let seen = given;
  let proposed = state;
  let entropyBefore = 0;
  let { gathered } = state;
  let passed!: Pass;
  let weight!: Matrix;
  let blended!: Blend;
  let probabilities!: Matrix;
  let independence = 0;
  for (let turn = 0; turn < (config.prototypes ? ROUNDS : 1); turn++) {
    const say = whoHasASay(modules, proposed.prototypes, recognised, config);
    passed = await network.runFinite(batch, state.affines, namesOf(say, modules), { seen, look, activations: aligning });
    seen = seen.length ? seen : [passed];
    const asked = onlyOf(passed, say.asked);
    if (turn === 0 && asked.names.length && max(say.rest) > LITTLE) {
      ({ entropyBefore, gathered, state: proposed } = updateSelector(state, asked, config));
    }
    weight = weightsOf(say, proposed, passed);
    blended = predict(modules, proposed, passed, weight, config);
    probabilities = probabilitiesOf(blended);
    if (continuity) {
      const { followed, after } = continuity.follow(probabilities);
      probabilities = followed;
      independence = after.independence;
    }
    if (config.prototypes) {
      const found = learned(modules, state.prototypes, passed, blended, probabilities, independence);
      proposed = { ...proposed, prototypes: found };
    }
  }
  const top = passed.names[select(weight, config.top_m).order[0]!]!;
  const entropyAfter = mixedEntropy(weight, passed);
  proposed = { ...proposed, top };

  let after: Learned = notLearned(proposed);
  if (aligning && modules.references.has(top)) {
    if (continuity === null || independence >= AT_RANDOM) {
      after = await learnBeyond(network, proposed, batch, passed, probabilities, threshold, config);
    }
  } else if (config.objective === "entropy" || config.sam === "sample") {
    after = await learnAffines(network, state, proposed, batch, passed, gathered, false, config);
  }
  return { ...after, blend: blended, passed, weights: weight, top, entropyBefore: entropyBefore || entropyAfter, entropyAfter };
}
