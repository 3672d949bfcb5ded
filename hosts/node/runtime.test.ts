/** What golden vectors do not show: what is refused, what is forgotten, and what a frozen stream leaves alone. */

import assert from "node:assert/strict";
import { cp, mkdtemp, readFile, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { PAPER, PlutoError, readSafetensors, Runtime, writeSafetensors } from "../core/index.js";
import { readGolden } from "../core/test/golden.js";
import { NodeHost, openBundle } from "./host.js";

const folder = join(process.cwd(), "golden");
const bundle = join(folder, "bundles/adapter-fp32");
const { frames } = await readGolden({ read: (path) => readFile(join(folder, path)), host: () => new NodeHost(bundle) });
const batch = frames.slice(0, 16);

async function copied(): Promise<string> {
  const own = join(await mkdtemp(join(tmpdir(), "pluto-")), "bundle");
  await cp(bundle, own, { recursive: true });
  return own;
}

test("a reset gives the exported predictions again, bit for bit", async () => {
  const runtime = await openBundle(bundle, { threads: 1 });
  const unknown = frames.slice(144, 160);
  const before = await runtime.predict(unknown);
  await runtime.step(frames.slice(128, 144));
  await runtime.step(unknown);
  assert.notDeepEqual((await runtime.predict(unknown)).logits.data, before.logits.data);
  runtime.learner.reset();
  assert.deepEqual((await runtime.predict(unknown)).logits.data, before.logits.data);
});

test("a frozen stream learns nothing", async () => {
  const stream = (await openBundle(bundle)).stream({ batch: 8, background: false });
  stream.frozen = true;
  for (const frame of batch) await stream.frame(frame);
  assert.equal(stream.learner.state.steps, 0);
  stream.frozen = false;
  for (const frame of batch) await stream.frame(frame);
  assert.equal(stream.learner.state.steps, 2);
});

test("a stream in the background predicts while it learns, and a reset wins over the step", async () => {
  const stream = (await openBundle(bundle, { config: PAPER })).stream({ batch: 16 });
  for (const frame of batch) await stream.frame(frame);
  assert.ok(stream.busy);
  stream.reset();
  await stream.settle();
  assert.equal(stream.learner.state.affines.size, 0);
  assert.equal(stream.learner.events.at(-1)?.reason, "the state was replaced during the step");
});

test("what was saved is gone on from", async () => {
  const one = await openBundle(bundle, { config: PAPER });
  await one.step(batch);
  const other = await openBundle(bundle, { config: PAPER });
  await other.learner.restore(await one.learner.save());
  assert.deepEqual((await other.predict(batch)).logits.data, (await one.predict(batch)).logits.data);
});

test("a state that is damaged, cut or of another bundle is refused, and changes nothing", async () => {
  const runtime = await openBundle(bundle, { config: PAPER });
  await runtime.step(batch);
  const saved = await runtime.learner.save();
  const { state } = runtime.learner;
  const damaged = saved.slice();
  damaged[damaged.length - 3]! ^= 1;
  await assert.rejects(runtime.learner.restore(damaged), /its digest differs/);
  await assert.rejects(runtime.learner.restore(saved.slice(0, -5)), /not a whole safetensors file/);
  assert.equal(runtime.learner.state, state);
  const other = await openBundle(join(folder, "bundles/vpt-fp32"));
  await assert.rejects(other.learner.restore(saved), /saved with another bundle/);
});

test("a changed bundle is refused by name", async () => {
  const own = await copied();
  const weights = await readFile(join(own, "weights.bin"));
  weights[100]! ^= 1;
  await writeFile(join(own, "weights.bin"), weights);
  const runtime = await openBundle(own);
  await assert.rejects(runtime.predict(batch), /weights\.bin: truncated, or changed since export/);
  await writeFile(join(own, "manifest.json"), '{"schema_version": 1}');
  await assert.rejects(openBundle(own), /want schema version 2, got 1/);
  await assert.rejects(openBundle(join(own, "nowhere")), /is this a bundle of pluto export/);
});

test("images that are none are refused", async () => {
  const runtime = await openBundle(bundle);
  await assert.rejects(runtime.predict([]), /want at least one picture/);
  await assert.rejects(runtime.predict([{ width: 3, height: 3, data: new Uint8Array(5) }]), PlutoError);
});

test("rows that the affines have not are refused", async () => {
  await assert.rejects(Runtime.open(new NodeHost(bundle), { config: { ln_layers: [9] } }), /want rows from 0 to 4, got 9/);
});

test("safetensors go round", () => {
  const tensors = new Map([["a.é", { shape: [2, 1], data: Float32Array.of(1.5, -2) }], ["b", { shape: [], data: Float64Array.of(0.1) }]]);
  const back = readSafetensors(writeSafetensors(tensors, { key: "välue" }), "here");
  assert.deepEqual(back.tensors.get("a.é")!.data, Float32Array.of(1.5, -2));
  assert.deepEqual(back.tensors.get("b")!.shape, []);
  assert.equal(back.metadata.key, "välue");
});
