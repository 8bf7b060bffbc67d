"use strict";
// Shows /v1/overview every two seconds, but not while the page is hidden. Everything from the store is set as text.

const EVERY = 2000;
const REST = 1000; // as long, the service shows what it has read
const NUMBERS = new Set(["tasks", "ready", "claimed", "future", "behind a key", "most claims"]);
const byId = (id) => document.getElementById(id);
const token = { get: () => sessionStorage.getItem("token"), set: (text) => sessionStorage.setItem("token", text) };
const queues = new Map();
let last = null, timer = 0, asking = false;

function made(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

function request(path, options = {}) {
  const headers = { ...options.headers };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  return fetch(path, { ...options, headers, cache: "no-store" });
}

async function look() {
  clearTimeout(timer);
  if (document.hidden || asking) return;
  asking = true;
  try {
    const answer = await request("v1/overview");
    byId("who").hidden = answer.status !== 401;
    if (answer.status === 401) return say(token.get() ? "This token isn't known." : "This service needs a token.", "bad");
    const found = await answer.json();
    if (!answer.ok) return say(found.detail, "bad");
    const focus = document.activeElement.dataset.of;
    for (const name of ["queues", "tasks", "schedules", "workers", "actions"]) show(name, found[name]);
    if (focus) [...document.querySelectorAll("button")].find((one) => one.dataset.of === focus)?.focus();
    last = new Date();
    say(`as of ${last.toLocaleTimeString()}`, "dim");
    await lookAtTasks();
  } catch (error) {
    say(`The service can't be reached${last ? `; this is as of ${last.toLocaleTimeString()}` : ""}.`, "bad");
  } finally {
    asking = false;
    timer = setTimeout(look, EVERY);
  }
}

function say(text, kind) {
  byId("about").textContent = text;
  byId("about").className = kind;
  byId("about").role = kind === "bad" ? "alert" : null; // the time of each look isn't read out
}

function show(name, part) {
  const section = byId(name), body = section.querySelector(".body");
  section.hidden = part === undefined;
  if (part === undefined) return;
  if (part.trouble !== undefined) return body.replaceChildren(made("p", part.trouble, "bad"));
  if (!part.rows.length) return body.replaceChildren(made("p", "none", "dim"));
  if (name === "queues") return showQueues(body, part.rows);
  const kind = (column) => (NUMBERS.has(column) ? "n" : "");
  if (!body.querySelector("table")) body.replaceChildren(table(part.columns, kind)); // it stays, and its scroll bar
  body.querySelector("tbody").replaceChildren(...lines(part, kind, name === "tasks"));
}

function table(columns, kind) {
  const wide = made("div", undefined, "wide"), whole = made("table"), top = made("thead"), head = made("tr");
  head.append(...columns.map((column) => made("th", column, kind(column))));
  top.append(head);
  whole.append(top, made("tbody"));
  wide.append(whole);
  return wide;
}

function lines({ columns, rows }, kind, ofTasks) {
  return rows.map((row) => {
    const line = made("tr");
    line.append(...row.cells.map((cell, place) => made("td", cell, kind(columns[place]))));
    const buttons = ofTasks ? [buttonOfTasks(row)] : row.may_change ? buttonsOfSchedule(row) : [];
    if (buttons.length) {
      const last = made("td", undefined, "actions");
      last.append(...buttons);
      line.append(last);
    }
    return line;
  });
}

// What a reader has opened stays open, so the elements of queues are kept.
function showQueues(body, rows) {
  const keys = new Set(rows.map((row) => row.key));
  for (const key of queues.keys()) if (!keys.has(key)) queues.delete(key);
  const elements = rows.map((row) => {
    if (!queues.has(row.key)) {
      queues.set(row.key, made("details", undefined, row.key.includes(":") ? "queue key" : "queue"));
      queues.get(row.key).open = location.hash === `#${encodeURIComponent(row.key)}`;
    }
    fill(queues.get(row.key), row);
    return queues.get(row.key);
  });
  if (elements.some((element, place) => body.children[place] !== element) || body.children.length !== elements.length)
    body.replaceChildren(...elements);
}

function fill(element, row) {
  const [name, state, reached, possible, waiting] = row.cells;
  if (!element.firstChild) element.append(made("summary"), made("div", undefined, "open"));
  const [summary, open] = element.children;
  summary.replaceChildren(made("b", name), made("span", state, row.held ? "bad" : ""),
    made("span", reached ? `${reached} of ${possible}` : ""), made("span", `${waiting} waiting`, "dim"));
  const facts = list(row.facts);
  const parts = [];
  if (row.points.length > 1) {
    const refused = row.points.some((point) => point[3] !== null) ? "; red: refused by the server" : "";
    parts.push(chart(row.points), made("p", `starts a second; dashed: possible${refused}`, "dim"));
  }
  if (row.gaps) parts.push(histogram(row.gaps), made("p", "gaps from 0 to 2 intervals and more, logarithmic; red line: " +
    (row.gaps.promise === null ? "none is promised" : `promised, ${row.gaps.promise.toPrecision(2)}`), "dim"));
  open.replaceChildren(...parts, facts, ...(row.may_change ? buttonsOfQueue(row) : []));
}

function list(facts) {
  const whole = made("dl");
  whole.append(...facts.flatMap(([what, value]) => [made("dt", what), made("dd", value)]));
  return whole;
}

function svg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function drawing(label) {
  return svg("svg", { class: "chart", viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label });
}

function histogram({ counts, promise }) {
  const whole = drawing("how many gaps between starts there are, by their length"), width = 100 / counts.length;
  const highest = Math.log1p(Math.max(...counts));
  counts.forEach((count, place) => {
    const height = count && Math.max(3, (95 * Math.log1p(count)) / highest);
    whole.append(svg("rect", { x: place * width, y: 100 - height, width: 0.85 * width, height }));
  });
  // The bar of a gap begins half a step before it.
  const at = promise === null ? null : width * ((counts.length - 1) / 2 * promise + 0.5);
  if (at !== null) whole.append(svg("path", { class: "promise", d: `M${at} 0V100` }));
  return whole;
}

function chart(points) {
  const whole = drawing(`starts a second: ${points.at(-1)[1].toFixed(2)} in the last look`);
  const from = points[0][0], span = points.at(-1)[0] - from || 1;
  const highest = Math.max(...points.flatMap((point) => [point[1], point[2] ?? 0, point[3] ?? 0])) * 1.1 || 1;
  [["possible", 2], ["refused", 3], ["reached", 1]].forEach(([kind, place]) => {
    let drawn = false;
    const steps = points.map((point) => {
      if (point[place] === null) return (drawn = false), "";
      const at = `${(100 * (point[0] - from)) / span} ${100 - (100 * point[place]) / highest}`;
      const step = `${drawn ? "L" : "M"}${at}`;
      drawn = true;
      return step;
    });
    whole.append(svg("path", { class: kind, d: steps.join("") }));
  });
  return whole;
}

function buttonsOfQueue(row) {
  const [name, ...rest] = row.key.split(":"), key = rest.length ? { key: rest.join(":") } : {};
  const path = `v1/queues/${encodeURIComponent(name)}`;
  const pause = button(row, row.held ? "Resume" : "Pause", `${path}/${row.held ? "resume" : "hold"}`, key);
  return rest.length ? [pause, buttonOfWeight(row, path, key)] : [pause];
}

function buttonOfWeight(row, path, key) {
  const one = made("button", "Weight");
  one.dataset.of = `Weight ${row.key}`;
  one.addEventListener("click", async () => {
    const given = prompt(`Starts of ${row.cells[0]} in its turn, for all processes, from 1 to 1,000; 0: each process has its own`)?.trim();
    if (given) await send(path, { ...key, weight: Number(given) }, "PUT");
  });
  return one;
}

function buttonsOfSchedule(row) {
  const path = `v1/schedules/${encodeURIComponent(row.cells[0])}/`, about = row.queue === null ? {} : { queue: row.queue };
  const pause = row.held ? "Resume" : "Pause";
  return [button(row, pause, path + pause.toLowerCase(), about), button(row, "Run now", `${path}fire`, about)];
}

function button(row, verb, path, about) {
  const one = made("button", verb);
  one.dataset.of = `${verb === "Resume" ? "Pause" : verb} ${row.key}`; // which keeps the focus
  one.addEventListener("click", async () => {
    if (confirm(`${verb} ${row.cells[0]}, for all processes?`)) await send(path, about);
  });
  return one;
}

async function send(path, about, method = "POST") {
  const answer = await request(path, {
    method,
    headers: { "content-type": "application/json" },
    body: JSON.stringify(about),
  }).catch(() => null);
  if (answer && !answer.ok) alert((await answer.json()).detail);
  clearTimeout(timer);
  timer = setTimeout(look, REST);
  return answer?.ok && answer.status !== 204 ? answer.json() : null;
}

byId("who").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token").value.trim());
  byId("token").value = "";
  look();
});
