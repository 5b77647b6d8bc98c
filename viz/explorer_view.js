// A side of the panel on the screen: its diagram, the card of the node that is looked at, pointer and cursor.
//
// Edges are stroked into a bitmap when the circuit changes; looking at a node only dims that bitmap and strokes the
// node's own edges over it. A node is looked at under the pointer, under the cursor of the keyboard, or when pinned.

const LISTED = 4; // edges in and out of a node
const ARROWS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 };
const TALLEST_ROW = 70;
const LEAST = 3; // strength class of the weakest edge of a node that is looked at

function makeView(side, index) {
  const figure = element("figure");
  const caption = element("figcaption", "", figure);
  const swatch = element("span", swatchOf(index), caption);
  element("span", "label", caption, side.label);
  const counts = element("span", "counts", caption);
  const stage = element("div", "stage", figure);
  const canvas = element("canvas", "", stage);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `Wiring of ${side.label}: arrow keys move among its nodes, Enter pins one`);
  const card = element("div", "card", stage);
  card.hidden = true;
  const view = { side, index, figure, swatch, counts, canvas, card, hovered: -1, cursor: -1, pinned: -1 };
  view.bitmap = document.createElement("canvas");
  canvas.addEventListener("pointermove", (event) => hover(view, nodeAt(view, event)));
  canvas.addEventListener("pointerleave", () => hover(view, -1));
  canvas.addEventListener("click", (event) => {
    const node = nodeAt(view, event);
    if (node < 0) unpin();
    else pin(view, node);
  });
  canvas.addEventListener("keydown", (event) => moveCursor(view, event));
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && setCursor(view, Math.max(0, view.pinned)));
  canvas.addEventListener("blur", () => setCursor(view, -1));
  return view;
}

function measure(view) {
  const width = view.canvas.parentElement.clientWidth;
  const stacked = matchMedia("(max-width: 700px)").matches;
  const footer = document.querySelector("footer").offsetHeight;
  const top = view.canvas.getBoundingClientRect().top + scrollY;
  const room = innerHeight - top - footer - MARGIN.top - MARGIN.bottom - 2; // all of it on one screen
  const row = stacked ? (1.1 * width) / (view.side.layers + 1) : room / (view.side.layers + 1);
  view.sheet = layOut(view.side, width, Math.max(22, Math.min(row, TALLEST_ROW)));
  const scale = devicePixelRatio || 1;
  for (const canvas of [view.canvas, view.bitmap]) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(view.sheet.height * scale);
    canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
  }
  view.canvas.style.height = `${view.sheet.height}px`;
}

function build(view) {
  const { side, sheet } = view;
  builds++;
  view.edges = edgesOf(side.rankings[chosen.ranking]);
  view.circuit = circuitAt(side, view.edges, chosen.k);
  view.drawn = passing(side, view.edges, view.circuit.kept, chosen.filter);
  const context = view.bitmap.getContext("2d");
  context.clearRect(0, 0, sheet.width, sheet.height);
  const paths = pathsOf(sheet, view.edges, view.drawn, view.circuit.strongest);
  strokePaths(context, paths, side.colours[theme()], view.circuit.kept.length);
}

function paint(view) {
  const { side, sheet, edges, drawn, circuit } = view;
  const context = view.canvas.getContext("2d");
  const node = looked(view);
  context.clearRect(0, 0, sheet.width, sheet.height);
  context.globalAlpha = node < 0 ? 1 : DATA.faded;
  context.drawImage(view.bitmap, 0, 0, sheet.width, sheet.height);
  context.globalAlpha = 1;
  if (node >= 0) {
    const own = drawn.filter((e) => touches(edges, e, node));
    const paths = pathsOf(sheet, edges, own, strongestOf(edges, own), LEAST);
    strokePaths(context, paths, side.colours[theme()], own.length);
  }
  drawNodes(canvasPen(context), side, sheet, circuit, DATA.themes[theme()], node);
  showCard(view, node);
  view.swatch.style.setProperty("--colour", side.colours[theme()]);
  const kept = circuit.kept.length;
  view.counts.textContent =
    `${count(circuit.requested)} requested, ${count(kept)} kept` +
    (kept ? "" : ": none lies on a path") +
    (drawn.length < kept ? `, ${count(drawn.length)} drawn` : "");
}

/** The node that is looked at: under the pointer, under the cursor, or pinned. */
function looked(view) {
  return [view.hovered, view.cursor, view.pinned].find((node) => node >= 0) ?? -1;
}

function nodeAt(view, event) {
  const { x, y, radius } = view.sheet;
  const box = view.canvas.getBoundingClientRect();
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  let [best, nearest] = [-1, Math.max(radius + 4, 9)];
  x.forEach((_, node) => {
    const away = isEnd(view.side, node)
      ? Math.max(Math.abs(px - x[node]) - 16, Math.abs(py - y[node]))
      : Math.hypot(px - x[node], py - y[node]);
    if (away < nearest) [best, nearest] = [node, away];
  });
  return best;
}

