// The map of the networks that a transfer's paths cross: what each link carries now, and where the paths run.
import { bytes, rate } from "/page.js";

const WIDTH = 900, MARGIN = 62, ROW = 78;
const STEPS = [0.25, 0.5, 0.7, 0.85];
let drawn = null;

function node(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const shortName = (name) => name.replace(/^(\d+)-ff00:0:/, "$1-");
const as = (interfaceName) => interfaceName.split("#")[0];

// Stations of a path, in order: ASes over SCION; over plain IP the two ends, for nothing else is known of the way.
function stations(path) {
  return path.network === "scion" && path.ases.length ? path.ases : [path.local, path.remote];
}
function legs(path) {
  if (path.network === "scion") return path.links.map((link) => ({ key: [link.from, link.to].sort().join(" "), from: as(link.from), to: as(link.to), ends: [link.from, link.to], bandwidth: link.bandwidth, latency: link.latency_ms }));
  return [{ key: [path.local, path.remote].sort().join(" "), from: path.local, to: path.remote, ends: [path.local, path.remote], bandwidth: null, latency: null }];
}

// How many links each station is from those of `starts`.
function distances(starts, beside) {
  const far = new Map(starts.map((name) => [name, 0]));
  const queue = [...starts];
  for (const name of queue) for (const other of beside.get(name) ?? []) if (!far.has(other)) { far.set(other, far.get(name) + 1); queue.push(other); }
  return far;
}

// Where the stations stand: in columns from this host to its peers, each by the end that is nearer, in an order in which lines cross little.
function places(paths) {
  const beside = new Map();
  const join = (a, b) => { if (!beside.has(a)) beside.set(a, new Set()); beside.get(a).add(b); };
  for (const path of paths) for (const leg of legs(path)) { join(leg.from, leg.to); join(leg.to, leg.from); }
  const ends = (at) => [...new Set(paths.map((path) => stations(path).at(at)))];
  const [near, far] = [distances(ends(0), beside), distances(ends(-1), beside)];
  const all = [...beside.keys()].sort();
  const side = (name) => Math.sign((near.get(name) ?? 0) - (far.get(name) ?? 0));
  const deepest = (which, of) => Math.max(0, ...all.filter((name) => side(name) === which).map((name) => of.get(name)));
  const middle = all.some((name) => side(name) === 0) ? 1 : 0;
  const last = deepest(-1, near) + middle + deepest(1, far) + 1;
  const column = (name) => side(name) < 0 ? near.get(name) : side(name) > 0 ? last - far.get(name) : deepest(-1, near) + 1;
  const columns = new Map();
  for (const name of all) columns.set(column(name), [...(columns.get(column(name)) ?? []), name]);
  const y = new Map();
  const settle = (names) => names.forEach((name, at) => y.set(name, at - (names.length - 1) / 2));
  for (const names of columns.values()) settle(names);
  // Neighbours change places as long as that makes the links less steep.
  const slope = () => all.reduce((sum, name) => sum + [...beside.get(name)].reduce((part, other) => part + Math.abs(y.get(name) - y.get(other)) ** 1.5, 0), 0);
  let best = slope();
  for (let round = 0, better = true; better && round < 12; round++) {
    better = false;
    for (const names of columns.values()) for (let at = 1; at < names.length; at++) for (let other = 0; other < at; other++) {
      const swap = () => { [names[at], names[other]] = [names[other], names[at]]; settle(names); };
      swap();
      const now = slope();
      if (now < best - 1e-9) { best = now; better = true; } else swap();
    }
  }
  const height = Math.max(2, ...[...columns.values()].map((names) => names.length)) * ROW + 24;
  const place = new Map();
  for (const [at, names] of columns) for (const name of names) {
    place.set(name, { x: MARGIN + (WIDTH - 2 * MARGIN) * at / Math.max(1, last), y: height / 2 + y.get(name) * ROW });
  }
  return { place, height };
}

export function drawMap(told) {
  const candidates = told.choices.flatMap((choice) => choice.candidates);
  const all = [...told.paths, ...candidates.filter((candidate) => candidate.choice !== "left"), ...candidates.slice(0, 60)];
  const { place, height } = places(all);
  const links = new Map();
  for (const path of all) for (const leg of legs(path)) if (!links.has(leg.key)) links.set(leg.key, { ...leg, down: 0, up: 0, used: false, broken: false, keys: new Set() });
  for (const path of all) for (const leg of legs(path)) links.get(leg.key).keys.add(path.path);
  for (const path of told.paths) for (const leg of legs(path)) {
    const link = links.get(leg.key);
    link.down += path.down_rate; link.up += path.up_rate;
    link.used = link.used || path.state === "active" || path.down_rate + path.up_rate > 0;
    link.broken = link.broken || path.state === "down";
  }
  const most = Math.max(1, ...[...links.values()].map((link) => Math.max(link.down, link.up)));
  const words = `Map: ${place.size} networks, ${links.size} links; ${told.paths.filter((path) => path.state === "active").length} paths are active`;
  const svg = node("svg", { class: "map", viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": words });
  const labels = [], between = new Map();
  for (const link of links.values()) {
    const [a, b] = [place.get(link.from), place.get(link.to)];
    if (!a || !b) continue;
    const pair = [link.from, link.to].sort().join(" "), nth = between.get(pair) ?? 0;
    between.set(pair, nth + 1);
    const off = nth ? (nth % 2 ? 1 : -1) * Math.ceil(nth / 2) * 20 : 0, length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    const [ox, oy] = [-(b.y - a.y) / length * off, (b.x - a.x) / length * off];
    // Paths are drawn in their own direction, and what is received runs against it.
    const receives = link.down >= link.up, [s, e] = receives ? [b, a] : [a, b];
    // Within a column, around those that stand between.
    const bend = Math.abs(a.x - b.x) < 1 && Math.abs(a.y - b.y) > 1.5 * ROW ? 64 : 0, [mx, my] = [(a.x + b.x) / 2 + ox + bend, (a.y + b.y) / 2 + oy];
    const d = `M${(s.x + ox).toFixed(1)} ${(s.y + oy).toFixed(1)}Q${mx.toFixed(1)} ${my.toFixed(1)} ${(e.x + ox).toFixed(1)} ${(e.y + oy).toFixed(1)}`;
    const carried = Math.max(link.down, link.up);
    const share = link.bandwidth ? carried / link.bandwidth : null;
    const step = share == null ? (carried > 0 ? 2 : 0) : carried > 0 && share >= 0.01 ? 1 + STEPS.filter((top) => share > top).length : 0;
    const width = 3 + 6 * (link.bandwidth ? Math.min(1, Math.sqrt(link.bandwidth / 12.5e6)) : carried / most);
    const wire = node("path", { class: `wire ${step ? `l${step}` : ""} ${link.used ? "" : "unused"} ${link.broken ? "broken" : ""}`, "stroke-width": width.toFixed(1), d, "data-paths": [...link.keys].join(" ") });
    wire.append(node("title", {}, `${link.ends.join(" – ")}\n${rate(link.down)} to us, ${rate(link.up)} from us${link.bandwidth ? `, of ${rate(link.bandwidth)} claimed` : ""}${link.latency != null ? `, ${link.latency.toFixed(1)} ms` : ""}`));
    svg.append(wire);
    if (carried > 0) svg.append(node("path", { class: "flow", d }));
    if (carried > 0 || link.broken) labels.push(node("text", { class: "load", x: (mx - bend / 2).toFixed(1), y: (my + 4).toFixed(1) },
      link.broken ? "down" : share != null ? `${bytes(carried)}/s · ${(share * 100).toFixed(0)} %` : rate(carried)));
  }
  svg.append(...labels);
  const ends = new Set(all.flatMap((path) => { const names = stations(path); return [names[0], names.at(-1)]; }));
  for (const [name, { x, y }] of place) {
    const short = shortName(name), half = Math.max(30, short.length * 4 + 10);
    svg.append(node("g", { class: ends.has(name) ? "node end" : "node" }, node("title", {}, name),
      node("rect", { x: x - half, y: y - 16, width: 2 * half, height: 32, rx: 9 }), node("text", { x, y: y + 4 }, short)));
  }
  drawn = svg;
  return svg;
}

// Shows where one path runs.
export function lightUp(path) {
  drawn?.querySelectorAll(".wire").forEach((wire) => wire.classList.toggle("lit", !!path && wire.dataset.paths.split(" ").includes(path.path)));
}
