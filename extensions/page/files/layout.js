// Where everything is drawn: GPUs above, optical switches between, packet switches below; grids, rings and
// interconnects in their own shape. Positions in pixels of the drawing.

import { nodeOf, portOf } from "./light.js";

export const GPU = 46, GAP = 10, LEVEL = 150, PORT = 22;
/** Fabrics of more GPUs are folded by switch. */
export const MOST_IN_DETAIL = 64;
const ACROSS = 10, MOST_FOLDS = 64;

/** GPUs in the order of their servers, and the server of each. */
export function servers(fabric) {
  const found = new Map();
  for (const gpu of fabric.gpus) {
    if (!found.has(gpu.server)) found.set(gpu.server, []);
    found.get(gpu.server).push(gpu.name);
  }
  return found;
}

/** All that is plugged: links, and the cables of averagers. */
export const cables = (fabric) => [
  ...fabric.links,
  ...(fabric.averagers || []).flatMap((one) => one.cables.map((ends) => ({ ends, rate_bps: null }))),
];

/** How many links each node is from the GPUs. */
function levels(fabric) {
  const level = new Map(fabric.gpus.map((gpu) => [gpu.name, 0]));
  const joined = new Map();
  for (const link of cables(fabric)) {
    const [a, b] = link.ends.map((end) => nodeOf(portOf(end)));
    joined.set(a, [...(joined.get(a) || []), b]);
    joined.set(b, [...(joined.get(b) || []), a]);
  }
  const todo = [...level.keys()];
  while (todo.length) {
    const node = todo.shift();
    for (const other of joined.get(node) || []) {
      if (level.has(other)) continue;
      level.set(other, level.get(node) + 1);
      todo.push(other);
    }
  }
  for (const one of [...fabric.packet_switches, ...fabric.optical_switches]) {
    if (!level.has(one.name)) level.set(one.name, 1);
  }
  return { level, joined };
}

function row(names, x, width, gap = GAP) {
  let at = 0;
  for (const name of names) {
    x.set(name, at + width(name) / 2);
    at += width(name) + gap;
  }
  return at - gap;
}

/** Positions of GPUs, switches and ports of a fabric that is drawn in layers. */
function layered(fabric) {
  const { level, joined } = levels(fabric);
  const x = new Map(), y = new Map(), ports = new Map(), size = new Map();
  let at = 0;
  // A few GPUs have the room of a dozen.
  const gap = Math.max(GAP, Math.min(34, (640 - GPU * fabric.gpus.length) / (fabric.gpus.length + 1)));
  // Of many, the GPUs of a server stand below each other, up to four.
  const rows = fabric.gpus.length > 16 ? 4 : 1;
  for (const group of servers(fabric).values()) {
    const tall = Math.min(rows, group.length);
    group.forEach((gpu, index) => {
      x.set(gpu, at + Math.floor(index / tall) * (GPU + gap) + GPU / 2);
      y.set(gpu, (index % tall) * (GPU + 2) - (rows - 1) * (GPU + 2));
    });
    at += Math.ceil(group.length / tall) * (GPU + gap) + (group.length > 1 ? 2 : 1) * GAP;
  }
  const plugged = Math.max(...fabric.optical_switches.map((one) => one.size), 0) / 2;
  const deepest = Math.max(0, ...level.values());
  const width = Math.max(at - gap - 2 * GAP, 240), deepness = Math.max(LEVEL, 0.2 * width, (0.6 * width) / (deepest || 1));
  const pitch = plugged > 40 ? Math.max(11, Math.min(PORT, (1.1 * width) / plugged)) : PORT;
  for (let depth = 1; depth <= deepest; depth++) {
    const names = [...level].filter(([, of]) => of === depth).map(([name]) => name);
    const centre = (name) => {
      const near = (joined.get(name) || []).filter((other) => x.has(other)).map((other) => x.get(other));
      return near.length ? near.reduce((a, b) => a + b) / near.length : width / 2;
    };
    names.sort((a, b) => centre(a) - centre(b) || a.localeCompare(b, "en", { numeric: true }));
    const wide = (name) => {
      const plugs = cables(fabric).filter((link) => link.ends.some((end) => nodeOf(end) === name)).length;
      return Math.max(80, (plugs / 2) * PORT + 20);
    };
    const total = names.reduce((sum, name) => sum + wide(name), 0);
    const gap = names.length > 1 ? Math.max(24, (width - total) / (names.length - 1 || 1)) : 0;
    const local = new Map(), full = row(names, local, wide, gap);
    for (const name of names) {
      x.set(name, local.get(name) + (width - full) / 2);
      y.set(name, depth * deepness);
      size.set(name, { w: wide(name), h: Math.max(44, 0.04 * width), font: Math.max(11, 0.014 * width) });
    }
  }
  for (const optical of fabric.optical_switches) placePorts(fabric, optical, x, y, size, ports, pitch);
  return { x, y, size, ports, width };
}

