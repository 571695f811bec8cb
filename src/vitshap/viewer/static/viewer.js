// One photo and its explanation: the map, the classes, the curve, the methods. The page of `vitshap serve`, the report and
// notebooks all show this. With a backend the model answers for any patches; without one, what is stored is shown.
//
// A backend is an object with three functions, each returning a promise:
//   models() -> [{ name, kind, default, grid, class_names, methods, low_confidence, unit, ... }]
//   explain(photo, { model, method, target, budget, signal, onProgress }) -> an explanation (explanation.js)
//   predict(photo, coalitions, { model, signal }) -> { predictions: [[output of each class]], base, full }
// where a photo is a File or Blob and a coalition a string with one character per player, 1: shown.

import { Coalition, hiddenAt } from "./coalition.js";
import { computeCurve, CurveView } from "./curve.js";
import { button, checkbox, choice, element, slider } from "./dom.js";
import { savePicture, saveNumbers } from "./download.js";
import { actOf, classOf, cropText, intervalText, isUncertain, largestValue, listedPlayers, mainClass, orderOf, placeOf, playerBox, readExplanation } from "./explanation.js";
import { PatchMap } from "./map.js";
import { paintStrip } from "./painting.js";
import { Predictions } from "./predictions.js";
import { accuracyText, Methods, OtherClasses } from "./small-maps.js";
import { sizeText, valueText, withUnit } from "./text.js";

const HIDE_AT_ONCE = 10;

export class Viewer extends EventTarget {
  // photo: an image or canvas, or null; file: what the backend takes.
  constructor({ explanation, photo = null, file = null, name = "", backend = null, model = null, methods = [], others = [], listed = 10, curves = [], onReport = null }) {
    super();
    this.explanation = explanation;
    Object.assign(this, { photo, file, name, backend, model, methods, listed, onReport });
    this.explanations = new Map([explanation, ...others].map((one) => [one.method, one]));
    this.index = mainClass(explanation);
    this.look = { opacity: 1, smooth: false, certain: false, colour: false, numbers: false, ownScale: false };
    const touch = matchMedia("(pointer: coarse)").matches;
    this.brush = { mode: backend && !touch ? "hide" : "look", size: 1 };
    this.coalition = new Coalition(explanation.count);
    this.curves = new Map(curves.map((one) => [`${one.method} ${one.class}`, one]));
    this.now = null; // outputs of the shown patches, by class
    this.lit = null;
    this.sharedLimit = null; // one scale with another viewer
    this.map = new PatchMap(this);
    this.predictions = new Predictions(this);
    this.curveView = new CurveView(this);
    this.others = new OtherClasses(this);
    this.methodView = new Methods(this);
    this.node = this.build();
    this.node.addEventListener("keydown", (event) => this.key(event));
    this.coalition.addEventListener("change", () => this.refresh());
    this.draw();
    this.needCurve();
  }

  get canExplain() { return this.backend !== null; }

  get ownLimit() { return largestValue(classOf(this.explanation, this.index).values) || 1; }

  get limit() { return this.sharedLimit ?? this.ownLimit; }

  // The curve of this method and class; without a model one that is stored, which the curve's title names.
  get curve() {
    const own = this.curves.get(`${this.explanation.method} ${this.index}`);
    if (own !== undefined || this.backend) { return own ?? null; }
    const stored = [...this.curves.values()];
    return this.mainCurve ?? stored.find((one) => one.class === this.index) ?? stored[0] ?? null;
  }

  // That of the class which the first line is about.
  get mainCurve() { return this.curves.get(`${this.explanation.method} ${mainClass(this.explanation)}`) ?? null; }

