// The report and notebooks: a viewer for every stored explanation, made when it comes near the screen.

import { element } from "./dom.js";
import { headlineOf, readExplanation } from "./explanation.js";
import { startTheme } from "./theme.js";
import { Viewer } from "./viewer.js";

async function loadPhoto(address) {
  if (!address) { return null; }
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

async function openView(place) {
  const { picture, curves = [], others = [], name = "", listed, ...stored } = JSON.parse(place.querySelector("script").textContent);
  const viewer = new Viewer({ explanation: readExplanation(stored), photo: await loadPhoto(picture), name, curves, listed,
    others: others.map(readExplanation) });
  const said = place.closest(".card")?.querySelector(".say") ? [] : [element("p", { class: "say" }, headlineOf(viewer.explanation, viewer.mainCurve))];
  place.replaceChildren(...said, viewer.node);
  place.viewer = viewer;
  viewer.draw();
}

function startReport() {
  const switcher = document.getElementById("theme");
  if (switcher) { startTheme(switcher); }
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      near.unobserve(entry.target);
      openView(entry.target);
    }
  }, { rootMargin: "1000px" });
  const places = document.querySelectorAll(".view");
  for (const place of places) { near.observe(place); }
  addEventListener("beforeprint", () => { for (const place of places) { if (!place.viewer) { openView(place); } } });
}

startReport();
