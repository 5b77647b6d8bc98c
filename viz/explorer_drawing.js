// How a side is drawn: layers as rows from top to bottom, heads as columns, the MLP at the end; edges below nodes.
//
// Places and curves are those of the wiring diagrams. Nodes, axis and labels are drawn with a pen that either paints
// on a canvas or writes SVG; edges are one Path2D a strength class on a canvas, and a path each in SVG.

const MARGIN = { left: 62, right: 22, top: 16, bottom: 16 };
const WIDEST_COLUMN = 84;

/** Where the nodes of a side stand on a sheet of this width, with rows of this height. */
function layOut(side, width, row) {
  const room = width - MARGIN.left - MARGIN.right;
  const column = Math.min(room / side.heads, WIDEST_COLUMN);
  const begin = MARGIN.left + (room - column * side.heads) / 2;
  const group = side.heads / side.kvHeads;
  const radius = Math.max(2.5, Math.min(7.5, 0.24 * column, 0.24 * row));
  const x = [];
  const y = [];
  const half = []; // of a node's height: where edges leave and arrive
  side.names.forEach((_, node) => {
    const kind = DATA.kinds[side.kind[node]];
    const head = side.head[node];
    let place = kind === "head" ? head : side.heads;
    if (kind === "kv") place = head * group + (group - 1) / 2; // over the middle of those that it feeds
    if (isEnd(side, node)) place = side.heads / 2;
    x.push(begin + place * column);
    y.push(MARGIN.top + (side.layer[node] + 1 - (kind === "kv" ? 0.5 : 0)) * row);
    half.push(isEnd(side, node) ? 9 : radius * { head: 1, kv: 0.6, mlp: 0.9 }[kind]);
  });
  return { x, y, half, column, row, radius, width, height: MARGIN.top + (side.layers + 1) * row + MARGIN.bottom };
}

/** The eight numbers of a cubic Bezier that leaves a node downwards and arrives at another from above. */
function curveOf(sheet, src, dst) {
  const { x, y, half, column, row } = sheet;
  const start = y[src] + half[src];
  const flat = y[src] === y[dst]; // from a head to its own layer's MLP: a bow below the row
  const end = flat ? y[dst] + half[dst] : y[dst] - half[dst];
  const reach = Math.max(0.45 * (y[dst] - y[src]), 0.45 * row);
  // the nodes of a column lie on one line: pass those in between on the left
  const bow = x[src] === x[dst] && y[dst] - y[src] > row ? -0.5 * column : 0;
  return [x[src], start, x[src] + bow, start + reach, x[dst] + bow, flat ? end + reach : end - reach, x[dst], end];
}

/** These edges as one path a strength class, the weakest first; none weaker than a class. */
function pathsOf(sheet, edges, drawn, strongest, least = 0) {
  const paths = Array.from({ length: CLASSES }, () => new Path2D());
  for (const e of drawn) {
    const [x0, y0, ...rest] = curveOf(sheet, edges.src[e], edges.dst[e]);
    const path = paths[Math.max(least, classOf(edges.score[e], strongest))];
    path.moveTo(x0, y0);
    path.bezierCurveTo(...rest);
  }
  return paths;
}

/** Stroke paths by class, as visible as edges of a circuit of so many are. */
function strokePaths(context, paths, colour, count) {
  context.strokeStyle = colour;
  paths.forEach((path, strengthClass) => {
    const { opacity, width } = lookOf(strengthClass, count);
    context.globalAlpha = opacity;
    context.lineWidth = width;
    context.stroke(path);
  });
  context.globalAlpha = 1;
}

/** Axis, feeds and nodes. `marked` is the node that is looked at, or -1. */
function drawNodes(pen, side, sheet, circuit, theme, marked) {
  const { x, y, half, row, height } = sheet;
  const axis = 12;
  pen.text(axis - 10, y[0] + 4, "Layers", theme.ink, 12, "start");
  pen.line(axis, y[0] + 14, axis, height - 4, theme.soft_ink, 1);
  pen.line(axis - 4, height - 9, axis, height - 4, theme.soft_ink, 1);
  pen.line(axis + 4, height - 9, axis, height - 4, theme.soft_ink, 1);
  const every = Math.ceil(13 / row); // so that numbers do not touch
  for (let layer = 0; layer < side.layers; layer += every) {
    pen.text(34, y[0] + (layer + 1) * row + 4, String(layer), theme.soft_ink, 11, "middle");
  }
  for (const [shared, head] of side.feeds) {
    if (circuit.active[shared] && circuit.active[head]) {
      pen.line(x[shared], y[shared], x[head], y[head] - half[head], theme.idle_ink, 0.8);
    }
  }
  side.names.forEach((name, node) => {
    const on = circuit.active[node];
    const fill = on ? theme.paper : theme.idle;
    const ink = on || node === marked ? theme.ink : theme.idle_ink;
    const width = node === marked ? 2.4 : on ? 1.1 : 0.8;
    const kind = DATA.kinds[side.kind[node]];
    if (kind === "head") pen.circle(x[node], y[node], half[node], fill, ink, width);
    else pen.box(x[node], y[node], isEnd(side, node) ? 25 : half[node], half[node], fill, ink, width);
    if (isEnd(side, node)) {
      pen.text(x[node], y[node] + 3.5, name, on ? theme.ink : theme.soft_ink, 10, "middle");
    }
  });
}

