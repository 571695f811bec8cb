// Small maps: the other classes of an explanation, and the same class by several methods, on one scale or each on its own.

import { button, checkbox, element } from "./dom.js";
import { classOf, isUncertain, largestValue, UNRELIABLE, windowOf } from "./explanation.js";
import { commonLimit, paintMap } from "./painting.js";
import { outputText, plural, secondsText, sizeText, withUnit } from "./text.js";

const SMALL_PIXELS = 320;
const WEAK = 0.05; // a map is called weak if its largest value is below this share of the strongest map's
const OTHERS = 8;
const FIRST_METHODS = ["explainer", "refine", "kernelshap", "attnlrp"];
const FIRST_BUDGET = 2048;
const MORE = 4; // times the evaluations, each time the map is refined

function smallMap(viewer, explanation, index, limit, attributes = {}) {
  const canvas = element("canvas", { class: "small-map", ...attributes });
  const [left, top, right, bottom] = windowOf(explanation);
  const aspect = (right - left) / (bottom - top);
  [canvas.width, canvas.height] = aspect > 1
    ? [SMALL_PIXELS, Math.max(Math.round(SMALL_PIXELS / aspect), 1)] : [Math.max(Math.round(SMALL_PIXELS * aspect), 1), SMALL_PIXELS];
  paintMap(canvas, explanation, viewer.photo, { ...viewer.look, index, limit });
  return canvas;
}

export function scaleText(limit, unit) {
  const size = sizeText(limit, unit);
  return `\u2212${size} \u2026 0 \u2026 ${withUnit(`+${size}`, unit)}`;
}

// How accurate values are, in short for a small map; null if that is not known. `from`: where the errors come from.
function shortAccuracy(explanation, index, from = "") {
  const found = classOf(explanation, index);
  if (!found.stderr) { return null; }
  const largest = Math.max(...found.stderr);
  if (largest === 0) { return "exact"; }
  const reliability = found.reliability ?? explanation.reliability;
  const noisy = typeof reliability === "number"
    ? `; estimated reliability ${reliability.toFixed(2)}${reliability < UNRELIABLE ? " (unreliable)" : ""}` : "";
  return `standard error up to ${withUnit(sizeText(largest, explanation.unit), explanation.unit)}${from}${noisy}`;
}

// The same with where the errors come from and what is drawn paler, for the large map.
export function accuracyText(explanation, index) {
  const said = shortAccuracy(explanation, index, explanation.stderr_from ? `, ${explanation.stderr_from}` : "");
  if (said === null) { return null; }
  const { values, stderr } = classOf(explanation, index);
  const pale = values.filter((value, player) => isUncertain(value, stderr[player])).length;
  const paler = pale ? `. Paler: the ${pale} of ${values.length} patches whose 95\u00a0% interval includes zero` : "";
  return `${said.charAt(0).toUpperCase()}${said.slice(1)}${paler}.`;
}

export class OtherClasses {
  constructor(viewer) {
    this.viewer = viewer;
    this.maps = element("div", { class: "maps" });
    this.own = checkbox("each map on its own scale", false, (checked) => { viewer.setLook({ ownScale: checked }); });
    this.node = element("section", { class: "others" },
      element("div", { class: "heading" }, element("h3", {}, "Other classes"), this.own), this.maps);
  }

  draw() {
    const { viewer } = this;
    const { explanation, index } = viewer;
    const rank = new Map(explanation.predictions.map((one, i) => [one.index, i]));
    const others = explanation.classes.filter((one) => one.index !== index)
      .sort((a, b) => (rank.get(a.index) ?? Infinity) - (rank.get(b.index) ?? Infinity)).slice(0, OTHERS);
    this.node.hidden = others.length === 0;
    const strongest = commonLimit(explanation.classes.map((one) => [explanation, one.index]));
    this.maps.replaceChildren(...others.map((one) => {
      const own = largestValue(one.values);
      const limit = viewer.look.ownScale ? own || 1 : strongest;
      const lines = [scaleText(limit, explanation.unit), shortAccuracy(explanation, one.index)];
      if (own < WEAK * strongest) {
        lines.push(own > 0 ? `weak: at most 1/${Math.round(strongest / own)} of the strongest map` : "all values are zero");
      }
      const label = `Map of ${one.name}`;
      return element("figure", {},
        button([smallMap(viewer, explanation, one.index, limit, { role: "img", "aria-label": label })],
          () => viewer.choose(one.index), { class: "pick", "aria-label": `Show the map of ${one.name} large` }),
        element("figcaption", {}, element("span", { class: "name" }, one.name),
          element("span", { class: "n" }, outputText(one.probability, explanation.outputs)),
          ...lines.filter(Boolean).map((line) => element("span", { class: "line" }, line))));
    }));
  }
}

export class Methods {
  constructor(viewer) {
    this.viewer = viewer;
    this.running = new Map(); // method -> { controller, progress }
    this.budgets = new Map();
    this.chips = element("div", { class: "chips" });
    this.maps = element("div", { class: "maps" });
    this.scale = element("p", { class: "small" });
    this.node = element("section", { class: "methods" },
      element("div", { class: "heading" }, element("h3", {}, "Methods side by side"), this.chips), this.maps, this.scale);
  }

