/**
 * The module with the most to say is taught what the blend is sure of: runtime/algorithm/teaching.py has the reasons.
 * A batch counts as far as it shows the classes evenly.
 */

import { columnMeans, entropy, type Matrix } from "./linear.js";
import { SURE } from "./prototypes.js";

const WEIGHT = 3; // of an image's cross-entropy beside the alignment of the batch

/** Targets [B,K] of a batch's cross-entropy, from what is said of it; zero where that is not sure enough. */
export function lessons(probabilities: Matrix): Matrix {
  return probabilities.map((p) => (p > SURE ? (WEIGHT / probabilities.rows) * p : 0));
}

/** How evenly the batch shows the classes: 1 if there are as many as chance would show, 0 if there is one only. */
export function evenness(probabilities: Matrix): number {
  const { rows, cols } = probabilities;
  const effective = Math.exp(entropy(columnMeans(probabilities)));
  const byChance = cols * (1 - (1 - 1 / cols) ** rows);
  return Math.min(1, Math.max(0, (effective - 1) / Math.max(byChance - 1, 1))) ** 2;
}
