// Listens to the server and passes on what the viewer asks for.
import { draw, state } from "./draw.js";

const $ = (selector) => document.querySelector(selector);
const history = [];
let view = null, heard = 0;

// The token came behind the #, which is sent to nobody; it stays in this tab.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) { sessionStorage.setItem("token", given); window.history.replaceState(null, "", location.pathname); }
const token = sessionStorage.getItem("token");

function say(text, bad) { $("#state").textContent = text; $("#state").className = bad ? "bad" : ""; }

function show(next) {
  view = next;
  heard = Date.now();
  if (view.about.actions && token) { state.act = change; state.look = look; }
  say(view.trouble ? `hears nothing: ${view.trouble}` : `live, ${new Date(view.t * 1000).toTimeString().slice(0, 8)}`, Boolean(view.trouble));
  draw(view, history);
}

const events = new EventSource("events");
events.addEventListener("first", (event) => {
  const first = JSON.parse(event.data);
  history.splice(0, history.length, ...first.history);
  show(first);
});
events.onmessage = (event) => {
  const next = JSON.parse(event.data);
  const drawn = next.queues.filter((q) => q.rate || q.depth).slice(0, 12);
  history.push({ t: next.t, rate: next.totals.rate, depth: next.totals.depth, windows: Object.fromEntries(drawn.map((q) => [q.name, q.window])) });
  if (history.length > 300) history.shift();
  show(next);
};
events.onerror = () => say("the page's server does not answer; trying again", true);

// A server that hangs ends no connection: say that what is shown is old.
setInterval(() => { if (heard && Date.now() - heard > 8000) say(`nothing new for ${Math.round((Date.now() - heard) / 1000)} s: what is shown is old`, true); }, 1000);

$("#filter").oninput = (event) => { state.filter = event.target.value; if (view) draw(view, history); };
$("#all").onclick = () => { state.all = !state.all; if (view) draw(view, history); };
addEventListener("resize", () => view && draw(view, history));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view && draw(view, history));

// --- actions ---

async function ask(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", Authorization: "Bearer " + token }, body: JSON.stringify(body) });
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error);
  return told;
}

async function change(action, queue) {
  let value = null;
  if (action === "quantum" || action === "rate") {
    const dialog = $("#change");
    dialog.querySelector("h3").textContent = `${action} of ${queue.name}`;
    dialog.querySelector("label span").textContent = action === "rate" ? "messages a second, in each process (empty: no limit)" : "quantum";
    const input = dialog.querySelector("input");
    input.value = action === "quantum" ? queue.quantum : queue.limit === null ? "" : queue.limit / queue.processes;
    dialog.returnValue = "";
    dialog.showModal();
    await new Promise((done) => dialog.addEventListener("close", done, { once: true }));
    if (dialog.returnValue !== "ok") return;
    value = input.value.trim() === "" ? null : Number(input.value);
  }
  try { await ask("api/change", { action, queue: queue.name, value }); say(`${action} was sent for ${queue.name}`); }
  catch (error) { say(`${action} was refused: ${error.message}`, true); }
}

async function look(queue) {
  const place = $("#parked"), said = place.querySelector("span");
  place.hidden = false;
  place.dataset.queue = queue;
  place.querySelector("h3").textContent = `Parked messages of ${queue}`;
  said.textContent = "looking ...";
  const body = place.querySelector("tbody");
  try {
    const told = await ask("api/parked", { queue });
    said.textContent = `${told.messages.length} of ${told.parked}`;
    body.replaceChildren(...told.messages.map((each) => {
      const row = document.createElement("tr");
      const box = document.createElement("input");
      box.type = "checkbox"; box.value = each.key; box.setAttribute("aria-label", "select");
      for (const [name, inside] of [["", box], ["text", each.error], ["", each.tries], ["text", each.published_to]]) {
        const cell = row.insertCell(); cell.className = name;
        cell.append(inside instanceof Node ? inside : document.createTextNode(inside ?? ""));
      }
      const text = document.createElement("pre"); text.textContent = each.body;
      row.insertCell().append(text);
      return row;
    }));
  } catch (error) { said.textContent = error.message; body.replaceChildren(); }
}

$("#parked").onclick = async (event) => {
  const what = event.target.dataset.do, place = $("#parked"), said = place.querySelector("span");
  if (!what) return;
  if (what === "close") { place.hidden = true; return; }
  const keys = [...place.querySelectorAll("input:checked")].map((box) => box.value);
  if (!keys.length) { said.textContent = "select some first"; return; }
  if (what === "purge" && !confirm(`Drop ${keys.length} messages for good?`)) return;
  try {
    const told = await ask("api/" + what, { queue: place.dataset.queue, keys });
    await look(place.dataset.queue);
    said.textContent = `${told.messages} ${what === "retry" ? "sent back" : "dropped"}`;
  } catch (error) { said.textContent = error.message; }
};
