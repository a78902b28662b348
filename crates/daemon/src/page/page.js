// The list of transfers, and what is done to them. State lives in `contents`; what is on the screen is drawn from it.
import { showDetail, detailEvent, detailTick, closeDetail, openTab } from "/detail.js";

export const $ = (id) => document.getElementById(id);
const ROW = 62;
const SAMPLES_MAX = 240;
const STATES = ["downloading", "seeding", "sending", "watching", "streaming", "complete", "paused", "queued", "error", "checking", "hashing", "metadata", "starting", "moving", "removing", "no_space", "waiting"];

const contents = new Map();
const history = [];
let shown = [], selected = null, focused = 0, source = null, drawing = false, access = "full";

// ---- what everything uses ----

export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export function bytes(count) {
  if (count == null) return "-";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  while (count >= 1000 && at < units.length - 1) { count /= 1000; at++; }
  return `${at === 0 ? count : count.toFixed(count < 10 ? 2 : count < 100 ? 1 : 0)} ${units[at]}`;
}
export const rate = (count) => `${bytes(count)}/s`;

export function duration(seconds) {
  if (seconds == null) return "";
  const [d, h, m] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
  if (d > 0) return `${d} d ${h} h`;
  if (h > 0) return `${h} h ${m} min`;
  return m > 0 ? `${m} min ${Math.floor(seconds) % 60} s` : `${Math.floor(seconds)} s`;
}

export async function ask(method, target, body, type = "application/json") {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["content-type"] = type;
    options.body = type === "application/json" ? JSON.stringify(body) : body;
  }
  const answer = await fetch(`/api/v1/${target}`, options);
  const said = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (answer.status === 401) { logIn(); throw new Error("log in first"); }
  if (!answer.ok) throw new Error(said?.detail ?? `the daemon answers ${answer.status}`);
  return said;
}

let messageTimer;
export function say(text, bad = false) {
  $("message").textContent = text;
  $("message").classList.toggle("bad", bad);
  $("message").hidden = !text;
  clearTimeout(messageTimer);
  if (text && !bad) messageTimer = setTimeout(() => say(""), 6000);
}
export const complain = (error) => say(error.message, true);

// ---- the list ----

function matches(content) {
  const text = $("search").value.trim().toLowerCase(), state = $("state").value;
  return (!state || content.state === state)
    && (!text || content.name.toLowerCase().includes(text) || content.category === text || content.tags.includes(text));
}

function refresh() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; draw(); });
}

function draw() {
  shown = [...contents.values()].filter(matches).sort((a, b) => a.rank - b.rank || a.id - b.id);
  focused = Math.max(0, Math.min(focused, shown.length - 1));
  $("rows").style.height = `${shown.length * ROW}px`;
  $("list").setAttribute("aria-rowcount", shown.length);
  $("empty").hidden = contents.size > 0;
  $("count").textContent = shown.length === contents.size ? `${contents.size} ${contents.size === 1 ? "transfer" : "transfers"}` : `${shown.length} of ${contents.size}`;
  drawRows();
}

// Only the rows that can be seen are there, each one used again for another transfer.
function drawRows() {
  const list = $("list"), rows = $("rows");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  const hadFocus = rows.contains(document.activeElement);
  while (rows.children.length < last - first) rows.append(makeRow());
  while (rows.children.length > last - first) rows.lastChild.remove();
  for (let at = first; at < last; at++) fillRow(rows.children[at - first], at);
  if (hadFocus && focused >= first && focused < last) rows.children[focused - first].focus({ preventScroll: true });
}

function makeRow() {
  const cell = (name) => el("div", { class: name, role: "gridcell" });
  const row = el("div", { role: "row", tabindex: -1 }, cell("name"), cell("chip"), cell("rates"), cell("left"), cell("sub"), el("div", { class: "bar", role: "gridcell", "aria-hidden": "true" }, el("i")));
  row.addEventListener("click", () => { focused = Number(row.dataset.at); select(Number(row.dataset.id)); });
  return row;
}

const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

