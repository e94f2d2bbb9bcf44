"use strict";
// The roofline plot: operations by arithmetic intensity and achieved rate, both logarithmic, below the ceilings
// measured in the same run.
(() => {
  const figure = document.getElementById("roofline-plot");
  if (!figure) return;
  const { dots, read, roofs } = page.data.roofline;
  const phases = [...document.querySelectorAll("[data-phase]")];
  const margin = { left: 74, right: 18, top: 16, bottom: 46 };

  const draw = (width) => {
    const height = Math.max(300, Math.min(480, width * 0.52));
    const hidden = new Set(phases.filter((box) => !box.checked).map((box) => box.dataset.phase));
    const shown = dots.filter((dot) => !hidden.has(dot.phase));

    // The axes cover the ridges and all dots, shown or not, so that nothing moves when a phase is toggled.
    const ridges = roofs.map((roof) => roof.rate / read).filter(Number.isFinite);
    const xs = [...dots.map((dot) => dot.intensity), ...ridges];
    const ys = [...dots.map((dot) => dot.rate), ...roofs.map((roof) => roof.rate)];
    const domain = (values) => [Math.log10(Math.min(...values)) - 0.35, Math.log10(Math.max(...values)) + 0.35];
    const [x0, x1] = domain(xs);
    const [y0, y1] = domain(ys);
    const x = (log) => margin.left + (log - x0) / (x1 - x0) * (width - margin.left - margin.right);
    const y = (log) => height - margin.bottom - (log - y0) / (y1 - y0) * (height - margin.top - margin.bottom);

    const parts = [];
    // Labels come last, so that no mark covers them.
    const names = [];
    const label = (text, attributes) => (attributes.class ? names : parts).push(page.svg("text", attributes, text));
    const decades = (low, high) => Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, i) => Math.ceil(low) + i);
    for (const log of decades(x0, x1)) {
      parts.push(page.svg("line", { class: "grid", x1: x(log), x2: x(log), y1: margin.top, y2: height - margin.bottom }));
      label(page.digits(10 ** log), { x: x(log), y: height - margin.bottom + 18, "text-anchor": "middle" });
    }
    for (const log of decades(y0, y1)) {
      parts.push(page.svg("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: y(log), y2: y(log) }));
      label(page.scaled(10 ** log, "op/s"), { x: margin.left - 8, y: y(log) + 4, "text-anchor": "end" });
    }
    label("operations per byte of memory traffic", { x: (margin.left + width - margin.right) / 2, y: height - 8, "text-anchor": "middle" });

    if (read) {
      const slope = Math.log10(read);
      // Up to the highest roof, or across the plot if there is none.
      const top = roofs.length ? Math.log10(Math.max(...roofs.map((roof) => roof.rate))) : y1;
      const from = Math.max(x0, y0 - slope);
      const to = Math.min(x1, top - slope);
      const [ax, ay, bx, by] = [x(from), y(from + slope), x(to), y(to + slope)];
      parts.push(page.svg("path", { class: "roof", d: `M${ax} ${ay}L${bx} ${by}` }));
      const angle = Math.atan2(by - ay, bx - ax) * 180 / Math.PI;
      const [cx, cy] = [ax + (bx - ax) * 0.3, ay + (by - ay) * 0.3];
      label(`reads ${page.scaled(read, "B/s")}`, { class: "roof-name", transform: `translate(${cx} ${cy - 8}) rotate(${angle})`, "text-anchor": "middle" });
      for (const roof of roofs) {
        const log = Math.log10(roof.rate);
        parts.push(page.svg("path", { class: "roof", d: `M${x(log - slope)} ${y(log)}H${width - margin.right}` }));
        label(`${roof.name} ${page.scaled(roof.rate, "op/s")}`, { class: "roof-name", x: width - margin.right, y: y(log) - 6, "text-anchor": "end" });
      }
    }

    // Large dots first, so that small ones stay on top.
    for (const dot of shown.sort((a, b) => b.share - a.share)) {
      const r = 3.5 + 15 * Math.sqrt(dot.share);
      const [cx, cy] = [x(Math.log10(dot.intensity)), y(Math.log10(dot.rate))];
      const common = { class: `dot k${dot.colour}`, tabindex: 0, role: "img", "aria-label": dot.lines.join(", ") };
      const shape = dot.phase === "prefill"
        ? page.svg("rect", { ...common, x: cx - r * 0.86, y: cy - r * 0.86, width: r * 1.72, height: r * 1.72, rx: 2 })
        : page.svg("circle", { ...common, cx, cy, r });
      const here = (event) => page.showTip(dot.lines, event.clientX, event.clientY);
      shape.addEventListener("pointermove", here);
      shape.addEventListener("pointerleave", page.hideTip);
      shape.addEventListener("focus", () => {
        const box = shape.getBoundingClientRect();
        page.showTip(dot.lines, box.right, box.bottom);
      });
      shape.addEventListener("blur", page.hideTip);
      parts.push(shape);
    }
    figure.replaceChildren(page.svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Roofline plot" }, ...parts, ...names));
    figure.dataset.drawn = shown.length;
  };

  page.redraw(figure, draw);
  for (const box of phases) box.addEventListener("change", () => draw(figure.clientWidth));
})();
