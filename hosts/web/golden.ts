/** The golden vectors in a browser: the tests open a page with this script and read what it writes. */

import { type Checked, checkCase, checkResizes, readGolden, type Result } from "../core/test/golden.js";
import { loadOrt, WebHost } from "./host.js";

async function run(): Promise<{ resizes: { problems: string[]; compared: number }; results: Result[] }> {
  const at = (path: string) => new URL(path, location.href).href;
  const ort = await loadOrt({ module: at("ort/ort.js"), glue: at("ort/glue.js"), wasm: at("ort/ort.wasm") });
  const from: Checked = {
    read: async (path) => new Uint8Array(await (await fetch(at(`golden/${path}`))).arrayBuffer()),
    host: (bundle) => new WebHost(at(`golden/bundles/${bundle}/`), ort),
  };
  const golden = await readGolden(from);
  const results: Result[] = [];
  for (const one of golden.cases) results.push(await checkCase(from, one, golden.frames));
  return { resizes: await checkResizes(from, golden), results };
}

run().then(
  (found) => (document.body.textContent = JSON.stringify(found)),
  (error: Error) => (document.body.textContent = JSON.stringify({ error: `${error.message}\n${error.stack}` })),
);