function fillRow(row, at) {
  const content = shown[at], [name, chip, rates, left, sub, bar] = row.children;
  row.style.transform = `translateY(${at * ROW}px)`;
  row.className = `row ${content.state}`;
  row.dataset.at = at; row.dataset.id = content.id;
  row.tabIndex = at === focused ? 0 : -1;
  row.setAttribute("aria-rowindex", at + 1);
  row.setAttribute("aria-selected", content.id === selected);
  const check = content.check && content.check.total > 0 ? content.check.done / content.check.total : null;
  const part = check ?? (content.size ? content.done / content.size : content.completed ? 1 : 0);
  put(name, content.name);
  put(chip, content.state.replace("_", " "));
  put(rates, `↓ ${rate(content.down_rate)}  ↑ ${rate(content.up_rate)}`);
  put(left, content.eta != null ? duration(content.eta) : `${(part * 100).toFixed(part === 1 ? 0 : 1)} %`);
  put(sub, content.reason && content.state !== "queued" ? content.reason
    : `${bytes(content.done)} of ${bytes(content.size)} · ${content.peers} ${content.peers === 1 ? "peer" : "peers"} · ratio ${content.ratio.toFixed(2)}${content.category ? ` · ${content.category}` : ""}`);
  bar.firstChild.style.transform = `scaleX(${Math.min(1, part)})`;
}

export function select(id) {
  selected = id;
  const content = contents.get(id);
  $("main").classList.toggle("open", !!content);
  $("detail").hidden = !content;
  if (content) showDetail(content, access); else closeDetail();
  draw();
}

$("list").addEventListener("scroll", () => drawRows(), { passive: true });
addEventListener("resize", refresh);
$("list").addEventListener("keydown", (event) => {
  const page = Math.floor($("list").clientHeight / ROW);
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -1e9, End: 1e9 }[event.key];
  if (step) {
    focused = Math.max(0, Math.min(shown.length - 1, focused + step));
    const list = $("list"), top = focused * ROW;
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
    drawRows();
    document.querySelector(`.row[data-at="${focused}"]`)?.focus({ preventScroll: true });
  } else if (event.key === "Enter" || event.key === " ") {
    if (shown[focused]) select(shown[focused].id);
  } else if (event.key === "Delete") {
    if (shown[focused]) remove(shown[focused]);
  } else return;
  event.preventDefault();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && selected != null && !document.querySelector("dialog[open]")) {
    select(null);
    document.querySelector(".row[tabindex='0']")?.focus();
  }
});
for (const state of STATES) $("state").append(el("option", { value: state }, state.replace("_", " ")));
$("search").addEventListener("input", refresh);
$("state").addEventListener("change", refresh);
$("filter").addEventListener("submit", (event) => event.preventDefault());

// ---- all together ----

function drawTotals(down, up) {
  put($("totals"), `↓ ${rate(down)}  ↑ ${rate(up)}`);
  document.title = down + up > 0 ? `↓ ${rate(down)} ↑ ${rate(up)} – Anabranch` : "Anabranch";
  history.push([down, up]);
  if (history.length > SAMPLES_MAX) history.shift();
  const most = Math.max(1, ...history.flat());
  const line = (which) => history.map((sample, at) => `${at ? "L" : "M"}${(160 - (history.length - 1 - at) * 160 / (SAMPLES_MAX - 1)).toFixed(1)} ${(26 - 24 * sample[which] / most).toFixed(1)}`).join("");
  const svg = $("history");
  if (!svg.firstChild) for (const name of ["down", "up"]) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("class", name);
    svg.append(path);
  }
  svg.children[0].setAttribute("d", line(0));
  svg.children[1].setAttribute("d", line(1));
}

async function load() {
  const fresh = new Map();
  let after = 0;
  do {
    const page = await ask("GET", `contents?limit=1000&after=${after}`);
    for (const content of page.contents) fresh.set(content.id, content);
    after = page.next;
  } while (after != null);
  contents.clear();
  for (const [id, content] of fresh) contents.set(id, content);
  if (selected != null && !contents.has(selected)) select(null);
  refresh();
}

// A page that is left may be kept by the browser: it gives its connection back, of which there are few, and takes one when it is shown again.
addEventListener("pagehide", () => { source?.close(); source = null; });
addEventListener("pageshow", (event) => { if (event.persisted && !$("main").hidden) start().catch(complain); });

