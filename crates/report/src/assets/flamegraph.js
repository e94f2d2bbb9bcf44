"use strict";
// A click on a frame zooms it to the whole width; enclosing frames stay, others are hidden.
(() => {
  const frames = [...document.querySelectorAll(".frame")].map((group) => {
    const box = group.querySelector("svg");
    return { group, box, x: Number(box.getAttribute("x")), width: Number(box.getAttribute("width")) };
  });
  const total = Math.max(...frames.map((frame) => frame.width));
  const left = Math.min(...frames.map((frame) => frame.x));
  const zoom = (target) => {
    const scale = total / target.width;
    for (const { group, box, x, width } of frames) {
      const from = Math.max(left, left + (x - target.x) * scale);
      const to = Math.min(left + total, left + (x + width - target.x) * scale);
      group.style.display = to - from > 0.01 ? "" : "none";
      box.setAttribute("x", from);
      box.setAttribute("width", Math.max(0, to - from));
    }
  };
  for (const frame of frames) {
    frame.group.addEventListener("click", () => zoom(frame));
    frame.group.addEventListener("keydown", (event) => { if (event.key === "Enter") zoom(frame); });
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape") zoom({ x: left, width: total }); });
  document.documentElement.dataset.frames = frames.length;
})();
