// The page: what the reader chose, what follows from it, and the controls.
//
// A change says how much is to be done again: PAINT for the looks of nodes, CIRCUIT for the kept edges and their paths,
// LAYOUT for sizes; it is done once, before the next frame.
//
// `window.wirescope` is for tests and for the console, and read-only: `state` is what is shown now, `busy` whether a
// change waits for the next frame, `builds` how often the paths of a side were built, and `place(side, name)` where a
// node is on the screen.

const [PAINT, CIRCUIT, LAYOUT] = [1, 2, 3];
const at = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");

const chosen = { panel: 0, ranking: 0, k: DATA.panels[0].start, filter: null };
const spoken = { timer: 0 };
let views = []; // one for each side of the panel
let todo = 0;
let builds = 0;

function change(what) {
  if (!todo) requestAnimationFrame(refresh);
  todo = Math.max(todo, what);
}

function refresh() {
  const what = todo;
  todo = 0;
  if (!what) return;
  for (const view of views) {
    if (what >= LAYOUT) measure(view);
    if (what >= CIRCUIT) build(view);
    paint(view);
  }
  if (what >= CIRCUIT) {
    drawCurve();
    tellCounts();
  }
}

// ---- the size of the circuit --------------------------------------------------------------------------------------

/** The number of edges that the page has of the largest side. */
function most() {
  return Math.max(...views.map((view) => view.side.rankings[chosen.ranking].count));
}

function setK(k) {
  chosen.k = Math.max(1, Math.min(Math.round(k) || 1, most()));
  at("slider").value = most() > 1 ? (1000 * Math.log(chosen.k)) / Math.log(most()) : 0;
  at("slider").setAttribute("aria-valuetext", `${count(chosen.k)} edges`);
  if (document.activeElement !== at("k")) at("k").value = chosen.k;
  change(CIRCUIT);
}

/** A step on the logarithmic scale, and at least one edge. */
function step(direction, factor = 1.08) {
  const { k } = chosen;
  setK(direction > 0 ? Math.max(k + 1, k * factor) : Math.min(k - 1, k / factor));
}

function slide(event) {
  const moves = { PageUp: [1, 2], PageDown: [-1, 2] };
  if (event.key in ARROWS) step(ARROWS[event.key]);
  else if (event.key in moves) step(...moves[event.key]);
  else if (event.key === "Home") setK(1);
  else if (event.key === "End") setK(most());
  else return;
  event.preventDefault();
}