function showCard(view, node) {
  const { side, edges, circuit, card, sheet } = view;
  card.hidden = node < 0;
  if (node < 0) return;
  const into = circuit.kept.filter((e) => edges.dst[e] === node);
  const outOf = circuit.kept.filter((e) => edges.src[e] === node);
  card.replaceChildren();
  element("p", "", card, side.label);
  element("h2", "", card, `${side.names[node]}: ${described(side, node)}`);
  element("p", "", card, circuit.active[node] ? `${into.length} in, ${outOf.length} out` : "not in this circuit");
  const table = element("table", "", card);
  for (const [title, some] of [["in", into], ["out", outOf]]) {
    if (!some.length) continue;
    element("th", "", element("tr", "", table), some.length > LISTED ? `strongest ${title}` : title).colSpan = 2;
    for (const e of some.subarray(0, LISTED)) {
      const row = element("tr", "", table);
      element("td", "", row, edgeName(side, edges, e));
      element("td", "", row, figures(edges.score[e]));
    }
  }
  place(card, sheet, node);
}

/** Put a card beside its node, on the right or else on the left; below it where there is no room for either. */
function place(card, sheet, node) {
  const [x, y] = [sheet.x[node], sheet.y[node]];
  const away = sheet.radius + 8;
  const [right, left] = [x + away, x - away - card.offsetWidth];
  const beside = right + card.offsetWidth <= sheet.width ? right : left;
  const middle = Math.max(0, Math.min(x - card.offsetWidth / 2, sheet.width - card.offsetWidth));
  card.style.left = `${beside < 0 ? middle : beside}px`;
  const lowest = Math.max(0, sheet.height - card.offsetHeight);
  card.style.top = `${beside < 0 ? y + away : Math.min(y + 12, lowest)}px`;
}

// ---- looking at nodes ---------------------------------------------------------------------------------------------

function hover(view, node) {
  if (view.hovered === node) return;
  view.hovered = node;
  view.canvas.style.cursor = node < 0 ? "" : "pointer";
  change(PAINT);
}

function pin(view, node) {
  view.pinned = view.pinned === node ? -1 : node;
  say(view.pinned < 0 ? "Unpinned." : `Pinned ${spelled(view, node)}`);
  change(PAINT);
}

function unpin() {
  if (views.every((view) => view.pinned < 0)) return;
  for (const view of views) view.pinned = -1;
  say("Unpinned.");
  change(PAINT);
}

function setCursor(view, node) {
  view.cursor = node;
  if (node >= 0) {
    view.hovered = -1;
    say(spelled(view, node));
  }
  change(PAINT);
}

/** Left and right along a row, up and down to the nearest node of the next row. */
function moveCursor(view, event) {
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    if (view.cursor >= 0) pin(view, view.cursor);
  } else if (event.key in ARROWS) {
    event.preventDefault();
    event.stopPropagation();
    const { x, y } = view.sheet;
    const here = Math.max(0, looked(view));
    const across = event.key === "ArrowLeft" || event.key === "ArrowRight";
    const direction = event.key === "ArrowDown" || event.key === "ArrowRight" ? 1 : -1;
    const far = (node) => (across ? x[node] - x[here] : y[node] - y[here]) * direction;
    const aside = (node) => (across ? Math.abs(y[node] - y[here]) : Math.abs(x[node] - x[here]));
    const ahead = view.side.names.map((_, node) => node).filter((node) => far(node) > 0.5);
    const inRow = across ? ahead.filter((node) => aside(node) < 0.5) : ahead;
    inRow.sort((a, b) => Math.round(far(a) - far(b)) || aside(a) - aside(b));
    setCursor(view, inRow[0] ?? here);
  }
}

function spelled(view, node) {
  const { side, circuit, edges } = view;
  const into = circuit.kept.filter((e) => edges.dst[e] === node).length;
  const outOf = circuit.kept.filter((e) => edges.src[e] === node).length;
  return `${side.names[node]}, ${described(side, node)}, in ${side.label}: ${into} in, ${outOf} out.`;
}

function search() {
  const text = at("search").value;
  if (!text.trim()) return;
  const found = views.filter((view) => nodeNamed(view.side, text) >= 0);
  if (!found.length) {
    say(`No node is called '${text.trim()}'; names look like a9.h9, 9.9, m3, input and logits.`);
    return;
  }
  for (const view of views) view.pinned = nodeNamed(view.side, text);
  say(found.map((view) => `Pinned ${spelled(view, view.pinned)}`).join(" "));
  change(PAINT);
}
