// The live page: one or two photos or models beside each other, with any backend (see viewer.js). The address holds the
// state, not the photo.

import { hexToHidden, hiddenToHex } from "./coalition.js";
import { button, element } from "./dom.js";
import { saveReport } from "./download.js";
import { classOf, headlineOf, readExplanation } from "./explanation.js";
import { startTheme } from "./theme.js";
import { outputText } from "./text.js";
import { Viewer } from "./viewer.js";

const SLOW_MS = 1000; // after this long, say what is being done
const PREVIEW_PIXELS = 720;
const MOST_PIXELS_SHOWN = 2048;

const byId = (id) => document.getElementById(id);

// A file as a picture, upright; null if the browser cannot show it (DICOM, for example): then the server may send one.
async function showable(file) {
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(MOST_PIXELS_SHOWN / Math.max(bitmap.width, bitmap.height), 1);
    const canvas = element("canvas", { width: Math.max(Math.round(bitmap.width * scale), 1), height: Math.max(Math.round(bitmap.height * scale), 1) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    return canvas;
  } catch { return null; }
}

async function decoded(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

// One photo explained by one model, with its first line and messages.
class Pane extends EventTarget {
  constructor(app, model) {
    super();
    Object.assign(this, { app, model, viewer: null, file: null, turn: 0, asked: null });
    this.title = element("h2", {});
    this.headline = element("p", { class: "say" });
    this.messages = element("div", {});
    this.body = element("div", {});
    this.remove = button("Close", () => app.close(this), { hidden: true });
    this.node = element("article", { class: "card" },
      element("div", { class: "pane-head" }, this.title, this.remove), this.headline, this.messages, this.body);
  }

  // Explain a photo. The last result stays until the new one is there, and if there is an error (false). What was asked
  // last counts: null if that is something else meanwhile, or the pane was closed.
  async open(file, state = {}, model = this.model) {
    const turn = this.turn += 1;
    this.asked = file;
    const photo = await showable(file);
    if (this.turn !== turn) { return null; }
    const slow = setTimeout(() => { if (this.turn === turn) { status.hidden = false; } }, SLOW_MS);
    const status = element("p", { class: "small", role: "status", hidden: true }, `${model.name} is explaining the photo \u2026`, element("progress", {}));
    this.body.replaceChildren(element("div", { class: "busy" }, photo ? preview(photo) : null, status));
    this.app.fail(null);
    try {
      const target = model.class_names && model.class_names.length <= 20 ? "all" : "top-5";
      const method = model.methods.includes(state.method) ? state.method : undefined;
      const answer = await this.app.backend.explain(file, { model: model.name, target, method });
      const picture = photo ?? (answer.picture ? await decoded(answer.picture) : null);
      if (this.turn !== turn) { return null; }
      const explanation = readExplanation({ class_names: model.class_names, ...answer });
      this.model = model;
      await this.show(explanation, picture, file, state);
      return true;
    } catch (error) {
      if (this.turn !== turn) { return null; }
      this.asked = this.file;
      this.body.replaceChildren(...this.viewer ? [this.viewer.node] : []);
      this.app.fail(`${file.name || "The photo"} could not be explained: ${error.message}`);
      return false;
    } finally { clearTimeout(slow); }
  }

  async show(explanation, photo, file, state) {
    this.viewer?.close();
    const name = file.name || "pasted photo";
    this.file = file;
    this.viewer = new Viewer({
      explanation, photo, file, name, backend: this.app.backend, model: this.model.name, methods: this.model.methods,
      onReport: () => saveReport(this.app.panes.map((pane) => pane.viewer), new URL("static/", document.baseURI)),
    });
    this.title.textContent = `${name} \u00b7 ${this.model.name}`;
    this.body.replaceChildren(this.viewer.node);
    this.say();
    this.viewer.addEventListener("change", () => { this.say(); this.dispatchEvent(new Event("change")); });
    this.viewer.addEventListener("curve", () => this.say());
    if (state.class !== undefined && explanation.predictions.some((one) => one.index === state.class)) { await this.viewer.choose(state.class); }
    const hidden = state.hidden ? hexToHidden(state.hidden, explanation.count) : null;
    if (hidden) { this.viewer.hide(hidden); }
    this.viewer.draw();
    this.dispatchEvent(new Event("change"));
  }

  say() {
    const { explanation, mainCurve } = this.viewer;
    this.headline.textContent = headlineOf(explanation, mainCurve);
    const warnings = [...explanation.warnings ?? []];
    const notes = this.viewer.photo ? [] : ["this browser cannot show the file itself: the map is drawn alone"];
    const best = explanation.predictions[0].probability;
    const threshold = this.model.low_confidence;
    if (typeof threshold === "number" && best < threshold && !warnings.some((one) => one.startsWith("low confidence"))) {
      warnings.push(`low confidence: best of ${explanation.predictions.length} classes ${outputText(best)} (threshold ${Math.round(100 * threshold)} %)`);
    }
    this.messages.replaceChildren(...warnings.map((one) => element("p", { class: "warning" }, element("strong", {}, "Warning: "), one,
      one.startsWith("low confidence") ? ". Perhaps none of the classes fits; then the map explains a guess." : "")),
    ...notes.map((one) => element("p", { class: "note" }, element("strong", {}, "Note: "), one)));
  }
}

function preview(photo) {
  const scale = Math.min(PREVIEW_PIXELS / Math.max(photo.width, photo.height), 1);
  const canvas = element("canvas", { width: Math.round(photo.width * scale), height: Math.round(photo.height * scale), role: "img", "aria-label": "The photo" });
  canvas.getContext("2d").drawImage(photo, 0, 0, canvas.width, canvas.height);
  return canvas;
}

export class App {
  constructor(backend) {
    this.backend = backend;
    this.models = [];
    this.panes = [];
    this.first = null; // the pane whose first photo is being explained
    this.state = readAddress();
    this.next = null; // what the next chosen file is for: null, or "compare"
  }

  // Photos are taken at once; the models are asked for after `before`.
  async start(before = null) {
    startTheme(byId("theme"));
    const select = byId("model");
    const choose = (purpose) => { this.next = purpose; byId("file").click(); };
    byId("choose").addEventListener("click", () => choose(null));
    byId("choose-large").addEventListener("click", () => choose(null));
    byId("help").addEventListener("click", () => byId("help-text").showModal());
    byId("file").addEventListener("change", (event) => {
      const [file] = event.target.files;
      if (file) { this.take(file); }
      event.target.value = "";
    });
    select.addEventListener("change", () => this.changeModel(select.value));
    byId("compare").addEventListener("click", () => this.menu(choose));
    for (const sample of byId("samples").querySelectorAll("button")) {
      sample.addEventListener("click", () => this.takeSample(sample.dataset.photo));
    }
    this.watchDrops();
    document.addEventListener("keydown", (event) => {
      if (event.target === document.body) { this.panes[0]?.viewer?.key(event); }
    });
    try {
      await before;
      const { models } = await this.backend.models();
      byId("loading").hidden = true;
      this.models = models;
      select.replaceChildren(...models.map((one) => element("option", { value: one.name }, one.name)));
      this.model = models.find((one) => one.name === this.state.model) ?? models.find((one) => one.default) ?? models[0];
      select.value = this.model.name;
      if (this.early) { await this.take(this.early); }
    } catch (error) { this.fail(error.message); }
  }

  async takeSample(address) {
    const answer = await fetch(address);
    await this.take(new File([await answer.blob()], address.replace(/^.*\//, "")));
  }

  watchDrops() {
    const root = document.documentElement;
    document.addEventListener("dragover", (event) => { event.preventDefault(); root.classList.add("dragging"); });
    document.addEventListener("dragleave", (event) => { if (event.relatedTarget === null) { root.classList.remove("dragging"); } });
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      root.classList.remove("dragging");
      const [file] = event.dataTransfer.files;
      if (file) { this.take(file); } else { this.fail("what was dropped is not a file: save the picture first, or paste it"); }
    });
    document.addEventListener("paste", (event) => {
      const [file] = event.clipboardData.files;
      if (file) { this.take(file); }
    });
  }

  async take(file) {
    const purpose = this.next;
    this.next = null;
    if (!this.model) { this.early = file; return; } // explained when the models are there
    if (purpose === "compare" && this.panes.length === 1) { await this.addPane(this.panes[0].model, file); return; }
    await this.explain(file);
  }

  // Explain a photo in the first pane; a model that cannot is not the chosen one any more if another one's result stays.
  async explain(file) {
    const pane = this.panes[0] ?? this.first ?? new Pane(this, this.model);
    if (this.panes.length === 0 && this.first === null) {
      this.first = pane;
      byId("panes").append(pane.node);
    }
    byId("empty").hidden = true;
    const opened = await pane.open(file, this.panes.length === 0 ? this.state : {}, this.model);
    if (opened === null) { return; }
    this.first = null;
    if (!opened && !pane.viewer) {
      pane.node.remove();
      byId("empty").hidden = false;
      return;
    }
    if (!opened) {
      this.model = pane.model;
      byId("model").value = this.model.name;
    } else if (!this.panes.length) {
      this.panes.push(pane);
      pane.addEventListener("change", () => this.changed(pane));
      this.changed(pane);
    }
    this.offerComparison();
  }

  offerComparison() {
    byId("compare").hidden = this.panes.length !== 1 || byId("panes").childElementCount !== 1;
  }

  async addPane(model, file) {
    const pane = new Pane(this, model);
    pane.remove.hidden = false;
    byId("panes").append(pane.node);
    byId("panes").classList.add("two");
    this.offerComparison();
    const opened = await pane.open(file);
    if (opened) {
      this.panes.push(pane);
      pane.addEventListener("change", () => this.changed(pane));
      this.changed(pane);
    } else if (opened === false) { this.close(pane); }
  }

  close(pane) {
    pane.turn += 1; // what it still waits for is not shown
    pane.viewer?.close();
    pane.node.remove();
    this.panes = this.panes.filter((one) => one !== pane);
    byId("panes").classList.remove("two");
    this.offerComparison();
    this.changed(this.panes[0]);
  }

  // Another photo with the same model, or the same photo with another model.
  menu(choose) {
    const [pane] = this.panes;
    const others = this.models.filter((one) => one !== pane.model);
    if (others.length === 0) { choose("compare"); return; }
    const dialog = element("dialog", { "aria-label": "Compare with" }, element("h2", {}, "Compare with"),
      element("form", { method: "dialog", class: "controls" }, button("another photo", () => { dialog.close(); choose("compare"); }),
        others.map((one) => button(one.name, () => { dialog.close(); this.addPane(one, pane.file); })), element("button", {}, "Cancel")));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  async changeModel(name) {
    this.model = this.models.find((one) => one.name === name);
    const pane = this.panes[0] ?? this.first;
    if (pane) { await this.explain(pane.asked); } else { writeAddress({ model: name }); }
  }

  // Two maps have one scale if their values have one unit, and the same patches are hidden where photo and grid are the same.
  changed(pane) {
    const [first, second] = this.panes.map((one) => one.viewer);
    if (second && !this.linking) {
      this.linking = true;
      const one = first.explanation.unit === second.explanation.unit;
      const limit = one ? Math.max(first.ownLimit, second.ownLimit) : null;
      const [from, to] = pane.viewer === first ? [first, second] : [second, first];
      if (from.file === to.file && from.explanation.count === to.explanation.count) {
        to.hide([...from.coalition.hidden.keys()].filter((player) => from.coalition.hidden[player]));
      }
      for (const viewer of [first, second]) { viewer.sharedLimit = limit; viewer.map.draw(); viewer.drawLegend(); }
      this.linking = false;
    } else if (first && !second && first.sharedLimit !== null) {
      first.sharedLimit = null;
      first.draw();
    }
    if (first) {
      const { explanation, index, coalition } = first;
      writeAddress({ model: this.panes[0].model.name, class: `${index} ${classOf(explanation, index).name}`, method: explanation.method,
        hidden: hiddenToHex(coalition.hidden) });
    }
  }

  fail(message) {
    const place = byId("fault");
    place.hidden = message === null;
    place.textContent = message ?? "";
    if (message !== null) { place.scrollIntoView({ block: "nearest" }); }
  }
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const index = Number.parseInt(given.get("class"), 10);
  return { model: given.get("model"), class: Number.isNaN(index) ? undefined : index, method: given.get("method") ?? undefined, hidden: given.get("hidden") };
}

function writeAddress(state) {
  const given = new URLSearchParams(Object.entries(state).filter(([, value]) => value));
  history.replaceState(null, "", `#${given}`);
}
