// Draws a view. Everything that came from outside is put in as text, never as markup.

const COLOURS = ["#2563eb", "#d97706", "#0d9488", "#c026d3", "#65a30d", "#dc2626", "#0891b2", "#7c3aed"];
const SHOWN = 100;
const $ = (selector) => document.querySelector(selector);

export const state = { filter: "", all: false, act: null, look: null };

// --- numbers ---

export function count(n) {
  if (n === null || n === undefined) return "?";
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (n >= 10 * size) return (n / size).toFixed(n >= 100 * size ? 0 : 1) + unit;
  return String(Math.round(n));
}
export const rate = (n) => (n >= 100 ? count(n) : n ? n.toFixed(1) : "0");
export const percent = (n) => (100 * n).toFixed(n < 0.0995 ? 1 : 0) + " %";
export function time(s) {
  if (s === null || s === undefined) return "";
  if (s < 1) return Math.max(1, Math.round(s * 1000)) + " ms";
  if (s < 100) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  return Math.round(s / 3600) + " h";
}
const clock = (t) => new Date(t * 1000).toTimeString().slice(0, 8);
// What tells names apart is mostly at their ends: the middle is left out.
export const cut = (name, most) => (name.length <= most ? name : name.slice(0, Math.ceil(most / 2) - 1) + "…" + name.slice(name.length - Math.floor(most / 2)));
const within = (s) => (s === null || s === undefined ? "" : "≤ " + time(s));

// --- elements ---

function make(tag, name, text) {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
}
function put(cell, text, name) {
  const shown = text === null || text === undefined ? "" : String(text);
  if (cell.firstChild === null || cell.firstChild.nodeType !== 3 || cell.childNodes.length !== 1) cell.textContent = shown;
  else if (cell.firstChild.data !== shown) cell.firstChild.data = shown;
  if (name !== undefined && cell.className !== name) cell.className = name;
}

// The rows of a long table that can be seen, and some around: the others are drawn when they are scrolled to.
function inView(body) {
  const place = body.getBoundingClientRect(), height = place.height / body.rows.length || 1;
  return [-place.top / height - 20, (innerHeight - place.top) / height + 20];
}

// A table whose rows and cells are used again: a redraw touches only what has changed.
function table(where, columns, rows, empty) {
  const head = $(where + " thead"), body = $(where + " tbody");
  if (!head.firstChild) {
    const row = make("tr");
    for (const [title, , name] of columns) row.append(make("th", name || "", title));
    head.append(row);
  }
  head.hidden = !rows.length;
  if (!rows.length) { body.replaceChildren(); const row = make("tr"), cell = make("td", "text empty", empty); cell.colSpan = columns.length; row.append(cell); body.append(row); body.dataset.empty = "1"; return; }
  if (body.dataset.empty) { body.replaceChildren(); delete body.dataset.empty; }
  while (body.rows.length > rows.length) body.deleteRow(-1);
  const [first, last] = rows.length > SHOWN && body.rows.length ? inView(body) : [0, rows.length];
  const there = body.rows.length, all = [...body.rows];
  rows.forEach((each, at) => {
    if (at < there && (at < first || at > last)) return;
    let row = all[at];
    if (!row) { row = body.insertRow(); for (const [title] of columns) row.insertCell().dataset.label = title; }
    if (row.className !== (each.rowClass || "")) row.className = each.rowClass || "";
    columns.forEach(([, read, name], place) => {
      const cell = row.cells[place], value = read(each, cell);
      if (value instanceof Node) { if (cell.firstChild !== value) cell.replaceChildren(value); if (name) cell.className = name; }
      else if (value !== undefined) put(cell, value, typeof name === "function" ? name(each) : name || "");
    });
  });
}

// --- panels ---

function totals(view) {
  const t = view.totals;
  const tiles = [
    ["messages a second", rate(t.rate)], ["waiting", count(t.depth)], ["in work", count(t.in_work)],
    ["queues", t.queues], ["processes", t.processes, t.processes === 0], ["gone", t.gone, t.gone > 0],
    ["failed in 10 s", t.failing, t.failing > 0], ["parked since start", count(t.parked), t.parked > 0],
  ];
  const place = $("#totals");
  tiles.forEach(([name, value, bad], at) => {
    let tile = place.children[at];
    if (!tile) { tile = make("div"); tile.append(make("b"), make("span")); place.append(tile); }
    put(tile.firstChild, value); put(tile.lastChild, name);
    tile.className = bad ? "bad" : "";
  });
}

