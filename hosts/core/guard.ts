/** Whether adaptation has gone wrong, all at once or little by little: runtime/guard.py has the reasons. */

import { argmax, entropies, entropy, type Matrix, max, mean, sum, TINY } from "./linear.js";
import { round } from "./preprocess.js";

/** Label adapted and exported, entropy adapted and exported. */
export type Evidence = readonly [number, number, number, number];
/** Whether the labels differ, and how likely the exported one is wrong. */
export type Contradiction = readonly [boolean, number];

const MIN_SAMPLES = 16;
const MAX_WINDOW = 512;
const FEW_CLASSES = 0.25;
const LOW_ENTROPY = 0.01;
const SEEN_LESS = 0.3;
const HIGH_ENTROPY = 0.2;
export const CANARY = 4; // one image of so many is compared
export const RECENT = 64; // comparisons that count
export const HELPFUL = 0.4;
const LOOK_CLOSER = 0.5;
const TOO_OFTEN = 1.5;
const FEWEST = 32;
export const GIVE_UP = 0.1;
const TOO_SURE = 2; // log-probabilities of head and prototypes together are divided by it

/** How many recent predictions are watched: enough to see every class twice. */
export function window(classes: number): number {
  return Math.min(Math.max(64, 2 * classes), MAX_WINDOW);
}

function counted(labels: readonly number[], classes: number): number[] {
  const counts = new Array<number>(classes).fill(0);
  for (const label of labels) counts[label]! += 1;
  return counts;
}

/** The effective number of predicted classes, exp of their entropy, against how many could have shown up. */
export function fewClasses(labels: readonly number[], classes: number): boolean {
  const spread = Math.exp(entropy(counted(labels, classes).map((n) => n / labels.length)));
  return spread <= 1 + FEW_CLASSES * (Math.min(classes, labels.length) - 1);
}

/** Cheap, on every step: recent predicted labels, and this batch's mean entropy. */
export function suspicion(labels: readonly number[], meanEntropy: number, classes: number): boolean {
  if (labels.length < MIN_SAMPLES) return false;
  return fewClasses(labels, classes) || meanEntropy < LOW_ENTROPY * Math.log(classes);
}

/** Probabilities [n,K] of the same images, both ways. */
export function compare(adapted: Matrix, exported: Matrix): Evidence[] {
  const sure = entropies(adapted);
  const plain = entropies(exported);
  return Array.from(sure, (h, i) => [argmax(adapted.row(i)), argmax(exported.row(i)), h, plain[i]!] as const);
}

/** Why these predictions are a collapse, or nothing. */
export function verdict(evidence: readonly Evidence[], classes: number): string {
  if (evidence.length < MIN_SAMPLES) return "";
  const labels = evidence.map((e) => e[0]);
  const dominant = argmax(counted(labels, classes));
  const share = labels.filter((n) => n === dominant).length / labels.length;
  const plainShare = evidence.filter((e) => e[1] === dominant).length / labels.length;
  if (fewClasses(labels, classes) && plainShare < share * (SEEN_LESS + 1 / classes)) {
    const percent = (v: number) => `${round(100 * v)}%`;
    return `collapse of classes: class ${dominant} is predicted for ${percent(share)}, with the exported weights for ${percent(plainShare)}`;
  }
  const sure = mean(evidence.map((e) => e[2]));
  const plainSure = mean(evidence.map((e) => e[3]));
  if (sure < LOW_ENTROPY * Math.log(classes) && plainSure > HIGH_ENTROPY * Math.log(classes)) {
    return `collapse of entropy: ${sure.toFixed(3)}, with the exported weights ${plainSure.toFixed(3)}`;
  }
  return "";
}

/** Probabilities [n,K] of the same images, both ways. Those of head and prototypes are `multiplied`. */
export function contradictions(adapted: Matrix, exported: Matrix, multiplied: boolean): Contradiction[] {
  const sure = multiplied ? tempered(exported) : exported;
  return Array.from({ length: adapted.rows }, (_, i) => {
    return [argmax(adapted.row(i)) !== argmax(exported.row(i)), 1 - max(sure.row(i))] as const;
  });
}

/** As sure as they are right, about: opinions that were multiplied are too sure of what they have in common. */
function tempered(probabilities: Matrix): Matrix {
  const root = probabilities.map((p) => Math.max(p, TINY) ** (1 / TOO_SURE));
  const totals = Array.from({ length: root.rows }, (_, i) => sum(root.row(i)));
  return root.map((v, at) => v / totals[Math.floor(at / root.cols)]!);
}

function totals(compared: readonly Contradiction[]): { differing: number; wrong: number } {
  return {
    differing: compared.filter(([differs]) => differs).length,
    wrong: compared.reduce((total, [, wrong]) => total + wrong, 0),
  };
}

/** Whether the exported weights are contradicted so often that all images should be compared. */
export function lookCloser(compared: readonly Contradiction[]): boolean {
  const { differing, wrong } = totals(compared);
  return differing > LOOK_CLOSER * wrong;
}

/** The share of what was learned that would contradict the exported weights as often as is helpful; 1 is all. */
export function mayStay(compared: readonly Contradiction[]): number {
  const { differing, wrong } = totals(compared);
  if (compared.length < FEWEST || differing <= TOO_OFTEN * wrong + Math.sqrt(wrong)) return 1;
  return (HELPFUL * wrong) / differing;
}