/** Ports of an optical switch: what leads up on its upper edge, what leads down on its lower one. */
function placePorts(fabric, optical, x, y, size, ports, pitch) {
  const up = [], down = [];
  for (const link of fabric.links) {
    link.ends.map(portOf).forEach((end, index, ends) => {
      if (nodeOf(end) !== optical.name) return;
      const other = nodeOf(ends[1 - index]);
      ((y.get(other) ?? 0) < y.get(optical.name) ? up : down).push({ port: end, other });
    });
  }
  const body = { w: Math.max(90, Math.max(up.length, down.length) * pitch + 16), h: Math.max(74, up.length * 2.2) };
  size.set(optical.name, body);
  const edge = (group, dy) => {
    group.sort((a, b) => (x.get(a.other) ?? 0) - (x.get(b.other) ?? 0) || number(a.port) - number(b.port));
    const step = body.w / (group.length + 1);
    group.forEach((one, index) => {
      ports.set(one.port, { x: x.get(optical.name) - body.w / 2 + step * (index + 1), y: y.get(optical.name) + dy });
    });
  };
  edge(up, -body.h / 2);
  edge(down, body.h / 2);
}

const number = (port) => Number(port.split(":")[1]);

/** A grid: rows and columns of GPUs, row switches at the right, column switches below. */
function gridded(fabric, grid, found, top) {
  const step = 110;
  if (grid.rows === 1) {
    // One switch for all stands below them.
    const below = { x: ((grid.columns - 1) * step) / 2, y: top + 1.6 * step };
    grid.nodes.forEach((name, index) => found.x.set(name, index * step) && found.y.set(name, top));
    grid.row_switches.forEach((name) => found.x.set(name, below.x) && found.y.set(name, below.y) && found.size.set(name, { w: Math.max(120, grid.columns * 40), h: 50 }));
    return below.y + 80;
  }
  grid.nodes.forEach((name, index) => {
    found.x.set(name, (index % grid.columns) * step);
    found.y.set(name, top + Math.floor(index / grid.columns) * step);
  });
  grid.row_switches.forEach((name, index) => {
    found.x.set(name, grid.columns * step + 30);
    found.y.set(name, top + index * step);
    found.size.set(name, { w: 84, h: 36 });
  });
  grid.column_switches.forEach((name, index) => {
    found.x.set(name, index * step);
    found.y.set(name, top + grid.rows * step + 20);
    found.size.set(name, { w: 84, h: 36 });
  });
  return top + (grid.rows + 1) * step + 60;
}

/** A ring: GPUs outside, the switch of each inside. */
function ringed(nodes, inner, found, top) {
  const radius = Math.max(130, nodes.length * 14), centre = top + radius + 60;
  nodes.forEach((name, index) => {
    const angle = (2 * Math.PI * index) / nodes.length - Math.PI / 2;
    const at = (r) => [radius + r * Math.cos(angle), centre + r * Math.sin(angle)];
    [[name, radius + 60], [inner[index], radius - 10]].forEach(([one, r]) => {
      if (one === undefined) return;
      const [px, py] = at(r);
      found.x.set(one, px);
      found.y.set(one, py);
      if (one !== name) found.size.set(one, { w: 40, h: 26 });
    });
  });
  return centre + radius + 100;
}

/** Whether light alone joins its GPUs, each with an O-NIC: drawn as a ring, its switches within. */
export const isDivided = (fabric) => fabric.onics.length > 0 && fabric.optical_switches.length > 0 && !fabric.packet_switches.length;

/** The switch of each GPU beside it, where each has its own; else all of them in the middle. */
function circled(fabric, found) {
  const gpus = fabric.gpus.map((gpu) => gpu.name), switches = fabric.optical_switches.map((one) => one.name);
  const own = gpus.map((gpu) => fabric.links.flatMap(({ ends }) => (ends.some((end) => nodeOf(portOf(end)) === gpu) ? ends.map((end) => nodeOf(portOf(end))) : [])).find((name) => name !== gpu));
  if (new Set(own).size === gpus.length) return ringed(gpus, own, found, 0);
  const bottom = ringed(gpus, [], found, 0), middle = { x: found.x.get(gpus[0]), y: (bottom - 100 + 60) / 2 - 30 };
  switches.forEach((name, index) => {
    found.x.set(name, middle.x);
    found.y.set(name, middle.y + (index - (switches.length - 1) / 2) * 40);
    found.size.set(name, { w: 84, h: 28 });
  });
  return bottom;
}

/** Whether nothing is plugged port by port: an interconnect that is described as a whole. */
export const isWhole = (fabric) => !cables(fabric).length && !fabric.grids.length && !fabric.rings.length;

