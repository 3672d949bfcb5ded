/** The page: a camera, what is said of it, who says it, and what is learned. All of it happens on this device. */

import type { Event } from "../core/index.js";
import type { Asked, Predicted, Ready, Told } from "./messages.js";

const COLOURS = 7;
const POINTS = 600; // frames that the chart reaches back
const ROWS = 60; // events that are listed
const KINDS: Record<Event["kind"], string> = {
  step: "Learned",
  gather: "Waiting",
  rollback: "Taken back",
  change: "Change",
  reset: "Reset",
  restore: "Restored",
};

const $ = <T extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as T;
const whole = new Intl.NumberFormat("en");
const percent = (x: number) => `${(100 * x).toFixed(x > 0 && x < 0.0995 ? 1 : 0)} %`;

interface Point {
  readonly frame: number;
  readonly weights: readonly number[];
  readonly entropy: number;
}

const worker = new Worker("web-worker.js", { type: "module" });
const ask = (asked: Asked, transfer: Transferable[] = []) => worker.postMessage(asked, transfer);
const canvas = document.createElement("canvas");
const pen = canvas.getContext("2d", { willReadFrequently: true })!;

let ready: Ready | null = null;
let camera: MediaStream | null = null;
let adapting = true;
let answered: () => void = () => undefined; // for who waits for the frame that was sent
let points: Point[] = [];
let marks: { frame: number; kind: Event["kind"] }[] = [];
let times: number[] = []; // milliseconds of the last predictions
let arrivals: number[] = []; // when they came

// What the worker says

worker.onmessage = ({ data }: MessageEvent<Told>) => {
  if (data.type === "ready") begin(data);
  else if (data.type === "prediction") {
    show(data);
    answered();
  } else if (data.type === "event") happened(data.event, data.steps, data.rollbacks);
  else if (data.type === "saved") download(data.bytes);
  else {
    toast(data.text, true);
    answered();
    if (data.fatal) status(data.text, "gone");
  }
};
worker.onerror = (event) => status(`The worker could not start: ${event.message || "see the console"}`, "gone");

function begin(news: Ready): void {
  ready = news;
  say("bundle", `${news.architecture}, ${news.precision}. `);
  $("camera").style.aspectRatio = `${news.size[1]} / ${news.size[0]}`;
  $("bars").replaceChildren(...news.modules.map(bar));
  $("legend").replaceChildren(...news.modules.map(key));
  say("steps", whole.format(news.steps));
  for (const id of ["start", "pictures", "adapt", "reset", "save"]) $<HTMLButtonElement>(id).disabled = false;
  status("Ready", "waiting");
  draw();
}

function colour(index: number): string {
  if (ready!.modules[index] === ready!.generalist || index >= COLOURS) return "var(--others)";
  return `var(--m${index})`;
}

function bar(name: string, index: number): HTMLElement {
  const row = element("li", "");
  const meter = element("div", "meter");
  const fill = element("i", "");
  fill.style.background = colour(index);
  meter.append(fill);
  row.append(element("span", "name", name), element("span", "value", "–"), meter);
  return row;
}

function key(name: string, index: number): HTMLElement {
  const row = element("li", "");
  const patch = element("i", "");
  patch.style.background = colour(index);
  row.append(patch, name);
  return row;
}

function show(said: Predicted): void {
  say("label", said.label);
  say("confidence", `${percent(said.confidence)} confident`);
  $("sure").style.width = `${100 * said.confidence}%`;
  [...$("bars").children].forEach((row, i) => {
    const weight = said.weights[i]!;
    row.querySelector(".value")!.textContent = percent(weight);
    row.querySelector<HTMLElement>("i")!.style.width = `${100 * weight}%`;
  });
  const now = performance.now();
  times = [...times.slice(-99), said.milliseconds];
  arrivals = [...arrivals.filter((t) => t > now - 3000), now];
  const span = now - arrivals[0]!;
  measure("rate", span > 500 ? ((1000 * (arrivals.length - 1)) / span).toFixed(1) : "–", "/s");
  measure("median", median(times).toFixed(1), "ms");
  say("frames", `${whole.format(said.frame)} frames`);
  measure("next", adapting ? String(said.waiting) : "–", adapting ? `of ${said.batch}` : "");
  say("until", !adapting ? "not adapting" : said.learning ? "learning now" : "frames gathered");
  if (camera) seen(canvas); // what was predicted, not what the camera sees by now
  points = [...points.slice(1 - POINTS), { frame: said.frame, weights: said.weights, entropy: said.entropy }];
  document.body.dataset.frames = String(said.frame);
  if (said.frame % 3 === 0 || points.length < 30) draw();
}