function attention(view) {
  const items = view.attention.slice(0, 12).map((each) => {
    const item = make("li", "level" + each.level);
    item.append(make("span", "kind", each.kind));
    const noun = ["queue", "process", "budget", "tenant"].find((known) => each[known]);
    if (noun) item.append(make("span", "noun", noun), make("span", "what", each[noun]));
    item.append(make("span", "", each.text));
    return item;
  });
  if (view.attention.length > 12) items.push(make("li", "", `and ${view.attention.length - 12} more, in the tables below`));
  if (!items.length) items.push(make("li", "fine", "Nothing: every queue is consumed, none fails, none is limited."));
  $("#attention ul").replaceChildren(...items);
}

function shares(view) {
  const busy = view.queues.filter((q) => q.target > 0).sort((a, b) => a.group - b.group || b.target - a.target || (a.name < b.name ? -1 : 1));
  const most = Math.max(0.01, ...busy.map((q) => Math.max(q.share, q.target)));
  const several = new Set(busy.map((q) => q.group)).size > 1;
  let group = null;
  const rows = busy.slice(0, 40).flatMap((q) => {
    const bar = make("div", "bar"), label = make("div", "label", cut(q.name, 28)), head = several && q.group !== group;
    bar.append(make("i"), make("u"));
    bar.firstChild.style.width = (100 * q.share / most) + "%";
    bar.lastChild.style.left = `min(${100 * q.target / most}%, 100% - 2px)`;
    label.title = q.name;
    group = q.group;
    const cells = [label, bar, make("div", "number", `${percent(q.share)} of ${percent(q.target)}`)];
    return head ? [make("div", "group", "in " + cut(view.groups[q.group].join(", "), 60)), ...cells] : cells;
  });
  $("#shares .bars").replaceChildren(...rows);
  const here = view.processes.filter((p) => p.state === "here");
  const worst = here.reduce((a, b) => (!a || b.spread / b.bound > a.spread / a.bound ? b : a), null);
  const broken = here.filter((p) => p.spread > p.bound);
  const note = $("#spread");
  note.className = busy.length && broken.length ? "note bad" : "note";
  put(note, !worst ? "No process is here." : busy.length ? `The mark is the target. A bar below it is no fault where a queue is throttled or in another tier. Spread between queues: at worst ${percent(worst.spread / worst.bound)} of its bound (${worst.name}).` + [...new Set(broken.flatMap((p) => Object.entries(p.unfair).map(([q, why]) => ` Broken by ${q}: ${why}.`)))].join("") : "No queue has work.");
}

function buttons(q, cell) {
  if (!state.act) return "";
  if (cell.dataset.queue === q.name && cell.dataset.why === q.why) return undefined;
  cell.dataset.queue = q.name; cell.dataset.why = q.why;
  const pause = q.why === "paused" ? "resume" : "pause";
  cell.className = "actions";
  cell.replaceChildren(...[pause, "quantum", "rate"].map((action) => {
    const button = make("button", "", action); button.type = "button";
    button.onclick = () => state.act(action, last.queues.find((each) => each.name === q.name) || q);
    return button;
  }));
  return undefined;
}

// On a phone a name has a line to itself.
const named = (q, cell) => { cell.title = q.name; return innerWidth <= 600 ? q.name : cut(q.name, innerWidth < 1580 ? 20 : 34); };

let order = new Map();

function queues(view) {
  const wanted = state.filter.toLowerCase();
  let found = wanted ? view.queues.filter((q) => q.name.toLowerCase().includes(wanted)) : view.queues;
  // While somebody points at a row it stays where it is: a button must not move away from under the pointer.
  if (!$("#queues tbody").matches(":hover, :focus-within")) order = new Map(view.queues.map((q, at) => [q.name, at]));
  else found = [...found].sort((a, b) => (order.get(a.name) ?? Infinity) - (order.get(b.name) ?? Infinity) || 0);
  const shown = state.all ? found : found.slice(0, SHOWN);
  const columns = [
    ["queue", named, "name"],
    ["", (q) => q.trouble, (q) => "word trouble level" + q.level],
    ["waiting", (q) => count(q.depth)], ["oldest", (q) => time(q.oldest), "low"], ["a second", (q) => rate(q.rate)],
    ["in work", (q) => q.in_work, "low least"], ["longest", (q) => time(q.running), (q) => (q.trouble === "stuck" ? "level3" : "")],
    ["wait 99\u00a0%", (q) => within(q.wait_99), "low"], ["handler 50\u00a0%", (q) => within(q.took_50), "low least"], ["handler 99\u00a0%", (q) => within(q.took_99), "low"],
    ["window", (q) => q.window, "low least"], ["quantum", (q) => q.quantum, "low"], ["failed", (q) => count(q.failed), "low least"], ["parked", (q) => count(q.parked), "low least"],
    ["processes", (q) => q.processes, "low least"], ["", buttons],
  ];
  table("#queues", columns, shown, view.queues.length ? "No queue has that in its name." : "No process has reported yet.");
  const more = $("#all");
  more.hidden = found.length <= SHOWN;
  put(more, state.all ? `Show ${SHOWN}` : `Show all ${found.length}`);
}

