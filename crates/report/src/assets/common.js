"use strict";
// Shared code of all pages: data, drawing, tooltips, number formats, sortable tables.
// Text enters the document only as text nodes, never as markup.
const page = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  const svg = (name, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.body.append(tip);

  // Shows lines of text next to a point of the window, on the side with more room.
  const showTip = (lines, x, y) => {
    tip.replaceChildren(...lines.map((line) => {
      const row = document.createElement("div");
      row.textContent = line;
      return row;
    }));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
    const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  };
  const hideTip = () => { tip.hidden = true; };
  addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
  addEventListener("scroll", hideTip, { passive: true });

  // Calls draw(width) now, and whenever the element's width or the theme changes.
  const redraw = (element, draw) => {
    let drawn = 0;
    const again = () => { drawn = element.clientWidth; draw(drawn); };
    again();
    new ResizeObserver(() => { if (element.clientWidth !== drawn) again(); }).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  const digits = (x) => {
    const size = Math.abs(x);
    if (size === 0) return "0";
    if (size >= 99.95) return Math.round(x).toLocaleString("en");
    return Number(x.toPrecision(3)).toString();
  };
  const scaled = (x, unit) => {
    const steps = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const [size, prefix] = steps.find(([step]) => Math.abs(x) >= step * 0.9995) ?? [1, ""];
    return `${digits(x / size)} ${prefix}${unit}`;
  };
  const time = (us) => {
    if (Math.abs(us) >= 999_500) return `${digits(us / 1e6)} s`;
    if (Math.abs(us) >= 999.5) return `${digits(us / 1e3)} ms`;
    return `${digits(us)} µs`;
  };

  const sortable = (table) => {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    const key = (row, column) => row.cells[column].dataset.key;
    const text = (row, column) => row.cells[column].textContent;
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const rows = [...body.rows];
        const numeric = rows.some((row) => key(row, column) !== undefined);
        const first = numeric ? "descending" : "ascending";
        const second = numeric ? "ascending" : "descending";
        const order = head.getAttribute("aria-sort") === first ? second : first;
        const sign = order === "ascending" ? 1 : -1;
        rows.sort((a, b) => {
          if (!numeric) return sign * text(a, column).localeCompare(text(b, column));
          const [x, y] = [key(a, column), key(b, column)];
          // Missing values come last in either order.
          if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
          return sign * (Number(x) - Number(y));
        });
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order);
        body.append(...rows);
      });
    });
  };
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.documentElement.dataset.tables = document.querySelectorAll("table.sortable thead button").length;

  return { data, svg, showTip, hideTip, redraw, colour, digits, scaled, time };
})();
