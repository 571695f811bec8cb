// A map over its photo, painted on a canvas. Colours are those of vitshap/plots/colours.py: red raises, blue lowers, the
// larger a value the more opaque; zero is transparent, over the photo in light grey.

import { classOf, isUncertain, largestValue, playerBox, windowOf } from "./explanation.js";

const RED = [214, 26, 28];
const BLUE = [26, 84, 204];
const OPACITY = 0.85;
const POWER = 0.7;
const UNCERTAIN = 0.5;
const LIGHTENED = 0.25;
const SMOOTH_PIXELS = 12; // per patch, before the browser enlarges them

export function opacityOf(value, limit) {
  return OPACITY * Math.min(Math.abs(value) / limit, 1) ** POWER;
}

function colourOf(value) { return value < 0 ? BLUE : RED; }

// The colours from the lowest value to the highest, for a legend.
export function paintStrip(canvas) {
  const [width, context] = [canvas.width, canvas.getContext("2d")];
  context.clearRect(0, 0, width, canvas.height);
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, canvas.height);
  for (let x = 0; x < width; x += 1) {
    const along = (2 * x + 1) / width - 1;
    context.fillStyle = `rgba(${colourOf(along).join()}, ${opacityOf(along, 1)})`;
    context.fillRect(x, 0, 1, canvas.height);
  }
}

// options: { index, limit, opacity = 1, smooth, certain, colour, hidden, cursor: [cells], marks: [[player, text, lit]] }
export function paintMap(canvas, explanation, photo, options) {
  const context = canvas.getContext("2d");
  const [left, top, right, bottom] = windowOf(explanation);
  const scale = canvas.width / (right - left);
  const place = ([x0, y0, x1, y1]) => {
    const edges = [(x0 - left) * scale, (y0 - top) * scale, (x1 - left) * scale, (y1 - top) * scale].map(Math.round);
    return [edges[0], edges[1], edges[2] - edges[0], edges[3] - edges[1]];
  };
  context.drawImage(base(canvas, explanation, photo, options.colour), 0, 0);
  const crop = place(explanation.box);
  dimOutside(context, canvas, crop);
  const shown = { limit: 1, opacity: 1, ...options };
  const { values, stderr } = classOf(explanation, shown.index);
  const strength = (player) => {
    const doubtful = stderr !== null && stderr !== undefined && isUncertain(values[player], stderr[player]);
    return shown.opacity * (doubtful ? (shown.certain ? 0 : UNCERTAIN) : 1);
  };
  const cellAt = (cell) => place(cellBox(explanation, cell));
  (shown.smooth ? paintSmooth : paintCrisp)(context, explanation, values, shown.limit, strength, cellAt, crop);
  if (shown.hidden) { coverHidden(context, explanation, shown.hidden, cellAt, canvas.width); }
  outlineCrop(context, canvas, crop);
  for (const [player, text, lit] of shown.marks ?? []) { mark(context, place(playerBox(explanation, player)), text, lit, canvas); }
  if (shown.cursor?.length) { outlineCells(context, shown.cursor.map(cellAt), canvas.width); }
}

function cellBox({ box: [left, top, right, bottom], rows, columns }, cell) {
  const [width, height] = [(right - left) / columns, (bottom - top) / rows];
  const [row, column] = [Math.floor(cell / columns), cell % columns];
  return [left + column * width, top + row * height, left + (column + 1) * width, top + (row + 1) * height];
}

const bases = new WeakMap();

// The photo as it lies under the map, kept until the canvas has another size.
function base(canvas, explanation, photo, colour) {
  const kept = bases.get(canvas);
  if (kept && kept.photo === photo && kept.colour === colour && kept.image.width === canvas.width
    && kept.image.height === canvas.height && kept.box === String(windowOf(explanation))) { return kept.image; }
  const image = document.createElement("canvas");
  [image.width, image.height] = [canvas.width, canvas.height];
  const context = image.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, image.width, image.height);
  if (photo) {
    const [left, top, right, bottom] = windowOf(explanation);
    const [width, height] = explanation.image_size;
    const [across, down] = [photo.width / width, photo.height / height];
    context.imageSmoothingQuality = "high";
    context.drawImage(photo, left * across, top * down, (right - left) * across, (bottom - top) * down,
      0, 0, image.width, image.height);
    if (!colour) { lighten(context, image); }
  }
  bases.set(canvas, { image, photo, colour, box: String(windowOf(explanation)) });
  return image;
}

function lighten(context, image) {
  const pixels = context.getImageData(0, 0, image.width, image.height);
  const { data } = pixels;
  for (let i = 0; i < data.length; i += 4) {
    const grey = 255 * LIGHTENED + (1 - LIGHTENED) * (0.2126 * data[i] + 0.7152 * data[i + 1] + 0.0722 * data[i + 2]);
    data[i] = data[i + 1] = data[i + 2] = grey;
  }
  context.putImageData(pixels, 0, 0);
}

function dimOutside(context, canvas, [x, y, width, height]) {
  context.fillStyle = "rgba(140, 140, 140, 0.55)";
  context.beginPath();
  context.rect(0, 0, canvas.width, canvas.height);
  context.rect(x, y, width, height);
  context.fill("evenodd");
}

