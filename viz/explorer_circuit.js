// Circuits, from the data of the page alone: nothing is drawn here.
//
// Edges of a ranking come the strongest first, so the top k are the first k. Of these, the edges on a path from `input`
// to `logits` are kept. Ids of nodes are topological, so one sweep over the nodes forward and one backward find them.
// Feeds, from a key/value head to the heads that share it, are links that cannot be cut.

const DATA = JSON.parse(document.getElementById("data").textContent);
const CLASSES = 10; // of strength: edges of a class are drawn alike, in one stroke

/** The edges of a ranking as typed arrays; decoded when they are first asked for. */
function edgesOf(ranking) {
  ranking.edges ??= {
    count: ranking.count,
    src: unpacked(ranking.src, Uint16Array),
    dst: unpacked(ranking.dst, Uint16Array),
    slot: unpacked(ranking.slot, Uint8Array),
    score: unpacked(ranking.score, Float32Array),
  };
  return ranking.edges;
}

/** The circuit of the k strongest edges: which are kept, strongest first, and which nodes they touch. */
function circuitAt(side, edges, k) {
  const requested = Math.min(k, edges.count);
  const { reached, useful } = sweep(side, edges, requested);
  const kept = new Int32Array(requested);
  const active = new Uint8Array(side.names.length);
  let size = 0;
  for (let e = 0; e < requested; e++) {
    if (reached[edges.src[e]] && useful[edges.dst[e]]) {
      kept[size++] = e;
      active[edges.src[e]] = active[edges.dst[e]] = 1;
    }
  }
  return { requested, kept: kept.subarray(0, size), active, strongest: strongestOf(edges, kept.subarray(0, size)) };
}

/** The strength of the first of some edges, which is the strongest. */
function strongestOf(edges, some) {
  return some.length ? Math.abs(edges.score[some[0]]) : 0;
}

function touches(edges, e, node) {
  return edges.src[e] === node || edges.dst[e] === node;
}

/** Which nodes the first edges reach from `input`, and from which they reach `logits`. */
function sweep(side, edges, count) {
  const nodes = side.names.length;
  const first = new Int32Array(nodes + 1); // the edges that leave u: leaving[first[u]] to leaving[first[u + 1] - 1]
  for (let e = 0; e < count; e++) first[edges.src[e] + 1]++;
  for (let u = 0; u < nodes; u++) first[u + 1] += first[u];
  const next = first.slice();
  const leaving = new Int32Array(count);
  for (let e = 0; e < count; e++) leaving[next[edges.src[e]]++] = e;

  const reached = new Uint8Array(nodes);
  const useful = new Uint8Array(nodes);
  reached[0] = useful[nodes - 1] = 1;
  for (let u = 0; u < nodes; u++) {
    if (!reached[u]) continue;
    for (let i = first[u]; i < first[u + 1]; i++) reached[edges.dst[leaving[i]]] = 1;
    for (const head of fedBy(side, u)) reached[head] = 1;
  }
  for (let u = nodes - 1; u >= 0; u--) {
    for (let i = first[u]; i < first[u + 1]; i++) if (useful[edges.dst[leaving[i]]]) useful[u] = 1;
    for (const head of fedBy(side, u)) if (useful[head]) useful[u] = 1;
  }
  return { reached, useful };
}

/** The heads that a node feeds without an edge: those that share a key/value head. */
function fedBy(side, node) {
  if (!side.fed) {
    side.fed = side.names.map(() => []);
    for (const [shared, head] of side.feeds) side.fed[shared].push(head);
  }
  return side.fed[node];
}

/** Of a circuit's kept edges those that the filter lets through, strongest first. */
function passing(side, edges, kept, filter) {
  const within = side.layer.map((layer, node) => isEnd(side, node) || (filter.from <= layer && layer <= filter.to));
  return kept.filter((e) => within[edges.src[e]] && within[edges.dst[e]] && !filter.hidden.has(edges.slot[e]));
}

/** `input` and `logits` lie outside of the layers, and so within any range of them. */
function isEnd(side, node) {
  return node === 0 || node === side.names.length - 1;
}

/** The strength class of an edge, by its share of the strongest score: 0 for the weakest. */
function classOf(score, strongest) {
  const share = strongest ? Math.sqrt(Math.abs(score) / strongest) : 0;
  return Math.min(CLASSES - 1, Math.floor(CLASSES * share));
}

/** Opacity and width of a class in a circuit of so many edges, as in the diagrams. */
function lookOf(strengthClass, count) {
  const crowding = Math.min(1, (DATA.crowd / Math.max(count, 1)) ** DATA.crowding);
  const visible = ((strengthClass + 0.5) / CLASSES) * crowding;
  const between = ([low, high]) => low + (high - low) * visible;
  return { opacity: between(DATA.opacity), width: between(DATA.pen) };
}

/** The measured sizes that k lies between, or null where k is one of them or beyond them. */
function between(curve, k) {
  const after = curve.findIndex(([size]) => size >= k);
  return after < 1 || curve[after][0] === k ? null : [curve[after - 1][0], curve[after][0]];
}

/** A measured curve at k, interpolated on log k; null where it was not measured. */
function explainedAt(curve, k) {
  for (let i = 0; i < curve.length; i++) {
    const [size, explained] = curve[i];
    if (size === k) return explained;
    if (size > k) {
      if (i === 0) return null;
      const [before, low] = curve[i - 1];
      return low + ((explained - low) * Math.log(k / before)) / Math.log(size / before);
    }
  }
  return null;
}

/** The node that a reader means by a9.h9, 9.9, m3, a2.kv1, input or logits; -1 if the side has none. */
function nodeNamed(side, text) {
  const short = text.trim().toLowerCase();
  const name = short.replace(/^(\d+)\.(\d+)$/, "a$1.h$2");
  return side.names.indexOf(name);
}

/** What a node is, in words. */
function described(side, node) {
  const kind = DATA.kinds[side.kind[node]];
  const layer = side.layer[node];
  if (kind === "input") return "the embeddings";
  if (kind === "logits") return "the output";
  if (kind === "mlp") return `MLP of layer ${layer}`;
  const what = kind === "kv" ? "key/value head" : "attention head";
  return `${what} ${side.head[node]} of layer ${layer}`;
}

/** The name of an edge, as the store has it. */
function edgeName(side, edges, e) {
  const slot = DATA.slots[edges.slot[e]];
  return `${side.names[edges.src[e]]}->${side.names[edges.dst[e]]}${slot && `<${slot}>`}`;
}

/** A score with four figures. */
function figures(score) {
  return String(Number(score.toPrecision(4)));
}

function unpacked(text, Numbers) {
  return new Numbers(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
}
