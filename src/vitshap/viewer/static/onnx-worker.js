// The thread in which an exported page computes: photos to the model's input, and the graphs with onnxruntime-web.
//
// Messages are { id, kind, ... }; each is answered by { id, result } or { id, error }, and while files are loaded by
// { id, progress: [bytes that are there, bytes of all] }. What takes least goes first, so that the brush does not wait
// for a curve.

import { decodePhoto, modelInput } from "./photo-input.js";

const RUNTIME = new URL("../onnxruntime-web/", import.meta.url);
const AT_ONCE = 2; // coalitions in one pass; other messages have their turn after it
const KEPT = 4; // photos whose input is kept

const model = {};
const photos = new Map(); // number of a photo -> its input
const waiting = [];
let working = false;

async function read(address, onBytes) {
  const answer = await fetch(address);
  if (!answer.ok) { throw new Error(`${address.pathname} is missing (${answer.status})`); }
  const parts = [];
  const reader = answer.body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    onBytes(part.value.length);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

async function load({ folder, onProgress }) {
  const description = model.description = await (await fetch(new URL("description.json", folder))).json();
  const { bytes, runtime } = description;
  const all = Object.values(bytes).reduce((sum, one) => sum + one, 0);
  let done = 0;
  const counted = (count) => { done += count; onProgress([done, all]); };
  const wasm = await read(new URL(runtime.binary, RUNTIME), counted);
  const ort = model.ort = await import(new URL(runtime.module, RUNTIME).href);
  Object.assign(ort.env.wasm, { numThreads: 1, wasmBinary: wasm.buffer });
  for (const name of ["game", "values"]) {
    const graph = await read(new URL(`${name}.onnx`, folder), counted);
    model[name] = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
  }
  return description;
}

function tensor(type, data, ...shape) { return new model.ort.Tensor(type, data, shape); }

async function inputOf({ photo, number }) {
  if (!photos.has(number)) {
    const decoded = await decodePhoto(photo);
    const { channels, image_size: size, preprocess, pillow } = model.description;
    const { pixels, box } = modelInput(decoded, preprocess, pillow);
    photos.set(number, { size: [decoded.width, decoded.height], box, pixels: tensor("float32", pixels, 1, channels, ...size) });
    if (photos.size > KEPT) { photos.delete(photos.keys().next().value); }
  }
  return photos.get(number);
}

// Outputs of the model for coalitions of one photo, strings with one character per player, 1: shown.
async function play(pixels, coalitions) {
  const { num_players: count, class_names: names } = model.description;
  const shown = Uint8Array.from(coalitions.join(""), Number);
  const { predictions } = await model.game.run({ pixels, coalitions: tensor("bool", shown, 1, coalitions.length, count) });
  return coalitions.map((_, row) => [...predictions.data.subarray(row * names.length, (row + 1) * names.length)]);
}

// v(1) and v(0) of a photo, evaluated once; v(0) is stored where it is the same for every photo.
async function endsOf(input) {
  const { base, num_players: count } = model.description;
  if (!input.ends) {
    const [full, none] = await play(input.pixels, ["1".repeat(count), ...base ? [] : ["0".repeat(count)]]);
    input.ends = { full, base: base ?? none };
  }
  return input.ends;
}

async function explain(message) {
  const input = await inputOf(message);
  const { full, base } = await endsOf(input);
  const outputs = { full: tensor("float32", Float32Array.from(full), 1, full.length), base: tensor("float32", Float32Array.from(base), 1, base.length) };
  const { values } = await model.values.run({ pixels: input.pixels, ...outputs });
  return { size: input.size, box: input.box, full, base, values: values.data };
}

// One step of a message; true when its result is complete.
async function step(job) {
  if (job.kind === "load") { job.result = await load(job); return true; }
  if (job.kind === "explain") { job.result = await explain(job); return true; }
  const input = await inputOf(job);
  const { full, base } = await endsOf(input);
  const next = job.coalitions.slice(job.found.length, job.found.length + AT_ONCE);
  if (next.length) { job.found.push(...await play(input.pixels, next)); }
  job.result = { predictions: job.found, full, base };
  return job.found.length === job.coalitions.length;
}

function cost({ kind, coalitions, found }) { return kind === "predict" ? coalitions.length - found.length : 0; }

async function work() {
  working = true;
  while (waiting.length) {
    const job = waiting.reduce((best, one) => cost(one) < cost(best) ? one : best);
    try {
      if (await step(job)) {
        waiting.splice(waiting.indexOf(job), 1);
        postMessage({ id: job.id, result: job.result });
      }
    } catch (error) {
      waiting.splice(waiting.indexOf(job), 1);
      postMessage({ id: job.id, error: error.message });
    }
    await new Promise((resolve) => { setTimeout(resolve); }); // messages arrive meanwhile
  }
  working = false;
}

addEventListener("message", ({ data }) => {
  waiting.push({ ...data, found: [], onProgress: (progress) => postMessage({ id: data.id, progress }) });
  if (!working) { work(); }
});