function happened(event: Event, steps: number, rollbacks: number): void {
  say("steps", whole.format(steps));
  say("taken", rollbacks ? `${whole.format(rollbacks)} taken back` : "none taken back");
  if (event.milliseconds !== undefined) measure("cost", (event.milliseconds / 1000).toFixed(2), "s");
  marks = [...marks.slice(-200), { frame: event.frame, kind: event.kind }];
  const row = element("li", "");
  row.dataset.kind = event.kind;
  const told = event.reason || `${event.top} leads, ${event.reliable} of ${event.samples} frames are sure`;
  row.append(element("b", "", KINDS[event.kind]), element("span", "why", told), element("span", "when", `frame ${whole.format(event.frame)}`));
  $("events").prepend(row);
  while ($("events").children.length > ROWS) $("events").lastElementChild!.remove();
  $("quiet").hidden = true;
  document.body.dataset.steps = String(steps);
}

// Frames: one is under way at a time, so a slow device sees fewer of them and none late

function predict(source: CanvasImageSource, width: number, height: number): Promise<void> {
  canvas.width = width;
  canvas.height = height;
  pen.drawImage(source, 0, 0, width, height);
  const { data } = pen.getImageData(0, 0, width, height);
  return new Promise((resolve) => {
    answered = resolve;
    ask({ type: "frame", width, height, data }, [data.buffer]);
  });
}

async function start(): Promise<void> {
  if (camera) return stop();
  if (!navigator.mediaDevices) {
    toast("Cameras need a page from https:// or from http://localhost.", true);
    return;
  }
  try {
    const video = { facingMode: "environment", width: { ideal: 640 }, height: { ideal: 480 } };
    camera = await navigator.mediaDevices.getUserMedia({ video, audio: false });
  } catch (cause) {
    toast(`No camera: ${(cause as Error).message}`, true);
    return;
  }
  const video = $<HTMLVideoElement>("video");
  video.srcObject = camera;
  await video.play();
  video.hidden = false;
  say("start", "Stop");
  status(adapting ? "Live, adapting" : "Live", "live");
  const here = camera;
  const pause = 1000 / (Number(document.body.dataset.rate) || 10);
  let due = performance.now();
  while (camera === here) {
    await picture(video);
    const now = performance.now();
    if (now < due || document.hidden) continue;
    due = Math.max(due + pause, now); // a device that is too slow looks at fewer frames, and at none late
    await predict(video, video.videoWidth, video.videoHeight);
  }
}

/** Until the camera has a new picture; the time out is for pages that are hidden, and cameras that are gone. */
function picture(video: HTMLVideoElement): Promise<unknown> {
  return new Promise((resolve) => {
    video.requestVideoFrameCallback?.(resolve);
    setTimeout(resolve, "requestVideoFrameCallback" in video ? 500 : 30);
  });
}

function stop(): void {
  camera?.getTracks().forEach((track) => track.stop());
  camera = null;
  $("video").hidden = true;
  say("start", "Start camera");
  status("Stopped", "waiting");
}

function seen(image: ImageBitmap | HTMLCanvasElement): void {
  const still = $<HTMLCanvasElement>("still");
  still.width = image.width;
  still.height = image.height;
  still.getContext("2d")!.drawImage(image, 0, 0);
  still.hidden = false;
  $("empty").hidden = true;
}

async function pictures(files: readonly File[]): Promise<void> {
  stop();
  for (const file of files) {
    const image = await createImageBitmap(file).catch(() => null);
    if (!image) {
      toast(`${file.name}: not a picture that this browser can read`, true);
      continue;
    }
    seen(image);
    await predict(image, image.width, image.height);
  }
}

// Buttons

