// Numbers and sentences, written as vitshap/explaining/text.py writes them.

const MINUS = "\u2212";

export function outputText(value, outputs = "probability") {
  if (outputs !== "probability") { return plainNumber(value); }
  if (value > 0 && value < 0.0005) { return "<0.1\u00a0%"; }
  if (value >= 0.9995 && value < 1) { return ">99.9\u00a0%"; }
  return `${(100 * value).toFixed(1).replace("-", MINUS)}\u00a0%`; // not broken before the sign
}

export function plainNumber(value) {
  const size = Math.abs(value);
  if (size >= 999.5) { return Math.round(value).toLocaleString("en").replace("-", MINUS); }
  const text = size > 0 && size < 1e-4 ? value.toExponential(2) : value.toPrecision(3);
  return text.replaceAll("-", MINUS);
}

// The magnitude of a value; of a probability in percentage points.
export function sizeText(value, unit) {
  if (unit !== "probability") { return plainNumber(Math.abs(value)); }
  const points = Math.abs(100 * value);
  return points >= 0.1 || points === 0 ? points.toFixed(1) : String(Number(points.toPrecision(1)));
}

export function valueText(value, unit) {
  return value === 0 ? "0" : (value > 0 ? "+" : MINUS) + sizeText(value, unit);
}

// The ends of an interval of a value, "5.9 to 7.1"; of a probability in percentage points.
export function intervalEnds(ends, unit) {
  if (unit !== "probability") { return ends.map(plainNumber).join(" to "); }
  const points = ends.map((end) => 100 * end);
  const largest = Math.max(...points.map(Math.abs));
  const digits = largest >= 0.1 || largest === 0 ? 1 : -Math.floor(Math.log10(largest));
  return points.map((end) => (Number(end.toFixed(digits)) + 0).toFixed(digits).replace("-", MINUS)).join(" to "); // + 0: never minus zero
}

export function withUnit(text, unit) {
  return unit === "probability" ? `${text} points` : text;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function secondsText(seconds) {
  return seconds < 10 ? `${Number(seconds.toPrecision(2))} s` : `${Math.round(seconds)} s`;
}