  build() {
    this.alert = element("p", { class: "fault", role: "alert", hidden: true });
    this.strip = element("canvas", { class: "strip", width: 256, height: 1, "aria-hidden": "true" });
    paintStrip(this.strip);
    this.legend = element("div", { class: "scale" });
    this.crop = element("p", { class: "small" });
    this.accuracy = element("p", { class: "small" });
    this.certain = checkbox("only what is certain", false, (checked) => this.setLook({ certain: checked }));
    const looks = element("div", { class: "controls" },
      slider("map", { min: 0, max: 100, value: 100, "aria-label": "Opacity of the map" }, (value) => this.setLook({ opacity: value / 100 })),
      checkbox("smooth", false, (checked) => this.setLook({ smooth: checked })),
      checkbox("photo's colours", false, (checked) => this.setLook({ colour: checked })),
      checkbox("numbers", false, (checked) => this.setLook({ numbers: checked })), this.certain);
    this.table = element("tbody", {});
    this.tableTitle = element("span", {});
    this.unitName = element("span", {});
    const columns = ["#", this.unitName, "where", "row, column", "pixels of the photo"];
    const table = element("details", { class: "best" }, element("summary", {}, this.tableTitle), element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": "Most important patches" },
      element("table", {}, element("thead", {}, element("tr", {}, columns.map((name, i) => element("th", { scope: "col", class: i === 1 ? "n" : null }, name)))), this.table)));
    table.open = this.backend === null;
    return element("div", { class: "viewer" }, this.alert,
      element("div", { class: "board" },
        element("section", { class: "stage", "aria-label": "Map" }, this.brushes(), this.map.node, this.map.readout, this.legend, looks, this.accuracy, this.crop),
        this.predictions.node), table,
      this.curveView.node, this.methodView.node, this.others.node, this.downloads());
  }

  brushes() {
    this.modes = choice("Brush", [["look", "look"], ["hide", "hide"], ["show", "show"]], this.brush.mode, (mode) => { this.brush.mode = mode; this.map.draw(); });
    const sizes = choice("Size", [["1", "1"], ["2", "2"], ["3", "3"]], "1", (size) => { this.brush.size = Number(size); });
    this.undo = button("Undo", () => this.coalition.undo(), { title: "Undo (z)" });
    this.reset = button("Reset", () => this.hide([]), { title: "Show all patches" });
    const best = (count) => hiddenAt(orderOf(this.explanation, this.index), "remove", count);
    const all = () => [...Array(this.explanation.count).keys()];
    return element("div", { class: "controls brushes" }, this.modes, sizes,
      button(`Hide best ${HIDE_AT_ONCE}`, () => this.hide(best(HIDE_AT_ONCE)), { title: `Hide the ${HIDE_AT_ONCE} most important patches` }),
      button("Swap", () => this.hide(all().filter((player) => !this.coalition.hidden[player])), { title: "Hide what is shown, show what is hidden" }),
      this.undo, this.reset);
  }

  downloads() {
    const report = this.onReport ? button("Report", () => this.onReport()) : null;
    return element("section", { class: "downloads" },
      element("div", { class: "controls" }, element("span", { class: "small" }, "Download"),
        button("PNG", () => savePicture(this)), button("JSON", () => saveNumbers(this)), report),
      element("p", { class: "small" }, "A value says how much seeing that patch raises or lowers this model's output, on average over all orders in which "
        + "patches could be revealed. It explains the model, not the world: a model can be right for a wrong reason, and this shows it. "
        + "Where patches matter only together, a single number per patch cannot say so: compare \u201cnow\u201d with \u201csum of values\u201d."));
  }

  hide(players) {
    this.coalition.mark();
    this.coalition.set(players);
  }

  setLook(change) {
    Object.assign(this.look, change);
    this.draw();
  }

  // Numbered patches, and the patch whose row in the table is under the pointer.
  marks() {
    const best = listedPlayers(this.explanation, this.index, this.listed);
    const shown = this.look.numbers ? best.map((player, i) => [player, String(i + 1), player === this.lit]).reverse() : [];
    return this.lit === null ? shown : [...shown.filter(([player]) => player !== this.lit), [this.lit, this.look.numbers ? String(best.indexOf(this.lit) + 1) : "", true]];
  }

  draw() {
    this.drawHidden();
    this.others.draw();
    this.methodView.draw();
    this.drawLegend();
    this.drawTable();
  }

  // What depends on the hidden patches.
  drawHidden() {
    this.map.draw();
    this.predictions.draw();
    this.curveView.draw();
    this.reset.disabled = this.coalition.count === 0;
    this.undo.disabled = this.coalition.history.length === 0;
  }

  drawLegend() {
    const { explanation, index } = this;
    const { name, stderr } = classOf(explanation, index);
    const size = sizeText(this.limit, explanation.unit);
    const score = explanation.unit === "score";
    this.legend.replaceChildren(element("span", { class: "low" }, score ? "lower score" : `lowers '${name}'`),
      element("span", { class: "high" }, score ? "higher score" : `raises '${name}'`), this.strip,
      element("span", {}, `\u2212${size}`), element("span", {}, "0"), element("span", {}, withUnit(`+${size}`, explanation.unit)));
    this.certain.hidden = !stderr;
    this.map.readout.classList.toggle("long", Boolean(stderr));
    for (const [place, said] of [[this.accuracy, accuracyText(explanation, index)], [this.crop, cropText(explanation)]]) {
      place.hidden = said === null;
      place.textContent = said ?? "";
    }
  }

  drawTable() {
    const { explanation, index } = this;
    const { name, values, stderr } = classOf(explanation, index);
    const intervals = stderr ? ", with 95\u00a0% intervals" : "";
    const act = actOf(explanation);
    const players = listedPlayers(explanation, index, this.listed);
    const [verb, what] = act === null ? ["supports", name] : [act, `the probability of ${name}`];
    this.tableTitle.textContent = players.length === 0 ? `No patch ${verb} ${what}`
      : players.length === 1 ? `The patch that ${verb} ${what} most${intervals}`
      : `The ${players.length} patches that ${verb.slice(0, -1)} ${what} most${intervals}`;
    this.unitName.textContent = explanation.unit === "probability" ? "percentage points" : explanation.unit === "score" ? "score" : "value";
    const focused = this.table.contains(document.activeElement) ? [...this.table.children].indexOf(document.activeElement) : -1;
    this.table.replaceChildren(...players.map((player, rank) => {
      const cell = explanation.cells[player][Math.floor(explanation.cells[player].length / 2)];
      const [left, top, right, bottom] = playerBox(explanation, player).map(Math.round);
      const light = (on) => () => { this.lit = on ? player : null; this.map.draw(); };
      const interval = intervalText(classOf(explanation, index), player, explanation.unit);
      const error = interval === null ? null : element("span", { class: "error", title: "95 % interval" }, ` (${interval})`);
      return element("tr", { "data-rank": rank + 1, tabindex: 0, class: stderr && isUncertain(values[player], stderr[player]) ? "uncertain" : null,
        onmouseenter: light(true), onmouseleave: light(false), onfocus: light(true), onblur: light(false) },
      element("td", {}, String(rank + 1)), element("td", { class: "n" }, valueText(values[player], explanation.unit), error),
      element("td", {}, placeOf(explanation, player)),
      element("td", {}, `${Math.floor(cell / explanation.columns) + 1}, ${cell % explanation.columns + 1}`),
      element("td", {}, `x ${left} to ${right}, y ${top} to ${bottom}`));
    }));
    if (focused >= 0) { this.table.children[focused]?.focus(); }
  }

  // Another class: its map is already here, or the backend explains it.
  async choose(index) {
    const { explanation } = this;
    this.chosen = index;
    if (classOf(explanation, index) === null) {
      if (!this.canExplain) { return; }
      this.predictions.node.setAttribute("aria-busy", "true");
      try {
        const found = await this.explain({ method: explanation.method, target: String(index) });
        explanation.classes.push(...found.classes.filter((one) => classOf(explanation, one.index) === null));
        this.fail(null);
      } catch (error) {
        this.fail(error.message);
        return;
      } finally { this.predictions.node.removeAttribute("aria-busy"); }
      if (this.explanation !== explanation || this.chosen !== index) { return; } // something else was chosen meanwhile
    }
    this.index = index;
    this.draw();
    this.announce();
    this.needCurve();
  }

  // The map of another method becomes the large one.
  use(method) {
    this.explanation = this.explanations.get(method);
    if (classOf(this.explanation, this.index) === null) { this.index = mainClass(this.explanation); }
    this.draw();
    this.announce();
    this.needCurve();
  }

  // A method's new explanation: curves in the order of the old one go, and its large map is drawn anew.
  replaceMethod(explanation) {
    const { method } = explanation;
    this.explanations.set(method, explanation);
    for (const key of [...this.curves.keys()].filter((one) => one.startsWith(`${method} `))) { this.curves.delete(key); }
    if (this.explanation.method === method) { this.use(method); }
  }

  async explain(options) {
    const found = await this.backend.explain(this.file, { model: this.model, target: this.target, ...options });
    return readExplanation(found);
  }

  // Few classes are explained at once, of many only the most probable.
  get target() { return this.explanation.predictions.length <= 20 ? "all" : "top-5"; }

  fail(message) {
    this.alert.hidden = message === null;
    this.alert.textContent = message ?? "";
  }

  announce() { this.dispatchEvent(new Event("change")); }

  moved(cell) { this.dispatchEvent(new CustomEvent("cursor", { detail: cell })); }

  // The coalition has changed: draw it at once, and the prediction for it as soon as it is known.
  refresh() {
    const stored = this.coalition.count === 0 ? null : this.storedOutputs();
    if (stored !== null || this.coalition.count === 0) { this.now = stored; }
    this.drawHidden();
    this.announce();
    if (this.coalition.count > 0 && stored === null) {
      if (this.backend) { this.ask(); } else { this.now = null; this.predictions.draw(); this.curveView.draw(); }
    }
  }

  storedOutputs() {
    for (const curve of this.curves.values()) {
      for (const mode of ["remove", "add"]) {
        const step = this.coalition.stepOf(curve.order, mode);
        const at = step === null ? -1 : curve.counts.indexOf(step);
        if (at >= 0) { return new Map(curve.classes.map((index, column) => [index, curve[mode][at][column]])); }
      }
    }
    return null;
  }

  // One question at a time; of those that come meanwhile only the last is asked.
  async ask() {
    this.wanted = true;
    if (this.asking) { return; }
    this.asking = true;
    while (this.wanted) {
      this.wanted = false;
      const { bits } = this.coalition;
      try {
        const { predictions: [outputs] } = await this.backend.predict(this.file, [bits], { model: this.model });
        if (bits === this.coalition.bits) {
          this.now = new Map(outputs.entries());
          this.fail(null);
          this.predictions.draw();
          this.curveView.draw();
          this.map.sayNow(classOf(this.explanation, this.index).name, outputs[this.index], this.explanation.outputs);
          this.dispatchEvent(new Event("predicted"));
        }
      } catch (error) {
        this.now = null; // it was about other patches
        this.predictions.draw();
        this.curveView.draw();
        this.fail(error.message);
      }
    }
    this.asking = false;
  }

  // Evaluate the curve of this method and class in the background; questions of the brush go first.
  async needCurve() {
    const { explanation, index } = this;
    const key = `${explanation.method} ${index}`;
    if (!this.backend || this.curves.has(key) || (this.computing?.explanation === explanation && this.computing.index === index)) { return; }
    const job = this.computing = { explanation, index };
    const predict = async (coalitions) => {
      while (this.asking) { await new Promise((resolve) => { setTimeout(resolve, 50); }); }
      if (this.computing !== job) { throw new DOMException("another curve is wanted", "AbortError"); }
      return this.backend.predict(this.file, coalitions, { model: this.model });
    };
    try {
      const curve = await computeCurve(explanation, index, predict);
      if (this.explanations.get(explanation.method) !== explanation) { return; } // its values were replaced meanwhile
      this.curves.set(key, curve);
      this.curveView.draw();
      this.dispatchEvent(new Event("curve"));
    } catch (error) {
      if (error.name !== "AbortError") { this.fail(error.message); }
    }
    if (this.computing === job) { this.computing = null; }
  }

  close() {
    this.computing = null;
    this.backend = null;
    this.curveView.pause();
    this.methodView.cancel();
  }

  key(event) {
    const typing = event.target.closest("input:not([type=range]):not([type=radio]):not([type=checkbox]), select, textarea");
    if (typing || event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) { return; }
    if (/^[1-9]$/.test(event.key)) {
      const one = this.predictions.listed()[Number(event.key) - 1];
      if (one) { this.choose(one.index); }
    } else if (event.key === "[" || event.key === "]") {
      this.curveView.step(event.key === "]" ? 1 : -1);
    } else if (event.key === "z") {
      this.coalition.undo();
    } else { return; }
    event.preventDefault();
  }
}