/** A pen that paints on a canvas. */
function canvasPen(context) {
  const finish = (fill, ink, width) => {
    context.fillStyle = fill;
    context.fill();
    stroke(ink, width);
  };
  const stroke = (ink, width) => {
    context.strokeStyle = ink;
    context.lineWidth = width;
    context.stroke();
  };
  return {
    line(x1, y1, x2, y2, ink, width) {
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
      stroke(ink, width);
    },
    circle(x, y, radius, fill, ink, width) {
      context.beginPath();
      context.arc(x, y, radius, 0, 2 * Math.PI);
      finish(fill, ink, width);
    },
    box(x, y, right, down, fill, ink, width) {
      context.beginPath();
      context.rect(x - right, y - down, 2 * right, 2 * down);
      finish(fill, ink, width);
    },
    text(x, y, words, ink, size, anchor) {
      context.font = `${size}px ${DATA.fonts}`;
      context.textAlign = anchor === "middle" ? "center" : "start";
      context.fillStyle = ink;
      context.fillText(words, x, y);
    },
  };
}

/** A pen that writes SVG elements into a list. */
function svgPen(elements) {
  const shape = (fill, ink, width) => `fill="${fill}" stroke="${ink}" stroke-width="${width}"`;
  return {
    line(x1, y1, x2, y2, ink, width) {
      elements.push(
        `<line x1="${short(x1)}" y1="${short(y1)}" x2="${short(x2)}" y2="${short(y2)}" ${shape("none", ink, width)}/>`,
      );
    },
    circle(x, y, radius, fill, ink, width) {
      elements.push(`<circle cx="${short(x)}" cy="${short(y)}" r="${short(radius)}" ${shape(fill, ink, width)}/>`);
    },
    box(x, y, right, down, fill, ink, width) {
      const corner = `x="${short(x - right)}" y="${short(y - down)}"`;
      const size = `width="${short(2 * right)}" height="${short(2 * down)}"`;
      elements.push(`<rect ${corner} ${size} ${shape(fill, ink, width)}/>`);
    },
    text(x, y, words, ink, size, anchor) {
      const how = `font-size="${size}" text-anchor="${anchor}" fill="${ink}"`;
      elements.push(`<text x="${short(x)}" y="${short(y)}" ${how}>${escaped(words)}</text>`);
    },
  };
}

/** These edges as SVG, a path each, grouped by strength class, the weakest first. */
function svgEdges(sheet, edges, drawn, { strongest, count, colour, least = 0, opacity: left = 1 }) {
  const groups = Array.from({ length: CLASSES }, () => []);
  for (const e of drawn) {
    const [x0, y0, ...rest] = curveOf(sheet, edges.src[e], edges.dst[e]).map(short);
    const group = groups[Math.max(least, classOf(edges.score[e], strongest))];
    group.push(`<path class="edge" d="M${x0} ${y0}C${rest.join(" ")}"/>`);
  }
  return groups.flatMap((group, strengthClass) => {
    const { opacity, width } = lookOf(strengthClass, count);
    const look = `stroke-opacity="${(left * opacity).toFixed(3)}" stroke-width="${width.toFixed(3)}"`;
    return group.length ? [`<g fill="none" stroke="${colour}" ${look}>`, ...group, "</g>"] : [];
  });
}

function short(number) {
  return String(Math.round(number * 100) / 100);
}

/** Text for XML, less what XML cannot hold. */
function escaped(text) {
  const named = { "<": "&lt;", ">": "&gt;", "&": "&amp;", '"': "&quot;" };
  return text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "").replace(/[<>&"]/g, (found) => named[found]);
}
