// The large map: pointer and keyboard move a cursor over the patches, the brush hides and shows them.

import { element } from "./dom.js";
import { classOf, patchText, windowOf } from "./explanation.js";
import { paintMap } from "./painting.js";
import { outputText } from "./text.js";

const MOST_PIXELS = 1600;

export class PatchMap {
  constructor(viewer) {
    this.viewer = viewer;
    this.cursor = null; // a cell
    this.stroke = null; // whether the brush is down, and where it was
    this.canvas = element("canvas", { class: "map", tabindex: 0, role: "application", "aria-roledescription": "map of patches" });
    this.readout = element("p", { class: "readout", role: "status", "aria-live": "polite" });
    this.node = element("div", { class: "stage-map" }, this.canvas);
    for (const [name, handler] of Object.entries({
      pointerdown: (event) => this.down(event),
      pointermove: (event) => this.move(event),
      pointerup: () => this.up(),
      pointercancel: () => this.up(),
      pointerleave: (event) => { if (event.pointerType === "mouse" && !this.stroke && document.activeElement !== this.canvas) { this.moveTo(null); } },
      keydown: (event) => this.key(event),
      blur: () => this.moveTo(null),
    })) { this.canvas.addEventListener(name, handler); }
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  draw() {
    const { viewer, canvas } = this;
    const { explanation, index } = viewer;
    const [left, top, right, bottom] = windowOf(explanation);
    const aspect = (right - left) / (bottom - top);
    (this.node.parentElement ?? this.node).style.setProperty("--aspect", aspect);
    const width = Math.round(Math.min(this.node.clientWidth * Math.min(devicePixelRatio, 2), MOST_PIXELS));
    if (width === 0) { return; }
    const height = Math.max(Math.round(width / aspect), 1);
    if (canvas.width !== width || canvas.height !== height) { [canvas.width, canvas.height] = [width, height]; }
    paintMap(canvas, explanation, viewer.photo, {
      ...viewer.look, index, limit: viewer.limit, hidden: viewer.coalition.hidden, cursor: this.cells(), marks: viewer.marks(),
    });
    const { name } = classOf(explanation, index);
    canvas.setAttribute("aria-label", `Map of ${name}, ${explanation.rows} rows and ${explanation.columns} columns of patches. `
      + "Arrow keys move the cursor, space hides or shows.");
    canvas.dataset.mode = viewer.brush.mode;
  }

  // The cells under the brush.
  cells(at = this.cursor) {
    if (at === null) { return []; }
    const { explanation: { rows, columns }, brush: { mode, size } } = this.viewer;
    if (mode === "look" || size === 1) { return [at]; }
    const before = Math.floor((size - 1) / 2);
    const [row, column] = [Math.floor(at / columns) - before, at % columns - before];
    const found = [];
    for (let r = Math.max(row, 0); r < Math.min(row + size, rows); r += 1) {
      for (let c = Math.max(column, 0); c < Math.min(column + size, columns); c += 1) { found.push(r * columns + c); }
    }
    return found;
  }

  cellAt(event) {
    const { explanation } = this.viewer;
    const bounds = this.canvas.getBoundingClientRect();
    const [left, top, right, bottom] = windowOf(explanation);
    const [x0, y0, x1, y1] = explanation.box;
    const x = left + (event.clientX - bounds.left) / bounds.width * (right - left);
    const y = top + (event.clientY - bounds.top) / bounds.height * (bottom - top);
    const column = Math.floor((x - x0) / (x1 - x0) * explanation.columns);
    const row = Math.floor((y - y0) / (y1 - y0) * explanation.rows);
    const inside = row >= 0 && column >= 0 && row < explanation.rows && column < explanation.columns;
    return inside ? row * explanation.columns + column : null;
  }

  moveTo(cell) {
    if (cell === this.cursor) { return; }
    this.cursor = cell;
    this.say();
    this.draw();
    this.viewer.moved(cell);
  }

  say() {
    const { viewer, cursor } = this;
    this.readout.textContent = cursor === null ? "" : patchText(viewer.explanation, viewer.index, cursor, viewer.coalition.hidden);
  }

  players(cells) { return cells.map((cell) => this.viewer.explanation.players[cell]); }

  down(event) {
    if (event.button !== 0) { return; }
    const cell = this.cellAt(event);
    this.moveTo(cell);
    const { mode } = this.viewer.brush;
    if (mode === "look" || cell === null) { return; }
    event.preventDefault();
    this.canvas.focus({ preventScroll: true });
    this.canvas.setPointerCapture(event.pointerId);
    const { coalition } = this.viewer;
    const player = this.players([cell])[0];
    coalition.mark();
    // Pressing on a patch that already is what the brush makes it turns the stroke round.
    const hide = coalition.hidden[player] === Number(mode === "hide") ? mode !== "hide" : mode === "hide";
    this.stroke = { hide, cell };
    coalition.change(this.players(this.cells()), hide);
    this.say();
  }

  move(event) {
    const cell = this.cellAt(event);
    if (this.stroke && cell !== null && cell !== this.stroke.cell) {
      const { columns } = this.viewer.explanation;
      const between = cellsBetween(this.stroke.cell, cell, columns).flatMap((one) => this.cells(one));
      this.stroke.cell = cell;
      this.viewer.coalition.change(this.players(between), this.stroke.hide);
    }
    if (event.pointerType === "mouse" || this.stroke) { this.moveTo(cell); }
  }

  up() { this.stroke = null; }

  key(event) {
    const { explanation: { rows, columns }, coalition } = this.viewer;
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.altKey || event.ctrlKey || event.metaKey) { return; }
    if (event.key in steps) {
      const start = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
      const at = this.cursor ?? start;
      const [down, across] = this.cursor === null ? [0, 0] : steps[event.key];
      const row = Math.min(Math.max(Math.floor(at / columns) + down, 0), rows - 1);
      const column = Math.min(Math.max(at % columns + across, 0), columns - 1);
      this.moveTo(row * columns + column);
    } else if (event.key === " " && this.cursor !== null) {
      const player = this.players([this.cursor])[0];
      if (player >= 0) {
        coalition.mark();
        coalition.change(this.players(this.cells()), !coalition.hidden[player]);
        this.say();
      }
    } else if (event.key === "Escape") {
      this.moveTo(null);
    } else { return; }
    event.preventDefault();
  }

  // After a change of the coalition, the new prediction is said too.
  sayNow(name, output, outputs) {
    if (document.activeElement !== this.canvas || this.cursor === null) { return; }
    this.say();
    this.readout.textContent += `; ${name} now ${outputText(output, outputs)}`;
  }
}

// The cells on the straight line between two cells, so that a fast stroke leaves no gaps.
function cellsBetween(from, to, columns) {
  const [r0, c0, r1, c1] = [Math.floor(from / columns), from % columns, Math.floor(to / columns), to % columns];
  const steps = Math.max(Math.abs(r1 - r0), Math.abs(c1 - c0), 1);
  return Array.from({ length: steps }, (_, i) => {
    const t = (i + 1) / steps;
    return Math.round(r0 + t * (r1 - r0)) * columns + Math.round(c0 + t * (c1 - c0));
  });
}
