/** The runtime behind the page: it predicts and learns here, so that the page stays quick. Nothing leaves the device. */

import { type Event, Runtime, type Stream } from "../core/index.js";
import { loadOrt, WebHost } from "./host.js";
import type { Asked, Told } from "./messages.js";
import { forget, keep, recall } from "./store.js";

const KEEP_EVERY = 5000; // milliseconds, at least, from one state that is kept to the next

let runtime: Runtime;
let stream: Stream;
let batch = 64;
let keepAt = 0; // a state is kept at this time, or was
let keeping: Promise<unknown> = Promise.resolve();

function tell(told: Told, transfer: Transferable[] = []): void {
  self.postMessage(told, { transfer });
}

function failed(error: unknown, fatal: boolean): void {
  tell({ type: "error", text: error instanceof Error ? error.message : String(error), fatal });
}

/** Keeps come one after another; one that fails (a full disk, a private window) is told and costs no prediction. */
function keepState(what: () => Promise<unknown>): void {
  keeping = keeping.then(what).catch((error: unknown) => failed(error, false));
}

function onEvent(event: Event): void {
  const { steps, rollbacks } = stream.learner.state;
  tell({ type: "event", event, steps, rollbacks });
  const now = performance.now();
  if (event.kind === "reset" || event.kind === "restore" || keepAt > now) return; // or one that is due will have it
  keepAt = Math.max(keepAt + KEEP_EVERY, now);
  setTimeout(() => keepState(async () => keep(runtime.network.hash, await stream.learner.save())), keepAt - now);
}

async function open(asked: Extract<Asked, { type: "open" }>): Promise<void> {
  const ort = await loadOrt(asked.ort);
  runtime = await Runtime.open(new WebHost(asked.bundle, ort), { onEvent });
  batch = asked.batch;
  stream = runtime.stream({ batch });
  const known = await recall(runtime.network.hash).catch(() => undefined);
  if (known) await stream.learner.restore(known).catch((error: unknown) => failed(error, false));
  const { manifest, network } = runtime;
  tell({
    type: "ready",
    architecture: manifest.architecture,
    precision: manifest.precision,
    size: manifest.preprocessing.size,
    modules: network.modules.names,
    generalist: network.modules.generalist,
    steps: stream.learner.state.steps,
  });
}

async function frame({ width, height, data }: Extract<Asked, { type: "frame" }>): Promise<void> {
  const began = performance.now();
  const said = await stream.frame({ width, height, data });
  const row = said.probabilities.row(0);
  tell({
    type: "prediction",
    frame: stream.learner.frames,
    label: said.classes[0]!,
    confidence: row[said.labels[0]!]!,
    entropy: said.entropy[0]! / Math.log(row.length),
    weights: Array.from(said.weights.row(0)),
    milliseconds: performance.now() - began,
    waiting: stream.waiting,
    batch,
    learning: stream.busy,
    skipped: stream.skipped,
  });
  if (stream.error) {
    failed(stream.error, false);
    stream.error = null;
  }
}

async function answer(asked: Asked): Promise<void> {
  switch (asked.type) {
    case "open":
      return open(asked);
    case "frame":
      return frame(asked);
    case "adapt":
      stream.frozen = !asked.on;
      return undefined;
    case "reset":
      stream.reset();
      return keepState(() => forget(runtime.network.hash));
    case "save": {
      const bytes = await stream.learner.save();
      return tell({ type: "saved", bytes }, [bytes.buffer as ArrayBuffer]);
    }
  }
}

self.onmessage = ({ data }: MessageEvent<Asked>) => {
  answer(data).catch((error: unknown) => failed(error, data.type === "open"));
};