  // What refines the values: a method of that name, else kernelshap.
  refiner() {
    const { methods } = this.viewer;
    return ["refine", "kernelshap"].find((name) => methods.includes(name)) ?? null;
  }

  draw() {
    const { viewer } = this;
    const { explanations, index, backend } = viewer;
    this.node.hidden = explanations.size < 2 && (!backend || viewer.methods.length < 2);
    if (this.node.hidden) { return; }
    const shown = [...explanations.values()].filter((one) => classOf(one, index) !== null);
    const { unit } = viewer.explanation;
    const scaled = shown.filter((one) => one.unit === unit && unit !== "score");
    const common = commonLimit(scaled.map((one) => [one, index]));
    const figures = shown.map((one) => {
      const comparable = scaled.includes(one) && !viewer.look.ownScale;
      return this.figure(one, comparable ? common : largestValue(classOf(one, index).values) || 1, !comparable);
    });
    this.maps.replaceChildren(...figures, ...[...this.running].filter(([name]) => !explanations.has(name)).map(([name]) => this.waiting(name)));
    this.drawChips();
    const said = [];
    if (scaled.length > 1) { said.push(`One scale for values of one unit: ${scaleText(common, unit)}.`); }
    if (shown.some((one) => one.unit === "score")) { said.push("Scores have no unit: such a map has its own scale."); }
    this.scale.textContent = shown.length > 1 && !viewer.look.ownScale ? said.join(" ") : "";
  }

  // Buttons for the methods that most people want, a list for the rest.
  drawChips() {
    const { viewer } = this;
    const left = viewer.backend ? viewer.methods.filter((name) => !viewer.explanations.has(name) && !this.running.has(name)) : [];
    const first = FIRST_METHODS.filter((name) => left.includes(name));
    const rest = left.filter((name) => !first.includes(name));
    const list = element("select", { "aria-label": "Add a method", onchange: () => { this.add(list.value); } },
      element("option", { value: "" }, "more methods \u2026"), rest.map((name) => element("option", { value: name }, name)));
    this.chips.replaceChildren(...first.map((name) => button(`+ ${name}`, () => this.add(name), { class: "chip", title: `Explain this photo with ${name}` })),
      ...(rest.length ? [list] : []));
  }

  figure(explanation, limit, own) {
    const { viewer } = this;
    const { method } = explanation;
    const active = explanation === viewer.explanation;
    const facts = `${plural(explanation.evaluations, "evaluation")}, ${secondsText(explanation.seconds)}`;
    const lines = [facts, own ? `own scale ${scaleText(limit, explanation.unit)}` : null, shortAccuracy(explanation, viewer.index)];
    const caption = element("figcaption", {}, element("span", { class: "name" }, method),
      element("span", { class: "n" }, active ? "shown" : ""),
      ...lines.filter(Boolean).map((line) => element("span", { class: "line" }, line)));
    const figure = element("figure", { class: active ? "active" : "" },
      button([smallMap(viewer, explanation, viewer.index, limit, { role: "img", "aria-label": `Map by ${method}` })],
        () => viewer.use(method), { class: "pick", "aria-label": `Show the map by ${method} large`, "aria-pressed": String(active) }), caption);
    if (viewer.backend && method === this.refiner()) { figure.append(this.refineControls(method)); }
    return figure;
  }

  waiting(name) {
    return element("figure", { class: "waiting" }, element("figcaption", {}, element("span", { class: "name" }, name)), this.refineControls(name));
  }

  refineControls(name) {
    const run = this.running.get(name);
    if (!run) {
      const next = this.budgets.has(name) ? MORE * this.budgets.get(name) : FIRST_BUDGET;
      return button(`More evaluations (${next.toLocaleString("en")})`, () => this.add(name, next), { class: "refine" });
    }
    const bar = element("progress", { max: 1, "aria-label": `${name}: evaluations` });
    const said = element("span", { class: "line", role: "status" }, "starting");
    run.show = () => {
      const { evaluations, budget, reliability } = run.progress ?? {};
      if (!budget) { return; }
      bar.value = evaluations / budget;
      const quality = typeof reliability === "number" ? `, expected correlation ${Math.sqrt(Math.max(reliability, 0)).toFixed(2)}` : "";
      said.textContent = `${evaluations.toLocaleString("en")} of ${budget.toLocaleString("en")} evaluations${quality}`;
    };
    run.show();
    return element("div", { class: "running" }, bar, said, button("Cancel", () => run.controller.abort(), { class: "cancel" }));
  }

  // End all computations.
  cancel() {
    for (const { controller } of this.running.values()) { controller.abort(); }
  }

  async add(name, budget = name === this.refiner() ? FIRST_BUDGET : undefined) {
    const { viewer } = this;
    const run = { controller: new AbortController(), progress: null, show: null };
    this.running.set(name, run);
    this.draw();
    try {
      const found = await viewer.explain({
        method: name, budget, signal: run.controller.signal,
        onProgress: (progress) => { run.progress = progress; run.show?.(); },
      });
      if (budget) { this.budgets.set(name, budget); }
      viewer.replaceMethod(found);
      viewer.fail(null);
    } catch (error) {
      if (error.name !== "AbortError") { viewer.fail(`${name}: ${error.message}`); }
    }
    this.running.delete(name);
    viewer.draw();
  }
}
