// Small helpers for making elements. Names come from users: text is always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) { continue; }
    if (name.startsWith("on")) { node.addEventListener(name.slice(2), value); }
    else if (name in node && typeof value === "boolean") { node[name] = value; }
    else { node.setAttribute(name, value === true ? "" : String(value)); }
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function drawing(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function button(label, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, label);
}

// A checkbox with its label.
export function checkbox(label, checked, onchange, attributes = {}) {
  const input = element("input", { type: "checkbox", onchange: () => onchange(input.checked), ...attributes });
  input.checked = checked;
  return element("label", { class: "check" }, input, element("span", {}, label));
}

let groups = 0;

// Radio buttons that look like one control; choices are [value, label] pairs. `set` changes the choice from outside.
export function choice(legend, choices, chosen, onchange, attributes = {}) {
  const name = `choice-${groups += 1}`;
  const inputs = choices.map(([value]) => {
    const input = element("input", { type: "radio", name, value, onchange: () => onchange(value) });
    input.checked = value === chosen;
    return input;
  });
  const labels = choices.map(([, label], i) => element("label", {}, inputs[i], element("span", {}, label)));
  const node = element("fieldset", { class: "choice", ...attributes }, element("legend", {}, legend), labels);
  node.set = (value) => inputs.forEach((input) => { input.checked = input.value === String(value); });
  return node;
}

export function slider(label, attributes, oninput) {
  const input = element("input", { type: "range", oninput: () => oninput(Number(input.value)), ...attributes });
  const node = element("label", { class: "range" }, element("span", {}, label), input);
  node.input = input;
  return node;
}

export function saveFile(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
