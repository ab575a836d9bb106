"use strict";

// Theme: the system's, until the reader chooses one.
(() => {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const named = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
  const stored = (theme) => {
    try {
      return theme ? localStorage.setItem("theme", theme) : localStorage.getItem("theme");
    } catch {
      return null;                                 // browsers may refuse storage to local files
    }
  };
  const before = stored();
  if (before === "dark" || before === "light") root.dataset.theme = before;
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    stored(root.dataset.theme);
    named();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
  named();
})();

// Table: a click on a header sorts rows; words in the box filter them.
(() => {
  const table = document.getElementById("rows");
  const body = table.tBodies[0];
  const headers = [...table.tHead.rows[0].cells];
  const filter = document.getElementById("filter");
  const count = document.getElementById("count");

  const value = (row, column) => {
    const cell = row.cells[column];
    if ("sort" in cell.dataset) return [0, Number(cell.dataset.sort)];
    const text = cell.textContent;
    return text === "-" || cell.classList.contains("number") ? [2, ""] : [1, text];   // missing values come last
  };
  const compare = (a, b, sign) => {
    if (a[0] !== b[0]) return a[0] === 2 || b[0] === 2 ? a[0] - b[0] : sign * (a[0] - b[0]);
    if (a[0] === 0) return a[1] === b[1] ? 0 : sign * (a[1] < b[1] ? -1 : 1);
    return sign * a[1].localeCompare(b[1], undefined, { numeric: true });
  };
  headers.forEach((header, column) => {
    const button = header.querySelector("button");
    button.disabled = false;
    button.addEventListener("click", () => {
      const up = header.getAttribute("aria-sort") !== "ascending";
      headers.forEach((other) => other.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", up ? "ascending" : "descending");
      const keyed = [...body.rows].map((row) => [value(row, column), row]);
      keyed.sort((a, b) => compare(a[0], b[0], up ? 1 : -1));
      body.append(...keyed.map((pair) => pair[1]));
    });
  });

  const rows = [...body.rows].map((row) =>
    [row, [...row.cells].map((cell) => cell.textContent).join("\n").toLowerCase()]);
  const all = count.textContent;
  filter.disabled = false;
  filter.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of rows) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = words.length ? `${shown} of ${all}` : all;
  });
})();

// Charts: the text of a mark appears at once beside the pointer; the browser's own tooltips are slow.
(() => {
  const box = document.createElement("div");
  box.id = "tip";
  box.hidden = true;
  document.body.append(box);
  for (const title of document.querySelectorAll("svg.panel title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.parentNode.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  for (const mark of document.querySelectorAll("i.mark[title]")) {
    mark.dataset.tip = mark.title;
    mark.setAttribute("aria-label", mark.title);
    mark.removeAttribute("title");
  }
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest?.("[data-tip]");
    box.hidden = !mark;
    if (mark) box.textContent = mark.dataset.tip;
  });
  document.addEventListener("pointermove", (event) => {
    if (box.hidden) return;
    const left = Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8);
    const top = event.clientY + 18 + box.offsetHeight > innerHeight
      ? event.clientY - box.offsetHeight - 10 : event.clientY + 18;
    box.style.left = `${left}px`;
    box.style.top = `${top}px`;
  });
})();