function outlineCrop(context, canvas, [x, y, width, height]) {
  if (x < 1 && y < 1 && x + width > canvas.width - 1 && y + height > canvas.height - 1) { return; }
  context.strokeStyle = "#404040";
  context.lineWidth = Math.max(canvas.width / 500, 1);
  context.strokeRect(x, y, width, height);
}

function paintCrisp(context, explanation, values, limit, strength, cellAt) {
  explanation.players.forEach((player, cell) => {
    if (player < 0) { return; }
    const alpha = opacityOf(values[player], limit) * strength(player);
    if (alpha <= 0) { return; }
    context.fillStyle = `rgba(${colourOf(values[player]).join()}, ${alpha})`;
    context.fillRect(...cellAt(cell));
  });
}

// Values are interpolated, then coloured: halfway between a positive and a negative patch is the colour of zero.
function paintSmooth(context, explanation, values, limit, strength, cellAt, crop) {
  const { rows, columns, players } = explanation;
  const image = document.createElement("canvas");
  [image.width, image.height] = [columns * SMOOTH_PIXELS, rows * SMOOTH_PIXELS];
  const own = image.getContext("2d");
  const pixels = own.createImageData(image.width, image.height);
  const [down, across] = [weights(rows), weights(columns)];
  for (let y = 0; y < image.height; y += 1) {
    for (let x = 0; x < image.width; x += 1) {
      const cell = Math.floor(y / SMOOTH_PIXELS) * columns + Math.floor(x / SMOOTH_PIXELS);
      if (players[cell] < 0) { continue; }
      let [value, weight] = [0, 0];
      for (const [row, a] of down[y]) {
        for (const [column, b] of across[x]) {
          const player = players[row * columns + column];
          if (player >= 0) { value += a * b * values[player]; weight += a * b; }
        }
      }
      value /= Math.max(weight, 1e-9);
      const at = 4 * (y * image.width + x);
      pixels.data.set([...colourOf(value), 255 * opacityOf(value, limit) * strength(players[cell])], at);
    }
  }
  own.putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = true;
  context.drawImage(image, ...crop);
}

// For every pixel the cells it is made of with their weights (Catmull-Rom: exact at the centres).
function weights(cells) {
  return Array.from({ length: cells * SMOOTH_PIXELS }, (_, pixel) => {
    const point = Math.min(Math.max((pixel + 0.5) / SMOOTH_PIXELS, 0.5), cells - 0.5);
    const found = [];
    for (let cell = Math.floor(point - 2); cell <= point + 2; cell += 1) {
      const t = Math.abs(point - cell - 0.5);
      const w = t < 1 ? 1.5 * t ** 3 - 2.5 * t ** 2 + 1 : t < 2 ? -0.5 * t ** 3 + 2.5 * t ** 2 - 4 * t + 2 : 0;
      if (w !== 0 && cell >= 0 && cell < cells) { found.push([cell, w]); }
    }
    const sum = found.reduce((total, [, w]) => total + w, 0);
    return found.map(([cell, w]) => [cell, w / sum]);
  });
}

// A hidden patch is covered by a hatched sheet: it can be mistaken neither for a value nor for the photo.
function coverHidden(context, explanation, hidden, cellAt, width) {
  const cells = explanation.players.map((player, cell) => player >= 0 && hidden[player] ? cell : -1).filter((cell) => cell >= 0);
  if (!cells.length) { return; }
  context.save();
  context.beginPath();
  for (const cell of cells) { context.rect(...cellAt(cell)); }
  context.fillStyle = "#2b303b";
  context.fill();
  context.clip();
  context.strokeStyle = "#7d8696";
  context.lineWidth = Math.max(width / 450, 1);
  const step = Math.max(width / 70, 6);
  context.beginPath();
  for (let x = -context.canvas.height; x < width; x += step) {
    context.moveTo(x, context.canvas.height);
    context.lineTo(x + context.canvas.height, 0);
  }
  context.stroke();
  context.restore();
}

function outlineCells(context, boxes, width) {
  const [x0, y0] = [Math.min(...boxes.map((b) => b[0])), Math.min(...boxes.map((b) => b[1]))];
  const [x1, y1] = [Math.max(...boxes.map((b) => b[0] + b[2])), Math.max(...boxes.map((b) => b[1] + b[3]))];
  twice(context, width, () => context.strokeRect(x0, y0, x1 - x0, y1 - y0), "#ffd23f");
}

function twice(context, width, stroke, colour) {
  const line = Math.max(width / 320, 1.5);
  for (const [style, size] of [["#000", 2.4 * line], [colour, line]]) {
    context.strokeStyle = style;
    context.lineWidth = size;
    stroke();
  }
}

function mark(context, [x, y, width, height], text, lit, canvas) {
  twice(context, canvas.width, () => context.strokeRect(x, y, width, height), lit ? "#ffd23f" : "#fff");
  if (!text) { return; }
  const size = Math.max(canvas.width / 40, 11);
  context.font = `700 ${size}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineWidth = size / 4;
  context.lineJoin = "round";
  context.strokeStyle = "#000";
  context.fillStyle = "#fff";
  context.strokeText(text, x + width / 2, y + height / 2);
  context.fillText(text, x + width / 2, y + height / 2);
}

// The limit of a scale for several [explanation, class] pairs; 1 if all values are zero.
export function commonLimit(pairs) {
  return Math.max(...pairs.map(([explanation, index]) => largestValue(classOf(explanation, index).values)), 0) || 1;
}
