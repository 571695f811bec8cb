// The probability while patches are removed (or added) in order of their values, with a slider that hides them.
//
// A curve: { method, class: whose values give the order, order: [players], counts: [number of patches at each point],
//   classes: [indices], remove: [[output of each class] at each point], add: the same,
//   random: [[output of the class at each point, with that many patches shown] for each random order] }

import { hiddenAt } from "./coalition.js";
import { button, choice, drawing, element } from "./dom.js";
import { actOf, classOf, orderOf, supportingPlayers } from "./explanation.js";
import { outputText } from "./text.js";

const FRACTIONS = [0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5];
const ORDERS = 3;
const AT_ONCE = 12; // coalitions in a request, so that the brush never waits long
const HEIGHT = 190;
const MARGIN = { left: 52, right: 14, top: 12, bottom: 26 };
const TOPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1]; // upper ends of the axis of a probability
const TICK_MS = 120;

// Numbers of patches at which the curve is evaluated, the same from both ends: as in vitshap/explaining/curves.py.
export function curveCounts(players, also) {
  const low = [...FRACTIONS.map((share) => Math.round(share * players)), also];
  return [...new Set([...low, ...low.map((count) => players - count)])].sort((a, b) => a - b);
}

// Evaluate a curve part by part; `predict` maps coalitions (strings) to { predictions, base, full }.
export async function computeCurve(explanation, index, predict) {
  const order = orderOf(explanation, index);
  const counts = curveCounts(order.length, supportingPlayers(explanation, index));
  const inner = counts.filter((count) => count > 0 && count < order.length);
  const bits = (hidden) => {
    const shown = new Array(explanation.count).fill("1");
    for (const player of hidden) { shown[player] = "0"; }
    return shown.join("");
  };
  const random = Array.from({ length: ORDERS }, (_, seed) => shuffled(order, seed + 1));
  const jobs = [
    ...inner.map((count) => bits(hiddenAt(order, "remove", count))),
    ...inner.map((count) => bits(hiddenAt(order, "add", count))),
    ...random.flatMap((one) => inner.map((count) => bits(hiddenAt(one, "add", count)))),
  ];
  const found = [];
  let ends = null;
  for (let start = 0; start < jobs.length || ends === null; start += AT_ONCE) {
    ends = await predict(jobs.slice(start, start + AT_ONCE));
    found.push(...ends.predictions);
  }
  const part = (at) => found.slice(at * inner.length, (at + 1) * inner.length);
  const wanted = (outputs) => outputs[index];
  return {
    method: explanation.method, class: index, order, counts, classes: [...ends.full.keys()],
    remove: [ends.full, ...part(0), ends.base],
    add: [ends.base, ...part(1), ends.full],
    random: random.map((_, i) => [ends.base, ...part(2 + i), ends.full].map(wanted)),
  };
}

