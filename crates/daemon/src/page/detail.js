// One transfer: its files, pieces, peers, trackers, paths, and what happened.
import { $, ask, bytes, complain, duration, el, limits, play, rate, remove, say, select } from "/page.js";
import { drawMap, lightUp } from "/map.js";

const TABS = ["overview", "files", "peers", "trackers", "paths", "log"];
const SAMPLES_MAX = 120;
let content = null, tab = "overview", busy = false, access = "full";
let samples = new Map();

export function showDetail(next, may) {
  if (content?.id !== next.id) samples = new Map();
  content = next;
  access = may;
  frame();
  fill();
}
// A bulk transfer has no files that could be looked at while they come, and nobody to be asked for others.
const tabsOf = (content) => content.kind === "bulk" ? TABS.filter((name) => name !== "files" && name !== "trackers") : TABS;
const hasFiles = (content) => content.kind !== "bulk" && content.kind !== "live";

export function openTab(name) { if (TABS.includes(name)) tab = name; }
export function closeDetail() { content = null; samples = new Map(); $("detail").replaceChildren(); }
export function detailTick(next) {
  if (!content || next?.id !== content.id) return;
  const changed = next.state !== content.state || next.name !== content.name;
  content = next;
  if (changed) frame();
  fill();
}
export function detailEvent(name) { if (tab === "paths" && name !== "note" || tab === "log" && name === "note") fill(); }

const act = (method, what, body) => ask(method, `contents/${content.id}${what}`, body).catch(complain);

function frame() {
  const id = content.id, tabNames = tabsOf(content);
  if (!tabNames.includes(tab)) tab = "overview";
  const button = (text, press) => el("button", { type: "button", onclick: press }, text);
  const actions = access !== "full" ? [] : [
    content.paused ? button("Resume", () => act("POST", "/resume")) : button("Pause", () => act("POST", "/pause")),
    button("Limits", () => limits(content).catch(complain)),
    !hasFiles(content) ? null : button("Verify", () => act("POST", "/recheck")),
    content.shared_only || !hasFiles(content) ? null : button("Move", () => { const dir = prompt("Move to which folder?", content.dir); if (dir) act("POST", "/move", { dir }); }),
    button("First", () => act("POST", "/queue", { to: "front" })),
    button("Remove", () => remove(content)),
  ];
  const tabs = tabNames.map((name) => el("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === tab), "aria-controls": "panel", tabindex: name === tab ? 0 : -1,
    onclick: () => { tab = name; frame(); fill(); $(`tab-${name}`).focus(); },
  }, name[0].toUpperCase() + name.slice(1)));
  const bar = el("div", { class: "tabs", role: "tablist", "aria-label": "Details" }, ...tabs);
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    tab = tabNames[(tabNames.indexOf(tab) + step + tabNames.length) % tabNames.length];
    frame(); fill(); $(`tab-${tab}`).focus();
  });
  $("detail").replaceChildren(
    el("div", { class: "actions" }, button("Close", () => select(null)), ...actions.filter(Boolean)),
    el("h2", {}, content.name), bar,
    el("div", { id: "panel", role: "tabpanel", "aria-labelledby": `tab-${tab}` }));
  $("detail").dataset.id = id;
}

// Fills the panel again; one at a time, so that a slow daemon is not asked for more.
async function fill() {
  if (busy || !content) return;
  busy = true;
  const [of, which] = [content.id, tab];
  try {
    const made = await { overview, files, peers, trackers, paths, log }[which]();
    if (content?.id === of && tab === which && made) keepFocus(() => $("panel").replaceChildren(...made));
  } catch (error) {
    if (content?.id === of) $("panel").replaceChildren(el("p", { class: "soft" }, error.message));
  } finally {
    busy = false;
    // What was chosen meanwhile does not wait for the next news.
    if (content && (content.id !== of || tab !== which)) fill();
  }
}

