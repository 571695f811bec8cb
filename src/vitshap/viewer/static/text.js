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
  if (size >= 1000) { return Math.round(value).toLocaleString("en").replace("-", MINUS); }
  return value.toPrecision(3).replace("-", MINUS);
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

export function withUnit(text, unit) {
  return unit === "probability" ? `${text} points` : text;
}

export function plural(count, one, many = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

export function secondsText(seconds) {
  return seconds < 10 ? `${Number(seconds.toPrecision(2))} s` : `${Math.round(seconds)} s`;
}
