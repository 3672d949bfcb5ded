/** What the page and its worker say to each other. */

import type { Event } from "../core/index.js";
import type { OrtFiles } from "./host.js";

export type Asked =
  | { readonly type: "open"; readonly bundle: string; readonly ort: OrtFiles; readonly batch: number }
  | { readonly type: "frame"; readonly width: number; readonly height: number; readonly data: Uint8ClampedArray }
  | { readonly type: "adapt"; readonly on: boolean }
  | { readonly type: "reset" }
  | { readonly type: "save" };

export interface Ready {
  readonly type: "ready";
  readonly architecture: string;
  readonly precision: string;
  readonly size: readonly [number, number];
  readonly modules: readonly string[];
  readonly generalist: string | null;
  readonly steps: number; // that a state which was kept here has behind it
}

export interface Predicted {
  readonly type: "prediction";
  readonly frame: number;
  readonly label: string;
  readonly confidence: number;
  readonly entropy: number; // as a share of ln K
  readonly weights: readonly number[];
  readonly milliseconds: number;
  readonly waiting: number; // frames until the next step, and of how many
  readonly batch: number;
  readonly learning: boolean;
  readonly skipped: number;
}

export type Told =
  | Ready
  | Predicted
  | { readonly type: "event"; readonly event: Event; readonly steps: number; readonly rollbacks: number }
  | { readonly type: "saved"; readonly bytes: Uint8Array }
  | { readonly type: "error"; readonly text: string; readonly fatal: boolean };
