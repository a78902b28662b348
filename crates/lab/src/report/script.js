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
for (const row of document.querySelectorAll("[data-links]")) {
  const map = row.closest(".panel").querySelector(".map");
  const light = (on) => {
    map.classList.toggle("lit", on);
    for (const link of row.dataset.links.split(" "))
      for (const part of map.querySelectorAll(`[data-link="${link}"]`)) part.classList.toggle("on", on);
  };
  row.addEventListener("pointerenter", () => light(true));
  row.addEventListener("pointerleave", () => light(false));
}
