// node build.mjs                the page's scripts, into observe/, where Python takes them from
// node build.mjs --page FOLDER  the same elsewhere
// node build.mjs --node         the command and the tests of the hosts, into build/
import { build } from "esbuild";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const shared = { bundle: true, format: "esm", target: "es2022", absWorkingDir: here, charset: "utf8", logLevel: "warning" };
const page = process.argv[2] === "--page" ? process.argv[3] : "../observe";

if (process.argv[2] === "--node") {
  const entryPoints = ["node/host.ts", "node/cli.ts", "node/golden.test.ts", "node/runtime.test.ts"];
  const names = { outdir: "build", entryNames: "[name]", outExtension: { ".js": ".mjs" } };
  await build({ ...shared, ...names, entryPoints, platform: "node", external: ["onnxruntime-node"] });
  await build({ ...shared, entryPoints: { "golden-page": "web/golden.ts" }, outdir: "build" });
} else {
  const entryPoints = { web: "web/page.ts", "web-worker": "web/worker.ts" };
  await build({ ...shared, entryPoints, outdir: page, minify: true, legalComments: "none" });
}
