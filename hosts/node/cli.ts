/**
 * A stream on onnxruntime-node: raw RGB frames on stdin, a line of JSON for each on stdout.
 *
 *     ffmpeg -i video.mp4 -f rawvideo -pix_fmt rgb24 -s 320x240 - | node build/cli.mjs bundle/ --size 320x240
 */

import { readFile, rename, writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";
import { PlutoError } from "../core/index.js";
import { openBundle } from "./host.js";

const USAGE = `usage: node cli.mjs BUNDLE --size WIDTHxHEIGHT [options] < frames.rgb

  --size WxH     of the frames on stdin: three bytes a pixel, row after row
  --batch N      frames that a step learns from (default: 64)
  --state FILE   what was learned: taken up if it is there, and written at the end; Python's runtime reads it, too
  --still        predict, and do not learn
  --threads N    for ONNX Runtime (default: one for each core)
`;

async function* frames(size: number): AsyncGenerator<Uint8Array> {
  let rest = new Uint8Array(0);
  for await (const chunk of process.stdin as AsyncIterable<Buffer>) {
    const all = new Uint8Array(rest.length + chunk.length);
    all.set(rest);
    all.set(chunk, rest.length);
    let at = 0;
    for (; at + size <= all.length; at += size) yield all.slice(at, at + size);
    rest = all.slice(at);
  }
  if (rest.length) throw new PlutoError(`stdin ended within a frame: ${rest.length} of ${size} bytes; is --size right?`);
}

async function main(): Promise<number> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      size: { type: "string" },
      batch: { type: "string", default: "64" },
      state: { type: "string" },
      still: { type: "boolean", default: false },
      threads: { type: "string" },
      help: { type: "boolean", short: "h", default: false },
    },
  });
  const size = /^([1-9]\d*)x([1-9]\d*)$/.exec(values.size ?? "");
  if (values.help || positionals.length !== 1 || !size) {
    process.stderr.write(USAGE);
    return values.help ? 0 : 2;
  }
  const [width, height] = [Number(size[1]), Number(size[2])];
  const threads = values.threads === undefined ? {} : { threads: Number(values.threads) };
  const runtime = await openBundle(positionals[0]!, threads);
  const stream = runtime.stream({ batch: Number(values.batch), background: false });
  if (values.state !== undefined) {
    const saved = await readFile(values.state).catch(() => null);
    if (saved) await stream.learner.restore(saved);
  }
  stream.frozen = values.still;
  for await (const data of frames(width * height * 3)) {
    const began = performance.now();
    const said = await stream.frame({ width, height, data });
    const label = said.labels[0]!;
    const line = {
      frame: stream.learner.frames,
      class: said.classes[0],
      confidence: said.probabilities.row(0)[label],
      weights: Object.fromEntries(said.modules.map((name, i) => [name, said.weights.row(0)[i]])),
      steps: stream.learner.state.steps,
      milliseconds: performance.now() - began,
    };
    process.stdout.write(`${JSON.stringify(line)}\n`);
    if (stream.error) throw stream.error;
  }
  if (values.state !== undefined && !values.still) {
    await writeFile(`${values.state}.new`, await stream.learner.save());
    await rename(`${values.state}.new`, values.state);
  }
  return 0;
}

main().then(
  (code) => (process.exitCode = code),
  (error: Error) => {
    process.stderr.write(`pluto: error: ${error.message}\n`);
    process.exitCode = 2;
  },
);
