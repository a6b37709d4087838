"use strict";
// Sorting and filtering of the parameter table; without this script the table reads as it is.
document.querySelectorAll("table.sortable").forEach((table) => {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.textContent = "";
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = column === 0
          ? x.localeCompare(y, undefined, { numeric: true })
          : (Number(x) - Number(y)) || 0;
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
  const find = document.querySelector("label.find");
  if (find) {
    find.hidden = false;
    find.querySelector("input").addEventListener("input", (event) => {
      const wanted = event.target.value.toLowerCase();
      [...body.rows].forEach((row) => {
        row.hidden = !row.cells[0].dataset.value.toLowerCase().includes(wanted);
      });
    });
  }
});