function listen() {
  source?.close();
  source = new EventSource("/api/v1/events");
  const on = (name, act) => source.addEventListener(name, (event) => act(JSON.parse(event.data)));
  on("reset", () => load().catch(complain));
  on("content", (content) => { contents.set(content.id, content); refresh(); if (content.id === selected) detailTick(content); });
  on("removed", ({ id }) => { contents.delete(id); if (id === selected) select(null); refresh(); });
  on("progress", (told) => {
    for (const numbers of told.contents) {
      const content = contents.get(numbers.id);
      if (content) Object.assign(content, numbers);
    }
    drawTotals(told.down_rate, told.up_rate);
    if (told.contents.length) refresh();
    if (selected != null) detailTick(contents.get(selected));
  });
  on("reachable", ({ id }) => { if (id === selected) detailTick(contents.get(id)); });
  for (const name of ["note", "paths", "path"]) on(name, (data) => { if (data.id === selected) detailEvent(name, data); });
  source.onopen = () => say("");
  source.onerror = () => {
    say("The daemon does not answer; trying again.", true);
    // A browser gives up for good where it was answered with an error.
    if (source?.readyState === EventSource.CLOSED) setTimeout(() => start().catch(complain), 3000);
  };
}

// ---- adding, removing, limits ----

async function addTorrent(file, options = {}) {
  const query = new URLSearchParams(options).toString();
  return ask("POST", `contents?${query}`, file, "application/x-bittorrent");
}

async function addAll(links, files, path, options, how = "share") {
  let last = null, count = 0;
  try {
    for (const link of links) { last = await ask("POST", "contents", { source: link, ...options }); count++; }
    for (const file of files) { last = await addTorrent(file, options); count++; }
    if (path || how === "live") {
      // What is sent stays where it is.
      const { dir, sequential, ...others } = options;
      const wanted = { share: { path, ...options }, ticket: { bulk: { send: path }, ...others }, live: { live: path ? { input: path } : {}, ...others } };
      last = await ask("POST", "contents", wanted[how]);
      count++;
    }
  } catch (error) { complain(error); return; }
  if (count) say(count === 1 ? `Added ${last.name}.` : `Added ${count}.`);
  // Its ticket, or its link, is what was wanted.
  if (path && how === "ticket" || how === "live") { contents.set(last.id, contents.get(last.id) ?? last); openTab("overview"); select(last.id); }
}

const isLink = (text) => /^(magnet:|ppspp:|tswift:|bulk\d-)/i.test(text);
const linksOf = (text) => text.split(/\s+/).filter(isLink);

$("add").addEventListener("click", () => { $("add-form").reset(); $("add-dialog").showModal(); $("add-links").focus(); });
$("add-dialog").addEventListener("close", () => {
  if ($("add-dialog").returnValue !== "ok") return;
  const options = {};
  if ($("add-dir").value) options.dir = $("add-dir").value;
  if ($("add-category").value) options.category = $("add-category").value;
  if ($("add-paused").checked) options.paused = true;
  if ($("add-sequential").checked) options.sequential = true;
  const links = $("add-links").value.split("\n").map((line) => line.trim()).filter(Boolean);
  addAll(links, [...$("add-files").files], $("add-path").value.trim(), options, $("add-how").value);
});
addEventListener("paste", (event) => {
  if (["INPUT", "TEXTAREA"].includes(document.activeElement?.tagName)) return;
  const links = linksOf(event.clipboardData.getData("text"));
  if (links.length) { event.preventDefault(); addAll(links, [], "", {}); }
});
let drags = 0;
addEventListener("dragenter", (event) => { event.preventDefault(); drags++; document.body.classList.add("dropping"); });
addEventListener("dragleave", () => { if (--drags <= 0) { drags = 0; document.body.classList.remove("dropping"); } });
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  drags = 0;
  document.body.classList.remove("dropping");
  addAll(linksOf(event.dataTransfer.getData("text")), [...event.dataTransfer.files].filter((file) => /\.torrent$/i.test(file.name)), "", {});
});