$("start").onclick = () => void start();
$("pictures").onclick = () => $("files").click();
$("files").onchange = async () => {
  const input = $<HTMLInputElement>("files");
  await pictures([...input.files!]);
  input.value = ""; // the same file may be chosen again
};
$("adapt").onclick = () => {
  adapting = !adapting;
  $("adapt").setAttribute("aria-pressed", String(adapting));
  say("adapt", adapting ? "Adapting" : "Not adapting");
  ask({ type: "adapt", on: adapting });
  if (camera) status(adapting ? "Live, adapting" : "Live", "live");
};
$("reset").onclick = () => $<HTMLDialogElement>("confirm").showModal();
$("cancel").onclick = () => $<HTMLDialogElement>("confirm").close();
$("yes").onclick = () => {
  $<HTMLDialogElement>("confirm").close();
  ask({ type: "reset" });
  toast("Forgotten: the exported weights are in use.");
};
$("save").onclick = () => ask({ type: "save" });

function download(bytes: Uint8Array): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes as BlobPart]));
  link.download = "state.safetensors";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The chart: which modules it leans on, and how unsure it is, over the last frames

function draw(): void {
  const chart = $<HTMLCanvasElement>("chart");
  const { clientWidth: width, clientHeight: height } = chart;
  const scale = devicePixelRatio;
  chart.width = width * scale;
  chart.height = height * scale;
  const brush = chart.getContext("2d")!;
  brush.scale(scale, scale);
  const style = getComputedStyle(document.documentElement);
  const ink = (name: string) => style.getPropertyValue(name.replace(/var\((.*)\)/, "$1")).trim();
  if (points.length < 2 || !ready) return;
  const first = points[0]!.frame;
  const span = Math.max(points[points.length - 1]!.frame - first, 100);
  const x = (frame: number) => ((frame - first) / span) * width;
  let below = points.map(() => 0);
  ready.modules.forEach((_, index) => {
    const above = below.map((value, i) => value + smooth(i, index));
    brush.beginPath();
    points.forEach((p, i) => brush.lineTo(x(p.frame), height * (1 - above[i]!)));
    for (let i = points.length - 1; i >= 0; i--) brush.lineTo(x(points[i]!.frame), height * (1 - below[i]!));
    brush.fillStyle = ink(colour(index));
    brush.globalAlpha = 0.86;
    brush.fill();
    below = above;
  });
  brush.globalAlpha = 1;
  for (const { frame, kind } of marks.filter((m) => m.frame > first && ["change", "rollback", "reset"].includes(m.kind))) {
    brush.fillStyle = ink(kind === "change" ? "--ink" : "--bad");
    brush.fillRect(x(frame) - 1, 0, 2, height);
  }
  brush.beginPath();
  points.forEach((p, i) => brush.lineTo(x(p.frame), height * (1 - 0.96 * mean(points.slice(Math.max(i - 7, 0), i + 1).map((q) => q.entropy)))));
  brush.lineJoin = "round";
  for (const [line, paint] of [[4, "--card"], [2, "--ink"]] as const) {
    brush.lineWidth = line;
    brush.strokeStyle = ink(paint);
    brush.stroke();
  }
}

/** A weight over a few frames, so that one that flickers is seen. */
function smooth(at: number, index: number): number {
  return mean(points.slice(Math.max(at - 3, 0), at + 1).map((p) => p.weights[index]!));
}

// Small things

function mean(values: readonly number[]): number {
  return values.reduce((a, b) => a + b, 0) / values.length;
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)]!;
}

function element(tag: string, name: string, text = ""): HTMLElement {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  return made;
}

function say(id: string, text: string): void {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function measure(id: string, value: string, unit: string): void {
  $(id).replaceChildren(value, element("small", "", ` ${unit}`));
}

function status(text: string, is: string): void {
  say("status", text);
  $("status").dataset.is = is;
  $("main").classList.toggle("gone", is === "gone");
}

let quiet = 0;
function toast(text: string, bad = false): void {
  say("toast", text);
  $("toast").className = bad ? "on bad" : "on";
  clearTimeout(quiet);
  quiet = window.setTimeout(() => ($("toast").className = ""), 6000);
}

window.addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
status("Loading", "waiting");
const at = (file: string) => new URL(file, location.href).href;
ask({
  type: "open",
  bundle: at("bundle/"),
  ort: { module: at("ort/ort.js"), glue: at("ort/glue.js"), wasm: at("ort/ort.wasm") },
  batch: Number(document.body.dataset.batch) || 64,
});