function rates(view) {
  const limited = view.queues.filter((q) => q.limit !== null || q.why === "paused" || q.why === "waiting");
  table("#rates", [
    ["queue", named, "name"], ["limit a second", (q) => (q.limit === null ? "none" : rate(q.limit))], ["now", (q) => rate(q.rate)],
    ["tokens in all", (q) => (q.tokens === null ? "" : q.tokens.toFixed(1)), "low"],
    ["", (q) => (q.why === "throttled" ? `throttled, goes on in ${time(q.resumes || 0)}` : q.why), (q) => "text level" + (q.why ? 1 : 0)],
    ["waiting", (q) => count(q.depth)],
  ], limited, "No queue has a rate, and none is paused.");
}

function budgets(view) {
  table("#budgets", [
    ["budget", (b, cell) => { cell.title = "used by " + b.users.join(", "); return b.name; }, "name"],
    ["in use", meter, "meters"], ["", (b) => (b.used_up ? "at its limit" : ""), (b) => "word level" + (b.used_up ? 1 : 0)],
    ["burst", (b) => (b.burst === null ? "" : count(b.burst)), "low"], ["in hand", (b) => b.in_hand, "low"],
    ["expired a second", (b) => rate(b.void), "low"],
    ["waiting", (b) => count(b.depth)], ["users", (b) => b.users.length, "low"],
  ], view.budgets, "No process uses a budget.");
}
function meter(b, cell) {
  const held = b.at_once !== null, of = held ? b.at_once : b.rate, used = held ? b.at_work : b.used;
  let bar = cell.firstChild;
  if (!bar || !bar.classList?.contains("meter")) { bar = make("div", "meter"); bar.append(make("i"), make("span")); cell.replaceChildren(bar); }
  bar.firstChild.style.width = Math.min(100, of ? (100 * used) / of : 0) + "%";
  put(bar.lastChild, held ? `${used} of ${count(of)} at once` : `${rate(used)} of ${rate(of)} a second`);
  bar.classList.toggle("full", b.used_up);
  return undefined;
}

function changes(view) {
  $(".changes").replaceChildren(...view.changes.slice(0, 20).map((each) => {
    const item = make("li");
    item.append(make("span", "", clock(each.t) + " "), make("b", "", each.queue), make("span", "", ` ${each.from} to ${each.to}: ${each.reason}`));
    return item;
  }));
}

function failures(view) {
  const columns = [
    ["queue", (e) => e.queue, "name"], ["error", (e) => e.error, "text long"], ["times", (e) => e.times], ["last", (e) => clock(e.at)],
    ["message", (e) => e.message_id || "", "text low"], ["tries", (e) => e.tries, "low"], ["process", (e) => e.process, "text low"],
    ["", (e, cell) => {
      if (!state.look) return "";
      if (cell.dataset.queue === e.queue) return undefined;
      cell.dataset.queue = e.queue;
      const button = make("button", "", "parked ..."); button.type = "button"; button.onclick = () => state.look(e.queue);
      cell.replaceChildren(button);
      return undefined;
    }],
  ];
  table("#failures > .scroll", columns, view.errors, "No handler has failed.");
}

function tenants(view) {
  const noisy = new Set(view.attention.filter((each) => each.tenant).map((each) => each.tenant + " " + each.lane));
  table("#tenants", [
    ["tenant", (t, cell) => { cell.title = `of ${t.of}`; return t.tenant || "(none)"; }, "name"],
    ["", (t) => (noisy.has((t.tenant || "(none)") + " " + t.lane) ? "noisy" : ""), "word trouble level1"],
    ["time", (t) => percent(t.time)], ["messages", (t) => percent(t.messages)], ["lane", (t) => t.lane, "text"],
  ], view.tenants || [], "No consumer of tenants has reported.");
}

