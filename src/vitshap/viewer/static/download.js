// What can be taken away: a picture, the numbers, and a report that works without a server.

import { element, saveFile } from "./dom.js";
import { classOf, headlineOf, windowOf, withIntervals } from "./explanation.js";
import { paintMap, paintStrip } from "./painting.js";
import { scaleText } from "./small-maps.js";

const PICTURE_PIXELS = 1200;
const PHOTO_PIXELS = 960;
const REPORT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

function fileName(viewer, ending) {
  const photo = (viewer.name || "photo").replace(/^.*[\\/]/, "").replace(/\.\w+$/, "");
  const { name } = classOf(viewer.explanation, viewer.index);
  return `${photo}-${name}`.replace(/[^\p{L}\p{N}.+=-]+/gu, "_") + ending;
}

export function pictureOf(viewer) {
  const { explanation, index } = viewer;
  const [left, top, right, bottom] = windowOf(explanation);
  const map = element("canvas", { width: PICTURE_PIXELS, height: Math.round(PICTURE_PIXELS * (bottom - top) / (right - left)) });
  paintMap(map, explanation, viewer.photo, { ...viewer.look, index, limit: viewer.limit, hidden: viewer.coalition.hidden });
  const whole = element("canvas", { width: map.width, height: map.height + 90 });
  const context = whole.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, whole.width, whole.height);
  context.drawImage(map, 0, 0);
  const strip = element("canvas", { width: 400, height: 22 });
  paintStrip(strip);
  const { name } = classOf(explanation, index);
  context.font = "22px system-ui, sans-serif";
  context.fillStyle = "#16181d";
  context.textBaseline = "middle";
  const [x, y] = [(whole.width - strip.width) / 2, map.height + 18];
  context.drawImage(strip, x, y);
  context.textAlign = "right";
  context.fillText(`lowers '${name}'`, x - 14, y + 11, x - 28);
  context.textAlign = "left";
  context.fillText(`raises '${name}'`, x + strip.width + 14, y + 11, x - 28);
  context.textAlign = "center";
  context.fillText(`${scaleText(viewer.limit, explanation.unit)}   (${explanation.method})`, whole.width / 2, y + 48);
  return whole;
}

export function savePicture(viewer) {
  pictureOf(viewer).toBlob((blob) => saveFile(fileName(viewer, ".png"), blob), "image/png");
}

// The explanation as the server sent it, or as the report stores it, without the photo.
function plainData({ rows, columns, count, cells, picture, ...rest }) { return rest; }

export function saveNumbers(viewer) {
  saveFile(fileName(viewer, ".json"), JSON.stringify(withIntervals(plainData(viewer.explanation)), null, 1), "application/json");
}

// The modules of the viewer as one script: imports are resolved by order, `export` is taken away. Python does the same
// (vitshap/viewer/page.py); names are unique over all modules.
async function joinedScript(address, done = new Set()) {
  if (done.has(address)) { return ""; }
  done.add(address);
  const source = await (await fetch(address)).text();
  let script = "";
  for (const [, path] of source.matchAll(/^import .* from "(.*)";$/gm)) {
    script += await joinedScript(new URL(path, address).href, done);
  }
  return script + source.replace(/^import .*;$/gm, "").replace(/^export /gm, "");
}

function escaped(text) {
  return text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

function cardHtml(viewer) {
  const others = [...viewer.explanations.values()].filter((one) => one !== viewer.explanation).map(plainData);
  const stored = { ...plainData(viewer.explanation), picture: photoAddress(viewer.photo), curves: [...viewer.curves.values()], others, name: viewer.name };
  const warnings = (viewer.explanation.warnings ?? []).map((one) => `<p class="warning">${escaped(one)}</p>`).join("");
  return `<article class="card"><header><h2>${escaped(viewer.name)}</h2><p class="say">${escaped(headlineOf(viewer.explanation, viewer.mainCurve))}</p></header>`
    + `${warnings}<div class="view"><script type="application/json">${JSON.stringify(stored).replace(/</g, "\\u003c")}</script></div></article>`;
}

// A page of its own, written as text: this page's policy allows neither inline style nor inline script.
export async function saveReport(viewers, here) {
  const at = (name) => new URL(name, here).href;
  const [script, style] = [await joinedScript(at("report.js")), await (await fetch(at("style.css"))).text()];
  const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>What the model looks at</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${REPORT_POLICY}">
<link rel="icon" href="data:,"><style>
${style}</style></head>
<body><header class="top"><div><h1>What the model looks at</h1></div><button type="button" id="theme" hidden>Theme: system</button></header>
<main>${viewers.map(cardHtml).join("\n")}</main>
<script>
"use strict";
(() => {
${script.replace(/<\/(?=script)/gi, "<\\/")}
})();
</script></body></html>`;
  saveFile(fileName(viewers[0], "-report.html"), page, "text/html");
}

function photoAddress(photo) {
  if (!photo) { return null; }
  const scale = Math.min(PHOTO_PIXELS / Math.max(photo.width, photo.height), 1);
  const canvas = element("canvas", { width: Math.max(Math.round(photo.width * scale), 1), height: Math.max(Math.round(photo.height * scale), 1) });
  canvas.getContext("2d").drawImage(photo, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.85);
}