/** The measured curves on the axis of the slider, and where they are at this k. */
function drawCurve() {
  const svg = at("curve");
  const rankings = views.map((view) => view.side.rankings[chosen.ranking]);
  svg.replaceChildren();
  at("values").replaceChildren();
  if (!rankings.some((ranking) => ranking.curve.length)) return;

  const [left, right, top, bottom] = [37, svg.clientWidth - 7, 6, 68];
  const values = rankings.flatMap((ranking) => ranking.curve.map(([, explained]) => explained));
  const low = Math.max(-0.5, Math.min(0, ...values));
  const high = Math.min(1.5, Math.max(1, ...values));
  const x = (k) => left + ((right - left) * Math.log(k)) / Math.log(Math.max(most(), 2));
  const y = (explained) => bottom - ((bottom - top) * (Math.max(low, Math.min(explained, high)) - low)) / (high - low);
  for (const tick of [0, 0.5, 1]) {
    mark("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) });
    mark("text", { x: left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, String(tick));
  }
  for (let k = 1; k <= most(); k *= 10) {
    mark("line", { class: "grid", x1: x(k), x2: x(k), y1: top, y2: bottom });
    mark("text", { x: x(k), y: bottom + 13, "text-anchor": "middle" }, count(k));
  }
  mark("line", { class: "here", x1: x(chosen.k), x2: x(chosen.k), y1: top, y2: bottom });
  views.forEach(({ side, circuit }, index) => {
    const { curve } = rankings[index];
    const colour = side.colours[theme()];
    const ends = [...curve.filter(([k]) => k <= most()), [most(), explainedAt(curve, most())]];
    const known = ends.filter(([, explained]) => explained !== null);
    const points = known.map(([k, explained]) => `${x(k)},${y(explained)}`);
    mark("polyline", { points: points.join(" "), fill: "none", stroke: colour, "stroke-width": 1.6 });
    const explained = explainedAt(curve, circuit.requested);
    const line = element("div", "", at("values"));
    const name = element("dt", "", line);
    name.title = side.label;
    element("span", swatchOf(index), name).style.setProperty("--colour", colour);
    name.append(side.label);
    const sizes = between(curve, circuit.requested);
    const said = element("dd", "", line, explained === null ? "not measured" : explained.toFixed(3));
    if (explained === null) return;
    if (sizes) said.textContent = `about ${explained.toFixed(2)} (between ${sizes.map(count).join(" and ")})`;
    const fill = sizes ? DATA.themes[theme()].paper : colour; // a dot is filled where circuits were measured
    const [cx, cy] = [x(circuit.requested), y(explained)];
    if (index % 2) mark("rect", { class: "dot", x: cx - 4.5, y: cy - 4.5, width: 9, height: 9, fill, stroke: colour });
    else mark("circle", { class: "dot", cx, cy, r: 5, fill, stroke: colour });
  });

  function mark(name, attributes, words = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = words;
    svg.append(made);
  }
}

// ---- task, prompt, filters ----------------------------------------------------------------------------------------

function showPanel(index) {
  const panel = DATA.panels[index];
  chosen.panel = index;
  chosen.ranking = 0;
  views = panel.sides.map(makeView);
  at("panels").replaceChildren(...views.map((view) => view.figure));
  at("panels").style.setProperty("--sides", views.length);
  options(at("prompt"), [...panel.tasks, ...panel.prompts]);
  at("prompt-field").hidden = panel.tasks.length + panel.prompts.length < 2;
  const names = new Set(panel.sides.flatMap((side) => side.names));
  at("names").replaceChildren(...[...names].map((name) => new Option(name, name)));
  const last = Math.max(...panel.sides.map((side) => side.layers)) - 1;
  chosen.filter = { from: 0, to: last, hidden: new Set() };
  for (const [id, value] of [["from", 0], ["to", last]]) {
    at(id).value = value;
    at(id).max = last;
  }
  slotBoxes();
  showRanking(0);
}

/** A box for each kind of input that edges run into, if there is more than one. */
function slotBoxes() {
  const there = new Set(views.flatMap((view) => [...edgesOf(view.side.rankings[0]).slot]));
  const boxes = DATA.slots.map((letter, slot) => {
    const label = element("label");
    const box = element("input", "", label);
    box.type = "checkbox";
    box.checked = true;
    box.id = `slot-${letter || "other"}`;
    label.append(letter || "other");
    box.addEventListener("change", () => {
      chosen.filter.hidden[box.checked ? "delete" : "add"](slot);
      change(CIRCUIT);
    });
    return [slot, label];
  });
  const others = ([slot]) => (slot ? slot : DATA.slots.length);
  const shown = boxes.filter(([slot]) => there.has(slot)).sort((a, b) => others(a) - others(b));
  at("slots").replaceChildren(at("slots").firstElementChild, ...shown.map(([, label]) => label));
  at("slots").hidden = there.size < 2;
}

function showRanking(index) {
  chosen.ranking = index;
  const rankings = views.map((view) => view.side.rankings[index]);
  const parts = views.map(({ side }) => {
    const here = side.rankings[index].count;
    return here < side.total ? ` The page has the strongest ${count(here)} of its ${count(side.total)} edges.` : "";
  });
  const { tasks } = DATA.panels[chosen.panel];
  const text = index < tasks.length ? "" : `${rankingName()} `;
  at("about").textContent = text + ofSides(rankings.map((ranking, i) => ranking.about + parts[i]));
  at("unmeasured").textContent = ofSides(rankings.map((ranking) => ranking.unmeasured));
  at("unmeasured").hidden = !at("unmeasured").textContent;
  const measured = rankings.some((ranking) => ranking.curve.length);
  at("curve").toggleAttribute("hidden", !measured);
  at("effects").hidden = !measured;
  at("most").textContent = count(most());
  at("k").max = most();
  setK(chosen.k);
  change(LAYOUT);
}

/** What the chosen ranking is called: the task's, or the text of a prompt. */
function rankingName() {
  const { tasks, prompts } = DATA.panels[chosen.panel];
  return tasks[chosen.ranking] ?? `"${prompts[chosen.ranking - tasks.length]}"`;
}

/** A sentence of each side: once if they say the same, else with the names of the sides. */
function ofSides(sentences) {
  if (new Set(sentences).size === 1) return sentences[0] ?? "";
  return sentences.flatMap((words, i) => (words ? [`${views[i].side.label}: ${words}`] : [])).join(" ");
}

function setFilter() {
  const number = (id, otherwise) => (at(id).value === "" ? otherwise : Number(at(id).value));
  chosen.filter.from = number("from", 0);
  chosen.filter.to = number("to", Infinity);
  change(CIRCUIT);
}

// ---- words, theme, saving -----------------------------------------------------------------------------------------

function say(words) {
  clearTimeout(spoken.timer);
  at("message").textContent = words;
}

/** Say how many edges there are once k has come to rest. */
function tellCounts() {
  clearTimeout(spoken.timer);
  spoken.timer = setTimeout(() => {
    const sides = views.map(
      ({ side, circuit, drawn }) =>
        `${side.label}: ${count(circuit.requested)} edges requested, ${count(circuit.kept.length)} kept, ` +
        `${count(drawn.length)} drawn`,
    );
    say(`${sides.join("; ")}.`);
  }, 300);
}

function theme() {
  const prefers = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  return document.documentElement.dataset.theme ?? prefers;
}

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  at("theme").textContent = theme() === "dark" ? "Light" : "Dark";
  change(CIRCUIT);
}

/** Paper is white: print the light theme, whatever is on the screen. */
function printed(begins) {
  const root = document.documentElement;
  if (begins) {
    root.dataset.before = root.dataset.theme ?? "";
    root.dataset.theme = "light";
  } else if (root.dataset.before) root.dataset.theme = root.dataset.before;
  else delete root.dataset.theme;
  change(CIRCUIT);
  refresh();
}

/** The view as an SVG of its own: always on white paper, at a size of its own. */
function asSvg() {
  const [width, gap, head] = [620, 24, 62];
  const light = DATA.themes.light;
  const elements = [];
  const pen = svgPen(elements);
  const panel = DATA.panels[chosen.panel];
  const total = views.length * width + (views.length - 1) * gap;
  let tall = 0;
  elements.push(`<rect x="-10" width="100%" height="100%" fill="${light.paper}"/>`);
  pen.text(total / 2, 18, brief(`${panel.name}, ${rankingName()}, k = ${count(chosen.k)}`, 90), light.ink, 13, "middle");
  views.forEach((view, index) => {
    const { side, edges, drawn, circuit } = view;
    const sheet = layOut(side, width, Math.max(22, Math.min(46, 600 / side.layers)));
    const colour = side.colours.light;
    elements.push(`<g transform="translate(${index * (width + gap)} ${head})">`);
    pen.text(width / 2, -22, side.label, light.ink, 13, "middle");
    pen.text(width / 2, -6, view.counts.textContent, light.soft_ink, 11, "middle");
    const own = drawn.filter((e) => touches(edges, e, view.pinned));
    const others = drawn.filter((e) => !touches(edges, e, view.pinned));
    const [strongest, kept] = [circuit.strongest, circuit.kept.length];
    const opacity = view.pinned < 0 ? 1 : DATA.faded;
    elements.push(
      ...svgEdges(sheet, edges, others, { strongest, count: kept, colour, opacity }),
      ...svgEdges(sheet, edges, own, { strongest: strongestOf(edges, own), count: own.length, colour, least: LEAST }),
    );
    drawNodes(pen, side, sheet, circuit, light, view.pinned);
    elements.push("</g>");
    tall = Math.max(tall, head + sheet.height);
  });
  const size = `width="${total + 20}" height="${tall + 10}" viewBox="-10 0 ${total + 20} ${tall + 10}"`;
  const fonts = escaped(DATA.fonts);
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${fonts}">\n${elements.join("\n")}\n</svg>\n`;
}

function save() {
  const link = document.createElement("a");
  link.download = `circuit-${DATA.panels[chosen.panel].name}-k${chosen.k}.svg`.replace(/[^\w.-]+/g, "-");
  link.href = URL.createObjectURL(new Blob([asSvg()], { type: "image/svg+xml" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  say(`Saved as ${link.download}.`);
}

// ---- small things -------------------------------------------------------------------------------------------------

function element(name, className = "", parent = null, words = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.textContent = words;
  parent?.append(made);
  return made;
}

/** Every other side is a square, for readers and printers that do not tell colours apart. */
function swatchOf(index) {
  return index % 2 ? "square swatch" : "swatch";
}

function options(select, texts) {
  select.replaceChildren(...texts.map((text, index) => new Option(brief(text, 70), index)));
}

/** A text on one line, cut at a length. */
function brief(text, longest) {
  const line = text.replace(/\s+/g, " ");
  return line.length > longest ? `${line.slice(0, longest - 1)}…` : line;
}

function globalKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") unpin();
  if (event.target.closest("input:not([type=checkbox]), select")) return;
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") step(ARROWS[event.key]);
  else if (event.key === "/") at("search").focus();
  else return;
  event.preventDefault();
}

// ---- begin --------------------------------------------------------------------------------------------------------

options(at("task"), DATA.panels.map((panel) => panel.name));
at("task-field").hidden = DATA.panels.length < 2;
at("task").addEventListener("change", () => showPanel(Number(at("task").value)));
at("prompt").addEventListener("change", () => showRanking(Number(at("prompt").value)));
at("slider").addEventListener("input", () => setK(most() ** (at("slider").value / 1000)));
at("slider").addEventListener("keydown", slide);
at("k").addEventListener("input", () => at("k").value && setK(Number(at("k").value)));
at("k").addEventListener("change", () => (at("k").value = chosen.k));
at("from").addEventListener("input", setFilter);
at("to").addEventListener("input", setFilter);
at("search").addEventListener("change", search);
at("search").addEventListener("keydown", (event) => event.key === "Enter" && search());
at("theme").addEventListener("click", () => setTheme(theme() === "dark" ? "light" : "dark"));
at("save").addEventListener("click", save);
document.addEventListener("keydown", globalKey);
addEventListener("resize", () => change(LAYOUT));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
addEventListener("beforeprint", () => printed(true));
addEventListener("afterprint", () => printed(false));
setTheme();
showPanel(0);

Object.defineProperty(window, "wirescope", {
  value: Object.freeze({
    get state() {
      const sides = views.map((view) => ({
        label: view.side.label,
        requested: view.circuit.requested,
        kept: view.circuit.kept.length,
        drawn: Array.from(view.drawn, (e) => edgeName(view.side, view.edges, e)),
        active: view.side.names.filter((_, node) => view.circuit.active[node]),
        looked: view.side.names[looked(view)] ?? null,
        pinned: view.side.names[view.pinned] ?? null,
      }));
      return { k: chosen.k, theme: theme(), sides };
    },
    get builds() {
      return builds;
    },
    get busy() {
      return todo > 0;
    },
    place(index, name) {
      const { side, sheet, canvas } = views[index];
      const box = canvas.getBoundingClientRect();
      const node = side.names.indexOf(name);
      return { x: box.left + sheet.x[node], y: box.top + sheet.y[node] };
    },
  }),
});
