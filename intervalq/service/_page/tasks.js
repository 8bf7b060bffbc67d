
// The tasks of one queue, `of.queue`: what is chosen and opened stays so from one look to the next.

const of = { queue: null, found: null, chosen: new Set(), lines: new Map(), values: new Map() };
const NAMES = { retry: "Retry", cancel: "Cancel", move: "Move", delete: "Delete" };
const AT = "#tasks/";

function buttonOfTasks(row) {
  const one = made("button", "Show");
  one.dataset.of = `Show ${row.key}`;
  one.addEventListener("click", () => (location.hash = AT + encodeURIComponent(row.key)));
  return one;
}

function openTasks() {
  const queue = location.hash.startsWith(AT) ? decodeURIComponent(location.hash.slice(AT.length)) : null;
  if (queue === of.queue) return;
  Object.assign(of, { queue, found: null, chosen: new Set(), lines: new Map(), values: new Map() });
  byId("of").hidden = true;
  byId("of").querySelector(".list").replaceChildren();
  byId("filter").value = byId("told").textContent = "";
  byId("every").checked = false;
  if (last) lookAtTasks();
}

async function lookAtTasks() {
  const queue = of.queue;
  if (queue === null) return;
  const answer = await request(`v1/overview/tasks?queue=${encodeURIComponent(queue)}`);
  const found = await answer.json();
  if (queue !== of.queue) return;
  const isNew = byId("of").hidden;
  byId("of").hidden = false;
  const first = found.is_all === false ? ` (the first ${found.rows.length})` : "";
  byId("of").querySelector("h3").textContent = `Tasks of ${queue}${first}`;
  of.found = answer.ok ? found : { columns: [], rows: [], may: [], is_all: true };
  if (!answer.ok) byId("told").textContent = found.detail;
  const keys = new Set(of.found.rows.map((row) => row.key));
  for (const known of [of.lines, of.values]) for (const key of known.keys()) if (!keys.has(key)) known.delete(key);
  for (const key of of.chosen) if (!keys.has(key)) of.chosen.delete(key);
  showTasks();
  if (isNew) byId("of").scrollIntoView({ block: "nearest" });
}

function shownTasks() {
  const filter = byId("filter").value.trim().toLowerCase();
  return of.found.rows.filter((row) => row.cells.join(" ").toLowerCase().includes(filter));
}

function showTasks() {
  const { may } = of.found, filter = byId("filter").value.trim(), shown = shownTasks();
  const elements = shown.map(lineOf), place = byId("of").querySelector(".list");
  if (elements.some((one, at) => place.children[at] !== one) || place.children.length !== elements.length)
    place.replaceChildren(...elements);
  byId("every").parentElement.hidden = !may.length;
  byId("every").nextElementSibling.textContent = filter ? `all ${shown.length} shown` : "all of the queue";
  byId("to").hidden = !may.includes("move");
  if (byId("acts").childElementCount !== may.length)
    byId("acts").replaceChildren(...may.map((change) => buttonOfChange(change)));
}

function lineOf(row) {
  const [id, state, key, attempts, error] = row.cells;
  let line = of.lines.get(row.key);
  if (!line) {
    line = made("details", undefined, "task");
    const box = made("input");
    box.type = "checkbox";
    box.setAttribute("aria-label", `choose ${id}`);
    box.addEventListener("change", () => {
      of.chosen[box.checked ? "add" : "delete"](row.key);
      if (!box.checked) byId("every").checked = false;
    });
    const summary = made("summary");
    summary.append(box, made("b"), ...Array.from({ length: 4 }, () => made("span")));
    line.append(summary, made("div", undefined, "open"));
    line.addEventListener("toggle", () => line.open && readValue(row.key));
    of.lines.set(row.key, line);
  }
  const [box, ...parts] = line.firstChild.children;
  box.hidden = !of.found.may.length;
  box.checked = of.chosen.has(row.key);
  [id, state, key && `key ${key}`, attempts === "1" ? "1 attempt" : `${attempts} attempts`, error].forEach((text, at) => {
    if (parts[at].textContent !== text) parts[at].textContent = text;
  });
  const facts = list(row.facts);
  if (of.values.has(row.key)) facts.append(made("dt", "value"), made("dd", of.values.get(row.key), "value"));
  line.lastChild.replaceChildren(facts);
  return line;
}

async function readValue(key) {
  const answer = await request(`v1/overview/tasks?id=${encodeURIComponent(key)}`).catch(() => null);
  const value = answer?.ok ? (await answer.json()).value : null;
  if (value === null || !of.found) return;
  of.values.set(key, value);
  showTasks();
}

function buttonOfChange(change) {
  const one = made("button", NAMES[change]);
  one.dataset.of = `${change} tasks`;
  one.addEventListener("click", async () => {
    const filter = byId("filter").value.trim(), every = byId("every").checked && !filter;
    const about = { change, queue: of.queue };
    if (!every) about.ids = shownTasks().map((row) => row.key).filter((key) => of.chosen.has(key));
    if (change === "move") about.to = byId("to").value.trim();
    if (!every && !about.ids.length) return tell("Choose tasks first.");
    if (about.to === "") return tell("Say where: give the name of a queue.");
    const which = every ? "all tasks" : about.ids.length === 1 ? `task ${about.ids[0]}` : `${about.ids.length} tasks`;
    if (!confirm(`${NAMES[change]} ${which} of ${of.queue}${about.to ? ` to ${about.to}` : ""}?`)) return;
    const done = await send("v1/tasks/edit", about);
    if (done === null) return;
    byId("every").checked = false;
    const why = done.refused.slice(0, 3).map((each) => `${each.id} ${each.why}`).join("; ");
    tell(`${NAMES[change]}: ${done.done} done${done.refused.length ? `, ${done.refused.length} not: ${why}` : ""}.`);
  });
  return one;
}

function tell(text) {
  byId("told").textContent = text;
}

byId("filter").addEventListener("input", () => {
  byId("every").checked = false; // it meant the tasks that were shown before
  if (of.found) showTasks();
});
byId("every").addEventListener("change", () => {
  const { checked } = byId("every");
  for (const box of byId("of").querySelectorAll(".list input")) {
    box.checked = checked;
    box.dispatchEvent(new Event("change"));
  }
});
byId("shut").addEventListener("click", () => (location.hash = ""));
addEventListener("hashchange", openTasks);
document.addEventListener("visibilitychange", look);
openTasks();
look();
