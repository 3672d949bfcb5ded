/** The golden vectors on onnxruntime-node; PLUTO_GOLDEN names another folder of them. */

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { type Checked, checkCase, checkResizes, readGolden } from "../core/test/golden.js";
import { NodeHost } from "./host.js";

const folder = process.env.PLUTO_GOLDEN ?? join(process.cwd(), "golden");
const from: Checked = {
  read: (path) => readFile(join(folder, path)),
  host: (bundle) => new NodeHost(join(folder, "bundles", bundle), 1),
};
const golden = await readGolden(from);

test("images are resized to the byte as Pillow does it", async () => {
  const { problems, compared } = await checkResizes(from, golden);
  assert.deepEqual(problems, []);
  assert.ok(compared >= 60);
});

for (const one of golden.cases) {
  test(`${one.name} equals Python's runtime`, async (t) => {
    const { problems, errors, milliseconds } = await checkCase(from, one, golden.frames);
    t.diagnostic(JSON.stringify({ name: one.name, milliseconds: Math.round(milliseconds), errors }));
    assert.deepEqual(problems, []);
  });
}