// What had the focus has it again after it was drawn anew, and what was scrolled is where it was.
function keepFocus(redraw) {
  const key = document.activeElement?.dataset?.key;
  const within = $("panel").contains(document.activeElement);
  const scrolls = [...$("panel").querySelectorAll(".scroll")].map((node) => [node.dataset.key, node.scrollLeft]).filter(([, left]) => left);
  redraw();
  for (const [key, left] of scrolls) { const node = document.querySelector(`[data-key="${CSS.escape(key)}"]`); if (node) node.scrollLeft = left; }
  if (within && key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

function pairs(entries) {
  return el("dl", {}, ...entries.filter(([, value]) => value != null && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}
const time = (seconds) => seconds == null ? null : new Date(seconds * 1000).toLocaleString();
// What is wider than its place is scrolled there, by keyboard too.
const scrolled = (label, key, child) => el("div", { class: "scroll", role: "group", "aria-label": label, tabindex: 0, "data-key": key }, child);
function table(label, heads, rows, empty) {
  if (!rows.length) return el("p", { class: "soft" }, empty);
  const head = (text) => text ? el("th", { scope: "col", class: text.startsWith("#") ? "n" : null }, text.replace("#", "")) : el("td");
  return scrolled(label, `table-${label}`, el("table", {}, el("thead", {}, el("tr", {}, ...heads.map(head))), el("tbody", {}, ...rows)));
}

async function overview() {
  const isBulk = content.kind === "bulk";
  const pieces = !hasFiles(content) ? null : await ask("GET", `contents/${content.id}/pieces`).catch(() => null);
  const reach = isBulk && access === "full" ? await ask("GET", `contents/${content.id}/reach`).catch(() => null) : null;
  const made = [pairs([
    ["State", content.state.replace("_", " ")], ["Because", content.reason],
    ["Done", `${bytes(content.done)} of ${bytes(content.size)}`],
    ["Time left", duration(content.eta)],
    ["Received", `${bytes(content.downloaded)}, ${rate(content.down_rate)}`],
    ["Sent", `${bytes(content.uploaded)}, ${rate(content.up_rate)}, ratio ${content.ratio.toFixed(2)}`],
    ["Peers", `${content.peers}, ${content.seeds} of them have all`],
    ["Limits", `receive ${content.limit_down ? rate(content.limit_down) : "none"}, send ${content.limit_up ? rate(content.limit_up) : "none"}`],
    ["Folder", content.dir], ["Category", content.category], ["Tags", content.tags.join(", ")],
    ["Added", time(content.added)], ["Complete", time(content.completed)],
  ])];
  if (pieces?.bits) {
    made.push(el("h3", {}, `Pieces: ${pieces.have} of ${pieces.count}, each ${bytes(pieces.length)}`), pieceBar(pieces));
  }
  const told = (name, text, soft) => {
    const copy = el("button", { type: "button", "data-key": "copy", onclick: () => navigator.clipboard.writeText(text).then(() => say("Copied."), complain) }, "Copy");
    made.push(el("h3", {}, `${name} `, copy), el("p", { class: "mono", id: "told" }, text), soft ? el("p", { class: "soft" }, soft) : "");
  };
  if (content.link) told("Link", content.link, content.live ? `For viewers: "anabranch play LINK", "anabranch get LINK", or paste it on another page like this.` : null);
  if (content.live) made.push(el("h3", {}, "Input"), el("p", { class: "mono", id: "input" }, content.live.input ?? `PUT ${location.origin}/api/v1/contents/${content.id}/live`),
    el("p", { class: "soft" }, content.live.input ? "Read by the daemon." : `From an encoder: ffmpeg -re -i FILM -c copy -f mpegts -method PUT -headers "Authorization: Bearer TOKEN" ADDRESS`));
  const times = content.bulk?.times === 1 ? "once" : `${content.bulk?.times} times`;
  if (reach?.ticket) told("Ticket", reach.ticket, `Good ${times}, until ${time(content.bulk.expires)}, for ${content.bulk.sends ? "receiving" : "sending"}: "anabranch ${content.bulk.sends ? "receive TICKET" : "send PATH --to TICKET"}", or paste it on another page like this.`);
  else if (reach?.key) told("Address", `${reach.key}@${reach.addresses[0]}`, `For those with one of its keys: "anabranch send PATH --to ADDRESS".`);
  return made;
}

function pieceBar(pieces) {
  const width = Math.min(1000, pieces.count), canvas = el("canvas", { class: "pieces", width, height: 1, role: "img", "aria-label": `${pieces.have} of ${pieces.count} pieces are there` });
  const has = (piece) => (parseInt(pieces.bits.substr((piece >> 3) * 2, 2), 16) >> (7 - (piece & 7))) & 1;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  for (let x = 0; x < width; x++) {
    const [from, to] = [Math.floor(x * pieces.count / width), Math.max(Math.floor((x + 1) * pieces.count / width), Math.floor(x * pieces.count / width) + 1)];
    let there = 0;
    for (let piece = from; piece < to; piece++) there += has(piece);
    context.globalAlpha = there / (to - from);
    context.fillRect(x, 0, 1, 1);
  }
  return canvas;
}

async function files() {
  const { files } = await ask("GET", `contents/${content.id}/files`);
  const levels = [[0, "skip"], [1, "low"], [4, "normal"], [7, "first"]];
  const row = (file) => {
    const choose = el("select", {
      "aria-label": `How much ${file.path} is wanted`, "data-key": `file-${file.index}`, disabled: access !== "full" || content.shared_only,
      onchange: (event) => act("PATCH", "/files", { priorities: { [file.index]: Number(event.target.value) } }),
    }, ...levels.map(([level, name]) => el("option", { value: level, selected: level === file.priority }, name)));
    const watch = file.playable ? el("button", { type: "button", "data-key": `play-${file.index}`, "aria-label": `Play ${file.path}`, onclick: () => play(content, file) }, "Play") : null;
    const save = el("a", { href: `/api/v1/contents/${content.id}/play/${file.index}`, "data-key": `save-${file.index}`, target: "_blank", rel: "noopener" }, file.path);
    return el("tr", {}, el("td", {}, save), el("td", { class: "n" }, bytes(file.length)),
      el("td", { class: "n" }, file.length ? `${(100 * file.done / file.length).toFixed(1)} %` : "-"), el("td", {}, choose), el("td", {}, watch));
  };
  // A list that is open is not drawn anew under the user's hand.
  if (document.activeElement?.tagName === "SELECT" && $("panel").contains(document.activeElement)) return null;
  return [table("Files", ["File", "#Size", "#There", "Wanted", ""], files.slice(0, 2000).map(row), "No files.")];
}

async function peers() {
  const { peers } = await ask("GET", `contents/${content.id}/peers`);
  const row = (peer) => el("tr", {}, el("td", { class: "mono" }, peer.address), el("td", {}, peer.client ?? ""), el("td", { class: "n" }, rate(peer.down_rate)),
    el("td", { class: "n" }, rate(peer.up_rate)), el("td", { class: "n" }, `${(peer.progress * 100).toFixed(0)} %`), el("td", {}, [peer.serves_us ? "serves us" : "", peer.is_served ? "is served" : ""].filter(Boolean).join(", ")));
  return [table("Peers", ["Address", "Program", "#Down", "#Up", "#Has", ""], peers.map(row), "Nobody is connected.")];
}

async function trackers() {
  const { trackers } = await ask("GET", `contents/${content.id}/trackers`);
  const row = (tracker) => el("tr", {}, el("td", { class: "mono" }, tracker.url), el("td", {}, tracker.state.replace("_", " ")), el("td", { class: "n" }, tracker.peers ?? ""), el("td", {}, tracker.reason ?? ""));
  return [table("Trackers", ["Address", "State", "#Peers", "Why"], trackers.map(row), "No trackers.")];
}

async function log() {
  const { log } = await ask("GET", `contents/${content.id}/log`);
  if (!log.length) return [el("p", { class: "soft" }, "Nothing happened yet.")];
  return [el("ul", { class: "log" }, ...log.reverse().map((line) => el("li", {}, el("time", {}, time(line.time)), " ", line.text)))];
}

// ---- paths ----

const keyOf = (path) => `${path.peer} ${path.path}`;

// A path as text, which breaks between its hops alone.
function way(text) {
  return el("span", { class: "mono" }, ...text.split(" ").flatMap((hop, at) => [at ? " " : "", el("span", { class: "hop" }, hop)]));
}

function spark(history, color) {
  const node = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    return made;
  };
  const most = Math.max(1, ...history), last = history.at(-1) ?? 0;
  const svg = node("svg", { class: `spark ${color}`, viewBox: "0 0 170 40", role: "img", "aria-label": `Rate over time, now ${rate(last)}, at most ${rate(most)}` });
  const x = (at) => 168 - (history.length - 1 - at) * 166 / (SAMPLES_MAX - 1);
  const d = history.map((value, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${(37 - 22 * value / most).toFixed(1)}`).join("");
  svg.append(node("path", { class: "line", d }), node("text", { x: 4, y: 10 }, `most ${rate(most)}`));
  return svg;
}

async function paths() {
  const told = await ask("GET", `contents/${content.id}/paths`);
  const live = new Set(told.paths.map(keyOf));
  for (const key of samples.keys()) if (!live.has(key)) samples.delete(key);
  told.paths.forEach((path) => {
    const history = samples.get(keyOf(path)) ?? [];
    history.push(path.down_rate + path.up_rate);
    if (history.length > SAMPLES_MAX) history.shift();
    samples.set(keyOf(path), history);
  });
  if (!told.paths.length && !told.choices.length) return [el("p", { class: "soft" }, "No peer is connected, so there is no path yet.")];
  const made = [scrolled("Map", "map", drawMap(told))];
  made.push(el("h3", {}, `${told.paths.length} paths with a connection`));
  told.paths.forEach((path, at) => {
    const color = `c${at % 8}`;
    const numbers = [`↓ ${rate(path.down_rate)}`, `↑ ${rate(path.up_rate)}`, path.rtt_ms != null ? `RTT ${path.rtt_ms.toFixed(1)} ms` : null, `${path.lost} lost`, `${bytes(path.downloaded + path.uploaded)} moved`];
    made.push(el("div", { class: `path ${color}`, onmouseenter: () => lightUp(path), onmouseleave: () => lightUp(null) },
      el("div", {}, el("span", { class: "dot" }), el("span", { class: `chip ${path.state}` }, path.state), " ", way(path.text)),
      el("div", {}, numbers.filter(Boolean).join(" · ")),
      el("div", { class: "sub" }, [`to ${path.peer}`, path.reason].filter(Boolean).join(" · ")),
      spark(samples.get(keyOf(path)), color)));
  });
  for (const choice of told.choices) {
    const row = (candidate) => el("tr", { onmouseenter: () => lightUp(candidate), onmouseleave: () => lightUp(null) },
      el("td", {}, el("span", { class: `chip ${candidate.choice}` }, candidate.choice)), el("td", {}, way(candidate.text)), el("td", {}, candidate.reason),
      el("td", { class: "n" }, candidate.latency_ms != null ? `${candidate.latency_ms.toFixed(1)} ms` : ""));
    made.push(el("h3", {}, `Paths to ${choice.peer}: ${choice.candidates.length + choice.left_out} looked at`),
      el("p", { class: "soft" }, `Chosen ${choice.selector ? `by ${choice.selector}` : "by the peer"}: ${choice.why}.`),
      table(`Paths to ${choice.peer}`, ["", "Path", "Why", "#Claimed"], choice.candidates.map(row), ""));
  }
  if (told.changes.length) {
    made.push(el("h3", {}, "What changed"), el("ul", { class: "log" }, ...told.changes.slice(-20).reverse().map((change) =>
      el("li", {}, el("time", {}, time(change.time)), ` ${change.path.slice(0, 12)}: ${change.state}, ${change.reason}`))));
  }
  return made;
}
