"use strict";
// The timeline: spans of the CPU lane and the device lane on a canvas, with zoom and pan. A row of a lane is a nesting
// depth; spans of a row are sorted and do not overlap, so the one under the pointer is found by bisection.
(() => {
  const box = document.getElementById("timeline-plot");
  if (!box) return;
  const { names, kinds, lanes, spans } = page.data.timeline;
  const canvas = box.querySelector("canvas");
  const context = canvas.getContext("2d");
  const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
  const greatest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
  const rowHeight = 19, axisHeight = 24, laneGap = 22, left = 0;

  // Rows from top to bottom: { y, items } with items ordered by start.
  const rows = [];
  const labels = [];
  let height = axisHeight;
  lanes.forEach((lane, index) => {
    const mine = spans.filter((span) => span[2] === index);
    if (mine.length === 0) return;
    labels.push({ text: lane, y: height });
    height += laneGap;
    const depth = greatest(mine.map((span) => span[3])) + 1;
    for (let level = 0; level < depth; level++) {
      rows.push({ y: height, items: mine.filter((span) => span[3] === level) });
      height += rowHeight;
    }
    height += 6;
  });
  const first = least(spans.map((span) => span[4]));
  const last = greatest(spans.map((span) => span[4] + span[5]));
  const whole = Math.max(last - first, 0.001);
  // The first view shows nested spans, such as those of a step; loading before them may have taken long.
  const inner = spans.filter((span) => span[3] > 0);
  const home = inner.length ? [least(inner.map((span) => span[4])), greatest(inner.map((span) => span[4] + span[5]))] : [first, last];
  let from, size, width = 1;

  const limit = () => {
    size = Math.min(whole, Math.max(size, Math.min(whole, 0.5)));
    from = Math.min(Math.max(from, first), last - size);
  };
  const goHome = () => { from = home[0]; size = home[1] - home[0]; };
  goHome();
  const toX = (us) => left + (us - from) / size * (width - left);
  const toTime = (x) => from + (x - left) / (width - left) * size;

  // Index of the first span of a row that ends after `us`.
  const after = (items, us) => {
    let low = 0, high = items.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (items[middle][4] + items[middle][5] <= us) low = middle + 1; else high = middle;
    }
    return low;
  };

  const step = (target) => {
    const power = 10 ** Math.floor(Math.log10(target));
    return [1, 2, 5, 10].map((digit) => digit * power).find((value) => value >= target);
  };

  const draw = () => {
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const [ink, muted, line, panel] = ["ink", "muted", "line", "panel"].map(page.colour);
    const colours = Array.from({ length: 9 }, (_, i) => page.colour(`k${i}`));
    const neutral = page.colour("kn");
    context.fillStyle = panel;
    context.fillRect(0, 0, width, height);

    const gap = step(size / Math.max(2, width / 110));
    // The gap is a multiple of the unit, so that neighbouring labels differ at any zoom.
    const [unit, unitName] = [[1e6, "s"], [1e3, "ms"]].find(([us]) => gap >= us) ?? [1, "µs"];
    const tick = (us) => `${(us / unit).toLocaleString("en", { maximumFractionDigits: 3 })} ${unitName}`;
    context.fillStyle = muted;
    context.strokeStyle = line;
    context.lineWidth = 1;
    context.beginPath();
    for (let us = Math.ceil((from - first) / gap) * gap; us <= from - first + size; us += gap) {
      const x = Math.round(toX(us + first)) + 0.5;
      context.moveTo(x, axisHeight - 4);
      context.lineTo(x, height);
      context.textAlign = x < 44 ? "left" : x > width - 44 ? "right" : "center";
      context.fillText(us === 0 ? "0" : tick(us), Math.min(Math.max(x, 1), width - 1), 10);
    }
    context.stroke();
    context.textAlign = "left";
    context.fillStyle = ink;
    for (const label of labels) context.fillText(label.text, 2, label.y + laneGap / 2);

    let drawn = 0;
    for (const row of rows) {
      // Adjacent spans of less than a pixel are drawn as one rectangle.
      let inked = -1;
      for (let i = after(row.items, from); i < row.items.length && row.items[i][4] < from + size; i++) {
        const [name, kind, , , start, duration] = row.items[i];
        const x = Math.max(toX(start), left);
        const end = Math.min(toX(start + duration), width);
        drawn++;
        if (end <= inked) continue;
        const shown = Math.max(end - x, 0.75);
        const colour = kinds[kind].colour;
        context.fillStyle = colour === null ? neutral : colours[colour];
        context.fillRect(x, row.y, shown > 4 ? shown - 1 : shown, rowHeight - 2);
        inked = Math.max(end, x + 0.75);
        if (shown > 34) {
          context.save();
          context.beginPath();
          context.rect(x, row.y, shown - 5, rowHeight);
          context.clip();
          context.fillStyle = colour === null ? ink : panel;
          context.fillText(names[name], x + 4, row.y + rowHeight / 2 - 0.5);
          context.restore();
        }
      }
    }
    box.dataset.drawn = drawn;
  };

  // Browsers deliver pointer and wheel events once per frame, so drawing at once is fine.
  const redraw = () => { limit(); draw(); };
  const zoom = (factor, x) => {
    const at = toTime(x);
    size *= factor;
    limit();
    from = at - (x - left) / (width - left) * size;
    redraw();
  };

  const under = (x, y) => {
    const row = rows.find((candidate) => y >= candidate.y && y < candidate.y + rowHeight);
    if (!row) return null;
    // Spans of less than a pixel can be hit too.
    const slack = size / width;
    const span = row.items[after(row.items, toTime(x) - slack)];
    return span && span[4] <= toTime(x) + slack ? span : null;
  };

  const held = new Map();
  const place = (event) => {
    const area = canvas.getBoundingClientRect();
    return [event.clientX - area.left, event.clientY - area.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    held.set(event.pointerId, event.clientX);
    canvas.setPointerCapture(event.pointerId);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => held.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (held.has(event.pointerId)) {
      page.hideTip();
      const before = held.get(event.pointerId);
      if (held.size === 2) {
        // Two fingers: the other finger keeps its position.
        const other = [...held].find(([id]) => id !== event.pointerId)[1];
        const distance = Math.abs(event.clientX - other), old = Math.abs(before - other);
        if (distance > 8 && old > 8) zoom(old / distance, other - canvas.getBoundingClientRect().left);
      } else {
        from -= (event.clientX - before) / (width - left) * size;
      }
      held.set(event.pointerId, event.clientX);
      redraw();
      return;
    }
    const span = under(x, y);
    if (!span) return page.hideTip();
    const [name, kind, , , start, duration] = span;
    page.showTip([names[name], `${kinds[kind].name} · ${page.time(duration)}`, `from ${page.time(start - first)}`], event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", page.hideTip);
  canvas.addEventListener("dblclick", (event) => zoom(0.4, place(event)[0]));
  canvas.addEventListener("wheel", (event) => {
    // Without focus, the wheel alone scrolls the page.
    const zooms = event.ctrlKey || event.metaKey || document.activeElement === canvas;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      from += event.deltaX / width * size;
      redraw();
    } else if (zooms) {
      zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) * 0.004), place(event)[0]);
    } else {
      return;
    }
    event.preventDefault();
  }, { passive: false });

  const actions = {
    "+": () => zoom(0.6, width / 2),
    "-": () => zoom(1 / 0.6, width / 2),
    "0": () => { from = first; size = whole; redraw(); },
    h: () => { goHome(); redraw(); },
    ArrowLeft: () => { from -= size * 0.15; redraw(); },
    ArrowRight: () => { from += size * 0.15; redraw(); },
  };
  actions["="] = actions["+"];
  canvas.addEventListener("keydown", (event) => {
    if (!actions[event.key] || event.ctrlKey || event.metaKey) return;
    actions[event.key]();
    event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => actions[button.dataset.zoom]());

  page.redraw(box, (now) => { width = Math.max(now, 50); redraw(); });
})();
