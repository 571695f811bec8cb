// An explanation as the server's API and the report store it, with what is derived from it.
//
// { method, grid: [rows, columns], players: [player of each patch, row by row; -1: none], image_size: [width, height],
//   box: [left, top, right, bottom] of the photo that the model sees, unit, additive, class_names, prediction,
//   classes: [{ index, name, probability, base, values, stderr, reliability }], stderr_from: in words, evaluations, seconds,
//   reliability, warnings }

import { intervalEnds, outputText, valueText } from "./text.js";

const LEVEL = 0.95; // of intervals
const STANDARD_ERRORS = 1.959964; // on each side of such an interval
export const UNRELIABLE = 0.5; // a map is called unreliable below this reliability
const MOSTLY_SEEN = 0.5; // if the model sees less of the photo, maps show only that part
const UNSEEN = 0.25; // a sentence says so if the model does not see at least this share
const HALF = 0.5;
const STILL = 0.8; // the output is "still" so much above this share of that for the whole photo, and on the same side of a half

export function readExplanation(json) {
  const [rows, columns] = json.grid;
  const count = Math.max(...json.players) + 1;
  const cells = Array.from({ length: count }, () => []);
  json.players.forEach((player, cell) => { if (player >= 0) { cells[player].push(cell); } });
  const named = (index) => json.class_names?.[index] ?? `class ${index}`;
  const predictions = json.predictions
    ?? json.prediction.map((probability, index) => ({ index, name: named(index), probability }))
      .sort((a, b) => b.probability - a.probability);
  const outputs = json.outputs ?? (json.unit === "output" ? "output" : "probability");
  return { ...json, rows, columns, count, cells, predictions, outputs, classes: json.classes.map((one) => ({ ...one })) };
}

export function classOf(explanation, index) {
  return explanation.classes.find((one) => one.index === index) ?? null;
}

// Whether the model's only output is the probability of a class: then it predicts that class or its absence.
export function isOneProbability(explanation) {
  return explanation.outputs === "probability" && explanation.predictions.length === 1;
}

// What the patches that matter most do to a single probability: "raises" it, or below a half "lowers" it. Null for several
// classes, and for scores, which only rank patches.
export function actOf(explanation) {
  if (!isOneProbability(explanation) || explanation.unit === "score") { return null; }
  return explanation.predictions[0].probability < HALF ? "lowers" : "raises";
}

// The patches that a table lists: those of largest value that support the class, or for one probability lower it; scores only rank.
export function listedPlayers(explanation, index, most) {
  const order = orderOf(explanation, index);
  if (explanation.unit === "score") { return order.slice(0, most); }
  const sign = actOf(explanation) === "lowers" ? -1 : 1;
  const { values } = classOf(explanation, index);
  return (sign < 0 ? order.reverse() : order).filter((player) => sign * values[player] > 0).slice(0, most);
}

// The class that is shown first: the predicted one if it was explained.
export function mainClass(explanation) {
  return (classOf(explanation, explanation.predictions[0].index) ?? explanation.classes[0]).index;
}