/** Positions of all that is drawn of a take: `x`, `y` and `size` by node, `ports` of optical switches. */
export function placed(take) {
  const fabric = take.fabric;
  const shaped = new Set([...fabric.grids, ...fabric.rings].flatMap((one) => one.nodes));
  if (shaped.size) {
    const found = { x: new Map(), y: new Map(), size: new Map(), ports: new Map() };
    let top = 0;
    for (const grid of fabric.grids) top = gridded(fabric, grid, found, top);
    for (const ring of fabric.rings) top = ringed(ring.nodes, ring.switches, found, top);
    const rest = { ...fabric, gpus: fabric.gpus.filter((gpu) => !shaped.has(gpu.name)) };
    const left = new Set([...found.x.keys()]);
    rest.optical_switches = fabric.optical_switches.filter((one) => !left.has(one.name));
    if (rest.gpus.length || rest.optical_switches.length || rest.packet_switches.length) {
      const below = layered(rest);
      for (const [name, x] of below.x) if (!left.has(name)) found.x.set(name, x), found.y.set(name, below.y.get(name) + top);
      for (const [name, one] of below.size) if (!left.has(name)) found.size.set(name, one);
      for (const [port, at] of below.ports) found.ports.set(port, { x: at.x, y: at.y + top });
    }
    return found;
  }
  if (isDivided(fabric)) {
    const found = { x: new Map(), y: new Map(), size: new Map(), ports: new Map() };
    circled(fabric, found);
    return found;
  }
  if (isWhole(fabric)) {
    const found = { x: new Map(), y: new Map(), size: new Map(), ports: new Map() };
    const bottom = ringed(fabric.gpus.map((gpu) => gpu.name), [], found, 0);
    found.middle = { x: found.x.get(fabric.gpus[0].name), y: (bottom - 100) / 2 };
    return found;
  }
  return layered(fabric);
}

/** Names in rows of at most `across`, each `wide` and `tall`; `up`: further rows above the first. */
function rows(names, across, wide, tall, found, y, up) {
  const each = Math.ceil(names.length / Math.ceil(names.length / across));
  names.forEach((name, index) => {
    found.x.set(name, ((index % each) + 0.5) * wide);
    found.y.set(name, y + (up ? -1 : 1) * Math.floor(index / each) * tall);
  });
  return Math.min(each, names.length) * wide;
}

/** Positions where GPUs are folded into `groups`, up to ten in a row; those of the `open` ones stand in rows above. */
export function placedFolded(fabric, groups, open) {
  const found = { x: new Map(), y: new Map(), size: new Map(), ports: new Map() }, { level } = levels(fabric);
  const names = [...groups.keys()], closed = names.filter((name) => !open.has(name)).map((name) => `fold ${name}`);
  const width = Math.max(400, rows(closed, ACROSS, 220, 130, found, 0, true));
  let top = -130 * Math.ceil(closed.length / ACROSS) - GPU;
  for (const name of names.filter((one) => open.has(one))) {
    const gpus = groups.get(name), across = Math.max(8, Math.floor(width / (GPU + 6)));
    gpus.forEach((gpu, index) => {
      found.x.set(gpu, ((index % across) + 0.5) * (GPU + 6));
      found.y.set(gpu, top - Math.floor(index / across) * (GPU + 6));
    });
    top -= Math.ceil(gpus.length / across) * (GPU + 6) + 20;
  }
  const optical = new Set(fabric.optical_switches.map((one) => one.name));
  const byLevel = Map.groupBy([...fabric.optical_switches, ...fabric.packet_switches].map((one) => one.name), (name) => level.get(name) ?? 1);
  let y = 0;
  for (const [, of] of [...byLevel].sort(([a], [b]) => a - b)) {
    of.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    const step = width / Math.ceil(of.length / Math.ceil(of.length / ACROSS));
    rows(of, ACROSS, step, 90, found, (y += Math.max(200, width / 7)), false);
    for (const name of of) found.size.set(name, optical.has(name) ? { w: step * 0.9, h: 90 } : { w: Math.min(190, step * 0.85), h: 60, font: 26 });
    y += 90 * (Math.ceil(of.length / ACROSS) - 1);
  }
  if (!byLevel.size) found.middle = { x: width / 2, y: Math.max(300, width / 5) };
  return found;
}

/** GPUs by the packet switch that they are on at the begin, else by server, or where these are too many by
 *  sixteenths of them all: what is folded to one node. */
export function folds(take, gpuPorts) {
  const on = new Map([...gpuPorts].map(([port, gpu]) => [gpu, nodeOf(port)]));
  const of = new Map(take.fabric.gpus.map((gpu) => [gpu.name, gpu.server]));
  const found = Map.groupBy(take.fabric.gpus.map((gpu) => gpu.name), (name) => on.get(name) || of.get(name));
  if (found.size <= MOST_FOLDS) return found;
  const size = Math.ceil(take.fabric.gpus.length / 16), names = take.fabric.gpus.map((gpu) => gpu.name);
  return Map.groupBy(names, (_, index) => { const at = index - (index % size); return `${names[at]} to ${names[Math.min(at + size, names.length) - 1]}`; });
}
