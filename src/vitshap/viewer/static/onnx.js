// The backend of a page without a server: the model runs in this browser, in a thread of its own (onnx-worker.js). See
// viewer.js for what a backend is.

const SMALL = 0.05; // as in explainers/calibration.py

export class InBrowser {
  // folder: where description.json and the graphs are; onLoading: told how many bytes are there, and how many there are.
  constructor({ folder = "model/", onLoading = () => {} } = {}) {
    this.folder = new URL(folder, document.baseURI).href;
    this.onLoading = onLoading;
    this.asked = new Map(); // number of a message -> its promise
    this.numbers = new WeakMap(); // photo -> its number
    this.last = 0;
  }

  async models() {
    this.worker = new Worker(new URL("onnx-worker.js", import.meta.url), { type: "module" });
    this.worker.addEventListener("message", ({ data }) => this.answer(data));
    this.worker.addEventListener("error", (event) => this.stop(event.message || "the thread of the model could not be started"));
    const found = this.description = await this.ask("load", { folder: this.folder });
    const { name, grid, class_names, low_confidence, unit } = found;
    return { models: [{ name, kind: "bundle", default: true, grid, class_names, methods: ["explainer"], low_confidence, unit }] };
  }

  async explain(photo, { target = "all", signal } = {}) {
    const started = performance.now();
    const { name, grid, players, class_names: names, unit, calibration, num_players: count } = this.description;
    const { size, box, full, base, values } = await this.ask("explain", this.photo(photo), signal);
    const order = [...full.keys()].sort((a, b) => full[b] - full[a] || a - b);
    const [, most] = /^top-(\d+)$/.exec(target) ?? [];
    const wanted = /^\d+$/.test(target) ? [Number(target)] : order.slice(0, most ?? order.length);
    const classes = wanted.map((index) => {
      const own = Array.from({ length: count }, (_, player) => values[player * names.length + index]);
      const stderr = calibration ? standardErrors(calibration, own, index, full, unit === "probability") : null;
      return { index, name: names[index], probability: full[index], base: base[index], values: own, stderr,
        reliability: stderr ? reliabilityOf(own, stderr) : null };
    });
    return { model: name, method: "explainer", grid, players, image_size: size, box, unit, additive: true, class_names: names,
      prediction: full, classes, evaluations: this.description.base ? 1 : 2, seconds: (performance.now() - started) / 1000,
      reliability: classes[0].reliability, stderr_from: this.description.stderr_from, warnings: [], notes: [], picture: null };
  }

  predict(photo, coalitions, { signal } = {}) {
    return this.ask("predict", { ...this.photo(photo), coalitions }, signal);
  }

  photo(photo) {
    if (!this.numbers.has(photo)) { this.numbers.set(photo, this.last += 1); }
    return { photo, number: this.numbers.get(photo) };
  }

  ask(kind, content, signal) {
    signal?.throwIfAborted();
    const id = this.last += 1;
    return new Promise((resolve, reject) => {
      this.asked.set(id, { resolve, reject });
      this.worker.postMessage({ id, kind, ...content });
    });
  }

  answer({ id, result, error, progress }) {
    if (progress) { this.onLoading(...progress); return; }
    const { resolve, reject } = this.asked.get(id);
    this.asked.delete(id);
    if (error === undefined) { resolve(result); } else { reject(new Error(error)); }
  }

  stop(message) {
    for (const { reject } of this.asked.values()) { reject(new Error(message)); }
    this.asked.clear();
  }
}

function meanOf(numbers) { return numbers.reduce((sum, one) => sum + one, 0) / numbers.length; }

// Standard errors of one class's values, as Calibration.stderr computes them.
function standardErrors({ coefficients, players, classes, factor }, values, index, prediction, probability) {
  const mean = meanOf(values);
  const square = Math.max(meanOf(values.map((value) => (value - mean) ** 2)), 1e-16);
  const p = Math.min(Math.max(prediction[index], 1e-4), 1 - 1e-4);
  const uncertain = probability ? Math.log(p * (1 - p)) : 0;
  const doubt = probability ? Math.log(Math.max(1 - Math.max(...prediction), 1e-4)) : 0;
  return values.map((value, player) => {
    const features = [1, Math.log(square), uncertain, doubt, Math.log((value - mean) ** 2 / square + SMALL)];
    const logVariance = features.reduce((sum, one, i) => sum + one * coefficients[i], players[player] + classes[index]);
    return factor * Math.exp(logVariance / 2);
  });
}

// The share of the variance between players that is not error, as estimators/estimate.py has it for a posterior's mean.
function reliabilityOf(values, stderr) {
  const mean = meanOf(values);
  const variance = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(values.length - 1, 1);
  const error = meanOf(stderr.map((one) => one ** 2));
  return error > 0 ? 1 - Math.min(error / (variance + error), 1) : 1;
}