// A random order that is the same every time (mulberry32).
function shuffled(list, seed) {
  let state = seed * 0x9e3779b9;
  const next = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const order = list.slice();
  for (let i = order.length - 1; i > 0; i -= 1) {
    const j = Math.floor(next() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

export class CurveView {
  constructor(viewer) {
    this.viewer = viewer;
    this.mode = "remove";
    this.timer = null;
    this.title = element("h3", {});
    this.modes = choice("Order", [["remove", "remove"], ["add", "add"]], this.mode, (mode) => this.setMode(mode));
    this.plot = drawing("svg", { class: "plot", role: "img", height: HEIGHT });
    this.range = element("input", { type: "range", min: 0, step: 1, "aria-label": "Patches removed",
      onkeydown: (event) => this.key(event), onpointerdown: () => viewer.coalition.mark(), oninput: () => this.slide(Number(this.range.value)) });
    this.label = element("output", { class: "n" });
    this.play = button("Play", () => this.toggle());
    this.note = element("p", { class: "small" });
    this.node = element("section", { class: "curve" }, element("div", { class: "heading" }, this.title, this.modes), this.plot,
      element("div", { class: "slide" }, this.range), element("div", { class: "slide-row" }, this.label, this.play), this.note);
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  get curve() { return this.viewer.curve; }

  get order() { return this.curve?.order ?? orderOf(this.viewer.explanation, this.viewer.index); }

  // The number of patches at a position of the slider: any, or without a model the nearest that was evaluated.
  stop(position) {
    if (this.viewer.backend) { return position; }
    return this.curve.counts.reduce((best, count) => Math.abs(count - position) < Math.abs(best - position) ? count : best);
  }

  // The next number of patches in a direction.
  next(by) {
    const at = Number(this.range.value);
    if (this.viewer.backend) { return Math.min(Math.max(at + by, 0), this.order.length); }
    const { counts } = this.curve;
    return (by > 0 ? counts.find((count) => count > at) : counts.findLast((count) => count < at)) ?? at;
  }

  setMode(mode) {
    const { coalition } = this.viewer;
    const step = coalition.stepOf(this.order, this.mode);
    this.mode = mode;
    if (step !== null) {
      coalition.mark();
      coalition.set(hiddenAt(this.order, mode, mode === "add" && step === 0 && coalition.count === 0 ? this.order.length : step));
    }
    this.draw();
  }

  slide(position) {
    const count = this.stop(position);
    this.viewer.coalition.set(hiddenAt(this.order, this.mode, count));
    this.range.value = count;
  }

  step(by) {
    const next = this.next(by);
    if (next !== Number(this.range.value)) {
      this.viewer.coalition.mark();
      this.slide(next);
    }
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (by === undefined) { return; }
    this.step(by);
    event.preventDefault();
  }

  toggle() {
    if (this.timer !== null) { this.pause(); return; }
    this.viewer.coalition.mark();
    if (this.range.value === this.range.max) { this.slide(0); }
    const by = this.viewer.backend ? Math.max(Math.round(this.order.length / 60), 1) : 1;
    this.play.textContent = "Pause";
    this.timer = setInterval(() => {
      this.slide(this.next(by));
      if (this.range.value === this.range.max) { this.pause(); }
    }, this.viewer.backend ? TICK_MS : 4 * TICK_MS);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "Play";
  }

  draw() {
    const { viewer, curve } = this;
    const { explanation, index, coalition } = viewer;
    this.node.hidden = curve === null && !viewer.backend;
    if (this.node.hidden) { return; }
    const { name } = classOf(explanation, index);
    const remove = this.mode === "remove";
    const quantity = explanation.outputs === "probability" ? "Probability" : "Output";
    const foreign = curve !== null && curve.class !== index ? ` for ${classOf(explanation, curve.class)?.name}` : "";
    const by = curve !== null && curve.method !== explanation.method ? `, by ${curve.method}` : "";
    const first = actOf(explanation) === null ? "most important" : "highest value";
    this.title.textContent = `${quantity} of ${name} while patches are ${remove ? "removed" : "added"}, ${first}${foreign} first${by}`;
    this.range.max = this.order.length;
    const step = coalition.stepOf(this.order, this.mode);
    const count = step ?? (remove ? coalition.count : this.order.length - coalition.count);
    this.range.value = count;
    const now = coalition.count === 0 ? explanation.predictions.find((one) => one.index === index)?.probability : viewer.now?.get(index);
    const said = now === undefined ? "" : `: ${outputText(now, explanation.outputs)}`;
    const done = step === null ? "hidden by hand" : remove ? "removed" : "added";
    this.label.textContent = `${step === null ? coalition.count : count} of ${this.order.length} patches ${done}${said}`;
    this.range.setAttribute("aria-valuetext", this.label.textContent);
    this.range.setAttribute("aria-label", remove ? "Patches removed" : "Patches added");
    this.drawPlot(count, step === null ? undefined : now);
    const random = foreign ? "" : ` Grey: ${ORDERS} random orders.`;
    this.note.textContent = `Line: patches in the order of their values${foreign}${by}.${random}`;
  }

  drawPlot(count, now) {
    const { viewer, curve } = this;
    const width = Math.max(this.node.clientWidth - 0, 240);
    const { left, right, top, bottom } = MARGIN;
    this.plot.setAttribute("width", width);
    this.plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    if (curve === null) {
      this.plot.replaceChildren(drawing("text", { x: left, y: HEIGHT / 2 }, "the curve is being computed \u2026"));
      return;
    }
    const column = curve.classes.indexOf(viewer.index);
    const points = curve[this.mode].map((outputs) => outputs[column]);
    const random = viewer.index === curve.class ? curve.random : [];
    const every = [...points, ...random.flat(), ...(now === undefined ? [] : [now])];
    const probability = viewer.explanation.outputs === "probability";
    const [low, high] = probability ? [0, TOPS.find((top) => Math.max(...every) <= top) ?? 1] : [Math.min(...every), Math.max(...every) || 1];
    const total = this.order.length;
    const x = (value) => left + value / total * (width - left - right);
    const y = (value) => top + (high - value) / (high - low || 1) * (HEIGHT - top - bottom);
    const shapes = [];
    for (const value of probability ? [0, high / 2, high] : [low, high]) {
      shapes.push(drawing("line", { class: "rule", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      const label = probability ? `${Number((100 * value).toPrecision(2))} %` : outputText(value, "output");
      shapes.push(drawing("text", { class: "tick-y", x: left - 8, y: y(value) }, label));
    }
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const at = Math.round(share * total);
      shapes.push(drawing("text", { class: "tick-x", x: x(at), y: HEIGHT - 8 }, String(at)));
    }
    if (random.length) {
      // Random orders were evaluated with that many patches shown; counts are the same from both ends.
      const of = (i) => random.map((one) => one[this.mode === "add" ? i : one.length - 1 - i]);
      const upper = curve.counts.map((one, i) => `${x(one)},${y(Math.max(...of(i)))}`);
      const lower = curve.counts.map((one, i) => `${x(one)},${y(Math.min(...of(i)))}`).reverse();
      shapes.push(drawing("polygon", { class: "band", points: [...upper, ...lower].join(" ") }));
    }
    shapes.push(drawing("polyline", { class: "line", points: curve.counts.map((one, i) => `${x(one)},${y(points[i])}`).join(" ") }));
    if (now !== undefined) {
      shapes.push(drawing("line", { class: "here", x1: x(count), x2: x(count), y1: top, y2: HEIGHT - bottom }));
      shapes.push(drawing("circle", { class: "point", cx: x(count), cy: y(now), r: 5.5 }));
    }
    this.plot.replaceChildren(...shapes);
    const some = [0, Math.floor(points.length / 4), Math.floor(points.length / 2), points.length - 1];
    this.plot.setAttribute("aria-label", `Curve: ${some.map((i) => `${curve.counts[i]} patches `
      + `${outputText(points[i], viewer.explanation.outputs)}`).join(", ")}`);
  }
}
