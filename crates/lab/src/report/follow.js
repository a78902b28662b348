// While runs go on, what is new is asked for every second and put in place of what is there. What was chosen stays chosen.
const chosen = new Map();
document.addEventListener("change", ({ target }) => {
  if (target.matches("input.choice, input.more-rows")) chosen.set(target.name || target.id, { id: target.id, checked: target.checked });
});
async function follow() {
  const answer = await fetch(location.pathname, { cache: "no-store" }).catch(() => null);
  // Whoever served it has ended: what is here is the last of it.
  if (!answer?.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of ["head > style", "main"]) document.querySelector(part).replaceWith(fresh.querySelector(part));
  for (const { id, checked } of chosen.values()) {
    const input = document.getElementById(id);
    if (input) input.checked = checked;
  }
  tip.style.display = "none";
  setTimeout(follow, 1000);
}
setTimeout(follow, 1000);
