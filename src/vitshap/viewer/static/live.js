// The page of `vitshap serve`.

import { App } from "./app.js";
import { element } from "./dom.js";
import { Server } from "./server.js";

// Ask for the bearer token of a server that wants one; it is kept in this page alone.
function askToken(wrong) {
  const input = element("input", { type: "password", class: "filter", "aria-label": "Token", autocomplete: "off" });
  const dialog = element("dialog", { "aria-label": "Token" }, element("h2", {}, wrong ? "This token is not accepted" : "This server wants a token"),
    element("p", {}, "It is the bearer token that was given to vitshap serve."),
    element("form", { method: "dialog", class: "controls" }, input, element("button", { class: "primary", value: "ok" }, "Continue")));
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "ok" && input.value.trim() ? input.value.trim() : null);
    });
  });
}

const app = new App(new Server({ onToken: askToken, onLoading: () => { document.getElementById("loading").hidden = false; } }));
window.vitshap = app;
app.start();
