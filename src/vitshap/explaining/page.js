"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  const store = (name) => { try { localStorage.setItem("vitshap-theme", name); } catch { /* private window: not kept */ } };
  const stored = () => { try { return localStorage.getItem("vitshap-theme"); } catch { return null; } };
  const show = (name) => {
    if (name === "system") { root.removeAttribute("data-theme"); } else { root.dataset.theme = name; }
    button.textContent = "Theme: " + name;
    button.dataset.now = name;
  };
  show(themes.includes(stored()) ? stored() : "system");
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(button.dataset.now) + 1) % themes.length];
    show(next);
    store(next);
  });
  // All maps of an image on one scale, or each on its own; the buttons of all images say the same.
  const switches = document.querySelectorAll(".switch");
  for (const one of switches) {
    one.hidden = false;
    one.addEventListener("click", () => {
      const own = root.dataset.scale !== "own";
      if (own) { root.dataset.scale = "own"; } else { delete root.dataset.scale; }
      for (const each of switches) { each.textContent = own ? "All maps on one scale" : "Each map on its own scale"; }
    });
  }
  // A row of the table and its patch in photo and map are lit together, by pointer and by keyboard.
  const light = (event, on) => {
    const row = event.target.closest("tr[data-rank]");
    if (row === null) { return; }
    for (const mark of row.closest(".card").querySelectorAll('.mark[data-rank="' + row.dataset.rank + '"]')) {
      mark.classList.toggle("lit", on);
    }
  };
  for (const [name, on] of [["mouseover", true], ["mouseout", false], ["focusin", true], ["focusout", false]]) {
    document.addEventListener(name, (event) => light(event, on));
  }
})();