function spark(view) {
  table("#spark", [
    ["query", (q) => q.name, "name"], ["batch", (q) => q.batch], ["rows", (q) => count(sum(q.queues, "rows"))],
    ["waiting", (q) => count(sum(q.ready))], ["", (q) => (q.throttled ? "throttled" : ""), "word level1"],
    ["shares", (q) => Object.entries(q.queues || {}).slice(0, 6).map(([name, e]) => `${name} ${percent(e.share)}`).join(", "), "text"],
    ["heard", (q) => time(q.silent) + " ago"],
  ], view.spark, "No Spark query has reported.");
}
const sum = (given, key) => Object.values(given || {}).reduce((a, b) => a + (key ? b[key] : b), 0);

function processes(view) {
  table("#processes", [
    ["process", (p, cell) => { cell.title = `${p.host} ${p.pid}, broker ${p.broker}, leash ${p.leash}`; return p.name; }, "name"],
    ["", (p) => (p.state === "here" ? (p.connected ? "here" : "not connected") : p.state === "left" ? "left in good order" : `gone, silent for ${time(p.silent)}`), (p) => "word state" + (p.state === "here" && p.connected ? "" : " level3")],
    ["up", (p) => time(p.seconds)], ["queues", (p) => p.queues], ["workers", (p) => p.workers, "low"],
    ["round trip", (p) => time(p.round_trip), "low"], ["reconnects", (p) => p.reconnects, "low"],
    ["spread, of its bound", (p) => percent(p.spread / p.bound), (p) => (p.spread > p.bound ? "level3" : "")],
  ], view.processes.map((p) => ({ ...p, rowClass: p.state === "gone" ? "gone" : "" })), "No process has reported yet.");
}

// --- lines ---

const charts = {};
const styles = () => getComputedStyle(document.documentElement);

function chart(where, key, series, data) {
  const place = $(where + " .chart");
  const ink = styles().getPropertyValue("--soft").trim(), line = styles().getPropertyValue("--line").trim();
  const width = place.clientWidth || 300;
  const known = charts[where];
  if (known && known.key === key + ink && known.width === width) { known.plot.setData(data); return; }
  if (known) known.plot.destroy();
  const axis = { stroke: ink, size: 48, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, values: (_, all) => all.map(count) };
  const times = { ...axis, size: 34, space: 80, values: (_, all) => all.map(clock) };
  const plot = new uPlot({
    width, height: 190, series: [{}, ...series.map((each) => ({ points: { show: false }, ...each }))], axes: [times, ...series.some((s) => s.scale === "b") ? [{ ...axis, scale: "a" }, { ...axis, scale: "b", side: 1, grid: { show: false } }] : [{ ...axis }]],
    legend: { live: false }, cursor: { show: false },
    scales: Object.fromEntries(["a", "b", "y"].map((s) => [s, { range: (_, low, high) => [0, Math.max(1, high || 0) * 1.05] }])),
  }, data, place);
  charts[where] = { plot, key: key + ink, width };
}

export function lines(history) {
  const times = history.map((h) => h.t);
  chart("#flow", "flow", [
    { label: "messages a second", stroke: COLOURS[0], width: 2, scale: "a" },
    { label: "waiting (right)", stroke: COLOURS[1], width: 2, scale: "b" },
  ], [times, history.map((h) => h.rate), history.map((h) => h.depth)]);
  const last = history[history.length - 1];
  const names = Object.keys((last && last.windows) || {}).slice(0, COLOURS.length);
  chart("#windows", JSON.stringify(names), names.map((name, at) => ({ label: cut(name, 28), stroke: COLOURS[at], width: 1.5, paths: uPlot.paths.stepped({ align: 1 }) })),
    [times, ...names.map((name) => history.map((h) => h.windows[name] ?? null))]);
}

let last = null, scrolling = false;
addEventListener("scroll", () => {
  if (!last || scrolling || !state.all) return;
  scrolling = true;
  requestAnimationFrame(() => { scrolling = false; queues(last); });
});

export function draw(view, history) {
  last = view;
  const began = performance.now();
  const worst = view.attention.filter((each) => each.level > 1).length;
  document.title = worst ? `(${worst}) Leash` : "Leash";
  put($("#about"), [view.about.vhost, view.about.broker].filter(Boolean).join(" at "));
  totals(view); attention(view); shares(view); queues(view); rates(view); budgets(view); changes(view); failures(view); tenants(view); spark(view); processes(view);
  lines(history);
  document.documentElement.dataset.drawn = String(1 + Number(document.documentElement.dataset.drawn || 0));
  document.documentElement.dataset.ms = (performance.now() - began).toFixed(1);
}