export function largestValue(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

// Players that are somewhere in the photo, by decreasing value for the class.
export function orderOf(explanation, index) {
  const { values } = classOf(explanation, index);
  return [...values.keys()].filter((player) => explanation.cells[player]?.length)
    .sort((a, b) => values[b] - values[a] || a - b);
}

export function isUncertain(value, stderr) {
  return stderr > 0 && Math.abs(value) <= STANDARD_ERRORS * stderr;
}

// v(no patch) + the values of the shown patches; null where values do not add up.
export function additivePrediction(explanation, index, hidden) {
  const found = classOf(explanation, index);
  if (found === null || !explanation.additive || typeof found.base !== "number") { return null; }
  return found.values.reduce((sum, value, player) => sum + (hidden[player] ? 0 : value), found.base);
}

export function seenShare({ box: [left, top, right, bottom], image_size: [width, height] }) {
  const across = Math.min(right, width) - Math.max(left, 0);
  const down = Math.min(bottom, height) - Math.max(top, 0);
  return Math.max(across, 0) * Math.max(down, 0) / (width * height);
}

// What a map shows: the whole photo, or only what the model sees if that is less than half of it.
export function windowOf(explanation) {
  const [width, height] = explanation.image_size;
  return seenShare(explanation) < MOSTLY_SEEN ? explanation.box : [0, 0, width, height];
}

export function cropText(explanation) {
  const seen = seenShare(explanation);
  const percent = seen >= 0.01 ? `${Math.round(100 * seen)} %` : "less than 1 %";
  if (seen < MOSTLY_SEEN) {
    return `The model sees only ${percent} of this photo: that part is shown. Nothing else had an influence.`;
  }
  return seen <= 1 - UNSEEN ? `The model sees ${percent} of the photo; the rest is dimmed and had no influence.` : null;
}

// The box of a player in pixels of the photo.
export function playerBox(explanation, player) {
  const { box: [left, top, right, bottom], rows, columns, cells } = explanation;
  const across = cells[player].map((cell) => cell % columns);
  const down = cells[player].map((cell) => Math.floor(cell / columns));
  const [width, height] = [(right - left) / columns, (bottom - top) / rows];
  return [left + Math.min(...across) * width, top + Math.min(...down) * height,
    left + (Math.max(...across) + 1) * width, top + (Math.max(...down) + 1) * height];
}

// In which of nine parts of the shown photo a player lies, in words.
export function placeOf(explanation, player) {
  const [left, top, right, bottom] = windowOf(explanation);
  const box = playerBox(explanation, player);
  const third = (position, whole) => Math.min(Math.max(Math.floor(3 * position / whole), 0), 2);
  const across = ["left", "centre", "right"][third((box[0] + box[2]) / 2 - left, right - left)];
  const down = ["upper", "middle", "lower"][third((box[1] + box[3]) / 2 - top, bottom - top)];
  if (down === "middle") { return across === "centre" ? across : `${across} side`; }
  return `${down} ${across}`;
}

// Lower and upper ends of the 95 % intervals of a class's values; null without standard errors.
function intervalOf({ values, stderr }) {
  return stderr ? [-1, 1].map((side) => values.map((value, player) => value + side * STANDARD_ERRORS * stderr[player])) : null;
}

// An explanation as it is saved: with intervals, which reports and pages without a server do not store.
export function withIntervals(explanation) {
  const known = explanation.classes.some((one) => one.stderr);
  const classes = explanation.classes.map((one) => ({ ...one, interval: one.interval ?? intervalOf(one) }));
  return { ...explanation, classes, interval_level: known ? LEVEL : null };
}

// The 95 % interval of a patch's value, "5.9 to 7.1"; null without a standard error.
export function intervalText(found, player, unit) {
  if (!(found.stderr?.[player] > 0)) { return null; }
  return intervalEnds(intervalOf(found).map((end) => end[player]), unit);
}

// One patch in words: "row 2, column 4: +6.5 points (5.9 to 7.1)".
export function patchText(explanation, index, cell, hidden) {
  const { columns, unit } = explanation;
  const where = `row ${Math.floor(cell / columns) + 1}, column ${cell % columns + 1}`;
  const player = explanation.players[cell];
  if (player < 0) { return `${where}: not part of the explanation`; }
  const found = classOf(explanation, index);
  const points = unit === "probability" ? " points" : "";
  let said = `${where}: ${valueText(found.values[player], unit)}${points}`;
  const interval = intervalText(found, player, unit);
  if (interval !== null) { said += ` (95\u00a0% interval ${interval})`; }
  return hidden?.[player] ? `${said}, hidden` : said;
}

// The prediction and where it comes from, in everyday words; `curve` adds what happens without the best patches.
export function headlineOf(explanation, curve = null) {
  const said = predictionText(explanation);
  const index = mainClass(explanation);
  const { values, name, probability } = classOf(explanation, index);
  const act = actOf(explanation);
  const order = act === "lowers" ? orderOf(explanation, index).reverse() : orderOf(explanation, index);
  const key = order.slice(0, supportingPlayers(explanation, index, act === "lowers" ? -1 : 1));
  if (key.length === 0) { return `${said} No patch of the photo ${act === null ? `supports ${name}` : `${act} it`}.`; }
  const places = new Map();
  for (const player of key) {
    const place = placeOf(explanation, player);
    places.set(place, (places.get(place) ?? 0) + Math.abs(values[player]));
  }
  const parts = `${key.length} of ${order.length} patches`;
  const at = curve === null || curve.class !== index || act === "lowers" ? -1 : curve.counts.indexOf(key.length);
  const without = at < 0 ? null : curve.remove[at][curve.classes.indexOf(index)];
  const still = without > probability - (1 - STILL) * Math.abs(probability) && (act === null || without >= HALF);
  const rest = without === null
    ? `${parts} ${key.length === 1 ? "makes" : "make"} up half of ${act === null ? `the support for ${name}` : "that"}`
    : `without ${key.length === 1 ? "this" : "these"} ${parts} ${act === null ? `its ${explanation.outputs}` : "it"} would ${still ? "still " : ""}`
      + `be ${outputText(without, explanation.outputs)}`;
  const where = act === null ? lookedAt(places) : lookedAt(places, `What ${act} it is`, "at");
  return `${said} ${where}: ${rest}.${caution(classOf(explanation, index), key)}`;
}

function predictionText({ predictions, outputs }) {
  const [{ name, probability }] = predictions;
  const [output, only] = [outputText(probability, outputs), predictions.length === 1];
  if (outputs !== "probability") { return only ? `The model's output is ${output}.` : `The model's largest output is ${output}, for ${name}.`; }
  // Below a half, of several labels none is predicted.
  if (!only) { return `The model ${probability < HALF ? `finds ${name} most probable` : `predicts ${name}`} (${output}).`; }
  return `The model gives ${name} a probability of ${output} (${probability < HALF ? "below" : "at or above"} 50\u00a0%).`;
}

// Why the most important players may not be that, in words; nothing if they are certain.
function caution({ values, stderr, reliability }, key) {
  if (!stderr) { return ""; }
  if (reliability < UNRELIABLE) { return ` But this map is unreliable: its estimated reliability is ${reliability.toFixed(2)}.`; }
  const doubtful = key.filter((player) => Math.abs(values[player]) <= STANDARD_ERRORS * stderr[player]).length;
  return 2 * doubtful < key.length ? ""
    : ` Most of this is uncertain: the 95\u00a0% interval of ${doubtful} of these ${key.length} includes zero.`;
}

// How many players, by decreasing value, make up half of the positive values (sign -1: of the negative ones); 0 if none does.
export function supportingPlayers(explanation, index, sign = 1) {
  const { values } = classOf(explanation, index);
  const order = orderOf(explanation, index);
  const sizes = (sign < 0 ? order.reverse() : order).map((player) => sign * values[player]);
  const total = sizes.reduce((sum, size) => sum + Math.max(size, 0), 0);
  let [sum, count] = [0, 0];
  while (total > 0 && sum < HALF * total) { sum += sizes[count]; count += 1; }
  return count;
}

function lookedAt(places, subject = "It", verb = "looks at") {
  const strongest = [...places].sort((a, b) => b[1] - a[1]);
  const most = HALF * strongest.reduce((sum, [, value]) => sum + value, 0) * (1 + 1e-6);
  if (strongest[0][1] > most) { return `${subject} mostly ${verb} the ${strongest[0][0]}`; }
  if (strongest.length > 1 && strongest[0][1] + strongest[1][1] > most) {
    return `${subject} mostly ${verb} the ${strongest[0][0]} and the ${strongest[1][0]}`;
  }
  return `${subject} ${verb} many places`;
}
