// The button for the theme: the system's, light or dark; kept for the next visit where the browser allows it.

const THEMES = ["system", "light", "dark"];

export function startTheme(switcher) {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("vitshap-theme"); } catch { return null; } };
  const show = (name) => {
    if (name === "system") { root.removeAttribute("data-theme"); } else { root.dataset.theme = name; }
    switcher.textContent = `Theme: ${name}`;
    switcher.dataset.now = name;
  };
  show(THEMES.includes(stored()) ? stored() : "system");
  switcher.hidden = false;
  switcher.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(switcher.dataset.now) + 1) % THEMES.length];
    show(next);
    try { localStorage.setItem("vitshap-theme", next); } catch { /* a private window: not kept */ }
  });
}
