// node build.mjs                  the page's scripts, into observe/, where Python takes them from
// node build.mjs --out FOLDER     the same elsewhere
// node build.mjs --tests FOLDER   the tests of the hosts
import { build } from "esbuild";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const value = (name) => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : undefined);
const shared = { bundle: true, format: "esm", target: "es2022", absWorkingDir: here, charset: "utf8", logLevel: "warning" };
const tests = value("--tests");

if (tests) {
  await build({
    ...shared,
    platform: "node",
    external: ["onnxruntime-node", "onnxruntime-web"],
    entryPoints: ["node/golden.test.ts", "node/cli.ts", "core/test/core.test.ts"],
    outdir: tests,
    entryNames: "[name]",
    outExtension: { ".js": ".mjs" },
  });
  await build({ ...shared, entryPoints: ["web/golden.ts"], outdir: tests, entryNames: "web-[name]" });
} else {
  const out = value("--out") ?? join(here, "../observe");
  await build({ ...shared, entryPoints: { "web": "web/page.ts", "web-worker": "web/worker.ts" }, outdir: out, minify: true, legalComments: "none" });
}
