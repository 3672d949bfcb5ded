/** What a runtime has learned. Values are never changed in place: a step makes a new state, or none. */

import { Affines } from "./affines.js";
import type { Contradiction, Evidence } from "./guard.js";
import { allFinite } from "./linear.js";
import { Prototypes } from "./prototypes.js";
import { type SelectorWeights, TENSORS } from "./selector.js";

export type Moments = ReadonlyMap<string, Float64Array>;
type Lambdas = ReadonlyMap<string, Affines>;

/** Gradients that wait for more reliable samples, as sums. */
export interface Gathered {
  readonly selector: ReadonlyMap<string, Float64Array>;
  readonly samples: number;
  readonly affines: Lambdas;
  readonly reliable: number;
}

export const NOTHING_GATHERED: Gathered = { selector: new Map(), samples: 0, affines: new Map(), reliable: 0 };

/** Selector, the affines that differ from their export, optimizer memory and counters: runtime/algorithm/state.py. */
export interface State {
  readonly selector: SelectorWeights;
  readonly moments: Moments;
  readonly affines: Lambdas;
  readonly momentum: Lambdas;
  readonly gathered: Gathered;
  readonly prototypes: Prototypes;
  readonly unmoved: Prototypes; // among the features of the exported affines
  readonly top: string | null;
  readonly reliable: number; // share of the last batch
  readonly labels: readonly number[];
  readonly evidence: readonly Evidence[];
  readonly compared: readonly Contradiction[];
  readonly kept: number;
  readonly average: number | null;
  readonly steps: number;
  readonly rollbacks: number;
  readonly samples: number;
}

/** Before anything was learned. */
export function fresh(selector: SelectorWeights): State {
  return {
    selector,
    moments: new Map(),
    affines: new Map(),
    momentum: new Map(),
    gathered: NOTHING_GATHERED,
    prototypes: new Prototypes(),
    unmoved: new Prototypes(),
    top: null,
    reliable: 1,
    labels: [],
    evidence: [],
    compared: [],
    kept: 1,
    average: null,
    steps: 0,
    rollbacks: 0,
    samples: 0,
  };
}

/** Whether nothing that was learned or gathered is NaN or infinity. */
export function finite(state: State): boolean {
  const affines = [...state.affines.values(), ...state.momentum.values(), ...state.gathered.affines.values()];
  return (
    TENSORS.every((name) => allFinite(state.selector[name].data)) &&
    [...state.moments.values()].every(allFinite) &&
    affines.every((a) => a.finite) &&
    state.prototypes.finite
  );
}

/** For another domain: modules are chosen anew with this selector, prototypes start anew, affines stay. */
export function reopened(state: State, selector: SelectorWeights): State {
  return {
    ...state,
    selector,
    moments: new Map(),
    momentum: new Map(),
    gathered: NOTHING_GATHERED,
    prototypes: new Prototypes(),
    unmoved: new Prototypes(),
    top: null,
    compared: [],
    average: null,
  };
}

/** A share of the way from the exported weights to what was learned; its momentum is gone. */
export function shrunk(state: State, share: number, selector: SelectorWeights, exported: (name: string) => Affines): State {
  const unmoved = state.unmoved.times(share);
  const f = Math.fround(share);
  const tensors = TENSORS.map((name) => {
    const { shape, data } = selector[name];
    const learned = state.selector[name].data;
    const moved = data.map((v, i) => v + Math.fround(f * Math.fround(learned[i]! - v)));
    return [name, { shape, data: moved }] as const;
  });
  const back = (name: string, a: Affines) => a.towards(exported(name), 1 - share);
  return {
    ...state,
    selector: Object.fromEntries(tensors) as unknown as SelectorWeights,
    moments: new Map(),
    affines: new Map([...state.affines].map(([name, a]) => [name, back(name, a)])),
    momentum: new Map(),
    gathered: NOTHING_GATHERED,
    prototypes: unmoved,
    unmoved,
  };
}
