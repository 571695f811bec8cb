// What can be taken away: a picture, the numbers, and a report that works without a server.

import { element, saveFile } from "./dom.js";
import { classOf, headlineOf, windowOf } from "./explanation.js";
import { paintMap, paintStrip } from "./painting.js";
import { scaleText } from "./small-maps.js";

const PICTURE_PIXELS = 1200;
const PHOTO_PIXELS = 960;

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
  saveFile(fileName(viewer, ".json"), JSON.stringify(plainData(viewer.explanation), null, 1), "application/json");
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

export async function saveReport(viewers, here) {
  const at = (name) => new URL(name, here).href;
  const [script, style] = [await joinedScript(at("report.js")), await (await fetch(at("style.css"))).text()];
  const page = document.implementation.createHTMLDocument("What the model looks at");
  const meta = (attributes) => page.head.append(Object.assign(page.createElement("meta"), attributes));
  meta({ name: "viewport", content: "width=device-width, initial-scale=1" });
  meta({ httpEquiv: "Content-Security-Policy", content: "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'" });
  const put = (parent, tag, text, attributes = {}) => {
    const node = page.createElement(tag);
    node.textContent = text;
    for (const [name, value] of Object.entries(attributes)) { node.setAttribute(name, value); }
    parent.append(node);
    return node;
  };
  put(page.head, "style", style);
  const top = put(page.body, "header", "", { class: "top" });
  put(put(top, "div", ""), "h1", "What the model looks at");
  put(top, "button", "Theme: system", { id: "theme", type: "button" });
  const main = put(page.body, "main", "");
  for (const viewer of viewers) {
    const card = put(main, "article", "", { class: "card" });
    const head = put(card, "header", "");
    put(head, "h2", viewer.name);
    put(head, "p", headlineOf(viewer.explanation, viewer.curve), { class: "say" });
    for (const warning of viewer.explanation.warnings ?? []) { put(card, "p", warning, { class: "warning" }); }
    const others = [...viewer.explanations.values()].filter((one) => one !== viewer.explanation).map(plainData);
    const stored = { ...plainData(viewer.explanation), picture: photoAddress(viewer.photo), curve: viewer.curve, others, name: viewer.name };
    put(put(card, "div", "", { class: "view" }), "script", JSON.stringify(stored).replace(/</g, "\\u003c"), { type: "application/json" });
  }
  put(page.body, "script", `"use strict";\n(() => {\n${script}\n})();`.replace(/<\/script/gi, "<\\/script"));
  saveFile(fileName(viewers[0], "-report.html"), `<!doctype html>\n${page.documentElement.outerHTML}`, "text/html");
}

function photoAddress(photo) {
  if (!photo) { return null; }
  const scale = Math.min(PHOTO_PIXELS / Math.max(photo.width, photo.height), 1);
  const canvas = element("canvas", { width: Math.max(Math.round(photo.width * scale), 1), height: Math.max(Math.round(photo.height * scale), 1) });
  canvas.getContext("2d").drawImage(photo, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.85);
}