let removing = null;
export function remove(content) {
  removing = content;
  $("remove-name").textContent = content.name;
  $("remove-data").checked = false;
  $("remove-data").closest("label").hidden = content.shared_only || content.kind === "bulk" || content.kind === "live";
  $("remove-dialog").returnValue = "";
  $("remove-dialog").showModal();
}
$("remove-dialog").addEventListener("close", () => {
  if ($("remove-dialog").returnValue !== "ok") return;
  const data = $("remove-data").checked ? "delete" : "keep";
  ask("DELETE", `contents/${removing.id}?data=${data}`)
    .then((done) => say(done.left.length ? `Removed; left: ${done.left.join(", ")}` : "Removed."), complain);
});

let limited = null;
export async function limits(content) {
  limited = content;
  const now = content ?? await ask("GET", "settings");
  const mega = (value) => value == null ? "" : value / 1e6;
  $("limits-title").textContent = content ? `Limits of ${content.name}` : "Limits of all together";
  $("limits-more").hidden = !!content;
  $("limit-down").value = mega(now.limit_down); $("limit-up").value = mega(now.limit_up);
  $("limit-downloads").value = now.downloads_max ?? ""; $("limit-seeds").value = now.seeds_max ?? "";
  $("limit-ratio").value = now.ratio_max ?? "";
  $("limits-dialog").returnValue = "";
  $("limits-dialog").showModal();
}
$("limits").addEventListener("click", () => limits(null).catch(complain));
$("limits-dialog").addEventListener("close", () => {
  if ($("limits-dialog").returnValue !== "ok") return;
  const number = (id, factor = 1) => $(id).value === "" ? null : factor === 1 ? Number($(id).value) : Math.max(1, Math.round(Number($(id).value) * factor));
  const changes = { limit_down: number("limit-down", 1e6), limit_up: number("limit-up", 1e6), ratio_max: number("limit-ratio") };
  if (!limited) Object.assign(changes, { downloads_max: number("limit-downloads"), seeds_max: number("limit-seeds") });
  ask("PATCH", limited ? `contents/${limited.id}` : "settings", changes).then(() => say("Limits are set."), complain);
});

export function play(content, file) {
  const url = `/api/v1/contents/${content.id}/play/${file.index}`;
  const isAudio = /\.(mp3|m4a|m4b|aac|flac|ogg|oga|opus|wav|wma)$/i.test(file.path);
  $("play-title").textContent = file.path;
  $("play-link").href = url;
  $("player").replaceChildren(el(isAudio ? "audio" : "video", { controls: true, autoplay: true, src: url }));
  $("play-dialog").showModal();
}
$("play-close").addEventListener("click", () => $("play-dialog").close());
// An element without a source lets its connection go.
$("play-dialog").addEventListener("close", () => { const media = $("player").firstChild; media?.removeAttribute("src"); media?.load?.(); $("player").replaceChildren(); });

// ---- getting in ----

function logIn() {
  source?.close();
  $("main").hidden = $("skip").hidden = true;
  $("login").hidden = false;
  $("token").focus();
}
async function logInWith(token) {
  const answer = await fetch("/api/v1/login", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ token }) });
  if (answer.status === 401) throw new Error("This is not the token. It is in the file token in the daemon's folder.");
  if (!answer.ok) throw new Error((await answer.json()).detail);
}
$("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  logInWith($("token").value).then(() => { $("token").value = ""; return start(); }).catch(complain);
});
$("logout").addEventListener("click", () => ask("POST", "logout").then(logIn, complain));

async function start() {
  const session = await ask("GET", "session");
  access = session.access;
  $("add").hidden = $("limits").hidden = access !== "full";
  $("login").hidden = true;
  $("main").hidden = $("skip").hidden = false;
  say("");
  drawTotals(session.down_rate, session.up_rate);
  // In this order nothing is missed.
  listen();
  await load();
  const asked = new URLSearchParams(location.search), wanted = Number(asked.get("content"));
  openTab(asked.get("tab"));
  if (wanted && contents.has(wanted)) select(wanted);
}

const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) window.history.replaceState(null, "", location.pathname + location.search);
(token ? logInWith(token).then(start) : start()).catch((error) => { if ($("login").hidden) { complain(error); logIn(); } });
