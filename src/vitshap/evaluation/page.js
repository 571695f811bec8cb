(() => {
  // Columns are sorted by their heading; a second click reverses the order. Cells without a value come last.
  const table = document.querySelector(".scores");
  const body = table.tBodies[0];
  for (const button of table.querySelectorAll("thead button")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const column = Number(button.dataset.column);
      const down = head.getAttribute("aria-sort") === null ? button.dataset.first === "descending" : head.getAttribute("aria-sort") === "ascending";
      for (const other of table.querySelectorAll("th[aria-sort]")) { other.removeAttribute("aria-sort"); }
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => { const text = row.cells[column].dataset.value; return text === undefined ? null : Number(text); };
      const rows = Array.from(body.rows);
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null) { return (x === null) - (y === null); }
        return down ? y - x : x - y;
      });
      body.append(...rows);
    });
  }
  // A method's name shows or hides its curves; pointing at a name or a row of the table makes the others pale.
  const charts = document.querySelector(".charts");
  if (charts === null) { return; }
  const lines = (number) => charts.querySelectorAll('.line[data-row="' + number + '"]');
  for (const button of document.querySelectorAll(".names button")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const line of lines(button.dataset.row)) { line.classList.toggle("off", !shown); }
    });
  }
  const light = (event, on) => {
    const source = event.target.closest("[data-row]");
    if (source === null || source.closest(".charts") !== null) { return; }
    charts.classList.toggle("faded", on);
    for (const line of lines(source.dataset.row)) { line.classList.toggle("lit", on); }
  };
  for (const [name, on] of [["mouseover", true], ["mouseout", false], ["focusin", true], ["focusout", false]]) {
    document.addEventListener(name, (event) => light(event, on));
  }
})();
