"use strict";
// Readouts under the pointer, and a path's links on the map. Without this the page says the same, but for details.
const tip = document.getElementById("tip");
document.addEventListener("pointermove", (event) => {
  const source = event.target.closest("[data-tip]");
  tip.style.display = source ? "block" : "none";
  if (!source) return;
  tip.textContent = source.dataset.tip;
  const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
  const low = event.clientY + 16 + tip.offsetHeight > innerHeight;
  tip.style.left = (right ? event.clientX - 12 - tip.offsetWidth : event.clientX + 14) + "px";
  tip.style.top = (low ? event.clientY - 12 - tip.offsetHeight : event.clientY + 14) + "px";
});
document.addEventListener("pointerleave", () => (tip.style.display = "none"));
let lit = null;
document.addEventListener("pointerover", (event) => {
  const row = event.target.closest("[data-links]");
  if (row === lit) return;
  for (const [each, on] of [[lit, false], [row, true]]) {
    const map = each?.closest(".panel")?.querySelector(".map");
    map?.classList.toggle("lit", on);
    for (const link of map ? each.dataset.links.split(" ") : [])
      for (const part of map.querySelectorAll(`[data-link="${link}"]`)) part.classList.toggle("on", on);
  }
  lit = row;
});
