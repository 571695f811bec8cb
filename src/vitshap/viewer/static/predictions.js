// The classes with their probabilities, for the full photo and for the patches that are shown now, and what the sum of
// values says of it.

import { button, element } from "./dom.js";
import { additivePrediction, classOf, isOneProbability } from "./explanation.js";
import { outputText, plural, valueText, withUnit } from "./text.js";

const LISTED = 10;

export class Predictions {
  constructor(viewer) {
    this.viewer = viewer;
    this.all = false;
    this.list = element("ol", { class: "bars" });
    this.filter = element("input", { type: "search", class: "filter", placeholder: "find a class",
      "aria-label": "Find a class", oninput: () => this.draw() });
    this.more = button("", () => { this.all = !this.all; this.draw(); }, { class: "link" });
    this.sums = element("dl", { class: "sums" });
    this.remark = element("p", { class: "small" });
    this.node = element("section", { class: "said" }, element("h3", {}, isOneProbability(viewer.explanation) ? "Probability" : "Prediction"), this.filter, this.list, this.more,
      element("div", { class: "game", "aria-live": "polite" }, this.sums, this.remark));
  }

  // The classes that are listed: the most probable ones, the chosen one, and those that were explained.
  listed() {
    const { explanation, index } = this.viewer;
    const words = this.filter.value.trim().toLowerCase();
    const { predictions } = explanation;
    if (words) { return predictions.filter((one) => one.name.toLowerCase().includes(words)).slice(0, 50); }
    if (this.all) { return predictions.slice(0, 200); }
    const first = predictions.slice(0, LISTED);
    return first.some((one) => one.index === index) ? first : [...first, ...predictions.filter((one) => one.index === index)];
  }

  draw() {
    const { viewer } = this;
    const { explanation, index } = viewer;
    const many = explanation.predictions.length > LISTED;
    this.filter.hidden = !many;
    this.more.hidden = !many || this.filter.value.trim() !== "";
    this.more.textContent = this.all ? "Fewer classes" : `All ${explanation.predictions.length.toLocaleString("en")} classes`;
    const rows = this.listed();
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.index : null;
    this.list.replaceChildren(...rows.map((one, rank) => this.row(one, rank, one.index === index)));
    if (focused !== null) { this.list.querySelector(`[data-index="${focused}"]`)?.focus(); }
    this.drawSums();
  }

  row(one, rank, chosen) {
    const { viewer } = this;
    const { explanation, coalition } = viewer;
    const hiding = coalition.count > 0;
    const now = hiding ? viewer.now?.get(one.index) : undefined;
    const sum = hiding && chosen ? additivePrediction(explanation, one.index, coalition.hidden) : null;
    const available = classOf(explanation, one.index) !== null || viewer.canExplain;
    const numbers = element("span", { class: "n" }, outputText(one.probability, explanation.outputs));
    if (now !== undefined) { numbers.append(element("b", {}, ` \u2192 ${outputText(now, explanation.outputs)}`)); }
    const row = button([element("span", { class: "name" }, one.name), numbers], () => viewer.choose(one.index), {
      "aria-pressed": String(chosen), "data-index": one.index, disabled: !available,
      title: available ? (rank < 9 ? `Show the map of ${one.name} (key ${rank + 1})` : `Show the map of ${one.name}`)
        : "This class was not explained",
    });
    if (explanation.outputs === "probability") { row.append(bar(one.probability, now, hiding, sum)); }
    return element("li", {}, row);
  }

  drawSums() {
    const { viewer } = this;
    const { explanation, index, coalition, now } = viewer;
    const { name } = classOf(explanation, index);
    const full = explanation.predictions.find((one) => one.index === index)?.probability;
    const sum = additivePrediction(explanation, index, coalition.hidden);
    const pairs = [[`${name}, full photo`, full === undefined ? "" : outputText(full, explanation.outputs)]];
    let remark = "";
    if (coalition.count > 0) {
      const exact = now?.get(index);
      const hidden = plural(coalition.count, "patch", "patches");
      if (exact !== undefined) { pairs.push([`now, ${hidden} hidden`, outputText(exact, explanation.outputs)]); }
      if (sum !== null) { pairs.push(["sum of values says", outputText(sum, explanation.outputs)]); }
      if (exact !== undefined && sum !== null) {
        const rest = withUnit(valueText(exact - sum, explanation.unit), explanation.unit);
        remark = `The rest, ${rest}, is interaction: patches also matter together, not only one by one.`;
      } else if (exact === undefined && !viewer.backend) {
        remark = "The model is not in this file: for patches hidden by hand only the sum of values is known.";
      }
    } else if (!explanation.additive) {
      remark = "The values of this method do not add up to the prediction.";
    } else {
      const base = classOf(explanation, index).base;
      remark = `With no patch at all the model says ${outputText(base, explanation.outputs)}; the values of all patches add up to `
        + `${withUnit(valueText(sum - base, explanation.unit), explanation.unit)}.`;
    }
    this.sums.replaceChildren(...pairs.flatMap(([term, value]) => [element("dt", {}, term), element("dd", { class: "n" }, value)]));
    this.remark.textContent = remark;
  }
}

// The full photo's probability is pale, that of what is shown now is solid, the tick is the sum of values.
function bar(full, now, hiding, sum) {
  const part = (kind, value) => {
    const node = element("span", { class: kind });
    node.style.width = `${100 * Math.min(Math.max(value, 0), 1)}%`;
    return node;
  };
  const track = element("span", { class: "bar", "aria-hidden": "true" }, part(hiding ? "full" : "now", full));
  if (now !== undefined) { track.append(part("now", now)); }
  if (sum !== null) {
    const tick = element("span", { class: "tick" });
    tick.style.left = `${100 * Math.min(Math.max(sum, 0), 1)}%`;
    track.append(tick);
  }
  return track;
}
