// The page that `vitshap export --format web` writes: the viewer with the model in the browser. After the first visit it
// works without a network: service-worker.js keeps every file.

import { App } from "./app.js";
import { InBrowser } from "./onnx.js";

const WAIT_MS = 3000; // for the service worker, so that what is loaded is kept too

async function keepFiles() {
  if (!("serviceWorker" in navigator)) { return; }
  const { serviceWorker } = navigator;
  try {
    await serviceWorker.register("service-worker.js");
    if (serviceWorker.controller) { return; }
    await Promise.race([
      new Promise((resolve) => { serviceWorker.addEventListener("controllerchange", resolve, { once: true }); }),
      new Promise((resolve) => { setTimeout(resolve, WAIT_MS); }),
    ]);
  } catch { /* a private window, or a file system's address: it works, but only with a network */ }
}

function megabytes(count) { return (count / 1e6).toFixed(0); }

function onLoading(done, all) {
  const place = document.getElementById("loading");
  place.hidden = false;
  place.textContent = done < all ? `Loading the model: ${megabytes(done)} of ${megabytes(all)} MB` : "Starting the model \u2026";
}

document.getElementById("model").closest("label").hidden = true; // there is one
const app = new App(new InBrowser({ onLoading }));
window.vitshap = app;
app.start(keepFiles());
