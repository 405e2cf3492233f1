// Draws a fabric and its light with cytoscape. What is plugged is made once; what changes is looked up by id.

import cytoscape from "./vendor/cytoscape.js";
import { UNOWNED } from "./colours.js";
import { cables, folds, isDivided, isWhole, placed, placedFolded, servers, GPU, MOST_IN_DETAIL } from "./layout.js";
import { circuits, gpuAtPort, jobsByGpu, nodeOf, pathOf, portOf, stateAt } from "./light.js";
import { STYLE } from "./style.js";

const SHOWN_MOVING_S = 1.2, MOVING_SHARE = 0.05, MOST_CHOICES = 600;
/** A bundle of fibres: of no job's colour where there are several, moving where any is. */
function together(before, { marks, colour, w }) {
  const moved = [before.marks, marks].find((one) => one.includes("moving")) || before.marks;
  return { marks: moved, shown: { colour: before.shown.colour === colour ? colour : UNOWNED, w: Math.max(before.shown.w, w, 3) } };
}

const fibre = (port) => `f ${port}`;
const inside = (a, b) => `x ${[a, b].sort().join(" ")}`;

/** The elements of a take that never change, and which edge each link is drawn as. */
function elements(take, plug, open) {
  const nodes = [], edges = [], edgeOf = new Map(), within = new Map();
  const folded = take.fabric.gpus.length > MOST_IN_DETAIL || take.held ? folds(take, gpuAtPort(plug, stateAt(take, 0))) : new Map();
  const spot = folded.size ? placedFolded(take.fabric, folded, open) : placed(take);
  for (const [name, gpus] of folded) {
    if (open.has(name)) continue;
    const position = { x: spot.x.get(`fold ${name}`), y: spot.y.get(`fold ${name}`) };
    nodes.push({ data: { id: `fold ${name}`, label: "", fold: name, colour: UNOWNED, full: 0 }, position, classes: "fold" });
    for (const gpu of gpus) within.set(gpu, `fold ${name}`);
  }
  for (const [server, gpus] of servers(take.fabric)) {
    const shown = gpus.filter((gpu) => !within.has(gpu));
    if (!shown.length) continue;
    const alone = folded.size || take.fabric.grids.length || take.fabric.rings.length || isWhole(take.fabric) || isDivided(take.fabric);
    if (!alone) nodes.push({ data: { id: `s ${server}`, label: server }, classes: "server" });
    for (const gpu of shown) {
      nodes.push({
        data: { id: gpu, label: gpu, gpu, ...(alone ? {} : { parent: `s ${server}` }) },
        position: { x: spot.x.get(gpu), y: spot.y.get(gpu) },
        classes: "gpu",
      });
    }
  }
  const boxes = [["packet", take.fabric.packet_switches], ["optical", take.fabric.optical_switches], ["averager", take.fabric.averagers || []]];
  for (const [kind, group] of boxes) {
    for (const { name } of group) {
      const size = { font: 11, ...(spot.size.get(name) || { w: 70, h: 40 }) };
      const ports = kind === "optical" && [...spot.ports.keys()].some((port) => nodeOf(port) === name);
      nodes.push({
        data: { id: name, label: name, switch: name, ...size },
        position: { x: spot.x.get(name) ?? 0, y: spot.y.get(name) ?? 0 },
        classes: folded.size ? `${kind} big` : ports ? `optical body${take.fabric.optical_switches.length > 1 ? " many" : ""}` : kind,
      });
    }
  }
  if (!folded.size) {
    for (const [port, position] of spot.ports) {
      const edge = position.y < spot.y.get(nodeOf(port)) ? "port" : "port below";
      nodes.push({ data: { id: port, label: port.split(":")[1], port }, position: { ...position }, classes: edge });
    }
  }
  if (spot.middle) {
    nodes.push({ data: { id: "whole", label: "interconnect,\nnot plugged\nport by port" }, position: spot.middle, classes: "whole" });
    const ends = new Set(take.fabric.gpus.map((gpu) => within.get(gpu.name) || gpu.name));
    for (const end of ends) edges.push({ data: { id: `w ${end}`, source: end, target: "whole", w: 1.5 }, classes: "wire" });
  }
  const shownAt = (port) => (spot.ports.has(port) && !folded.size ? port : within.get(nodeOf(port)) || nodeOf(port));
  for (const link of cables(take.fabric)) {
    const [a, b] = link.ends.map(portOf), [source, target] = [shownAt(a), shownAt(b)];
    const bundle = within.has(nodeOf(a)) || within.has(nodeOf(b)) || folded.size;
    const id = bundle ? `b ${source} ${target}` : fibre(a);
    edgeOf.set(a, id).set(b, id);
    const known = edges.find((edge) => edge.data.id === id);
    if (known) known.data.count += 1;
    else {
      const round = take.fabric.rings.length || isDivided(take.fabric);
      const level = spot.y.get(nodeOf(a)) === spot.y.get(nodeOf(b)) && !bundle && !round;
      edges.push({ data: { id, source, target, ends: [a, b], count: 1, w: 1 }, classes: level ? "fibre level" : "fibre" });
    }
  }
  return { all: [...nodes, ...edges], edgeOf, folded, ports: folded.size ? new Map() : spot.ports };
}

/** The picture of one take in a box of the page. */
export class Picture {
  constructor(box, take, plug, looks, chosen) {
    Object.assign(this, { take, plug, looks, open: new Set(), power: false, byLoad: new Map() });
    this.cy = cytoscape({
      container: box,
      style: STYLE,
      elements: [],
      minZoom: 0.02,
      maxZoom: 4,
      autoungrabify: true,
      boxSelectionEnabled: false,
      pixelRatio: Math.min(2, window.devicePixelRatio || 1),
    });
    this.cy.on("tap", "node, edge", (tapped) => {
      const found = tapped.target.data();
      if (found.fold) this.unfold(found.fold);
      else chosen(found);
    });
    this.build();
    this.sized = new ResizeObserver(() => this.fit());
    this.sized.observe(box);
  }

  build() {
    const made = elements(this.take, this.plug, this.open);
    Object.assign(this, made);
    this.cy.elements().remove();
    this.cy.add(made.all);
    this.lit = new Map();
    this.looked = new Map();
    this.state = null;
    this.fit();
  }

  fit() {
    this.cy.resize();
    this.cy.fit(undefined, 14);
  }

  unfold(name) {
    if (!this.open.delete(name)) this.open.add(name);
    this.build();
    this.show(this.at ?? 0);
  }

  /** Set the look of an element, only where it has changed. */
  look(id, classes, data = {}) {
    const now = classes + JSON.stringify(data);
    if (this.looked.get(id) === now) return;
    this.looked.set(id, now);
    const found = this.cy.getElementById(id);
    if (found.empty()) return;
    const fixed = (found.data("fixed") ?? found.data("fixed", found.classes().join(" ")).data("fixed"));
    found.data(data);
    found.classes(`${fixed} ${classes}`);
  }

  /** Draw the moment `t`. `load(port)`: share of a link's rate that is used at a packet switch's port. */
  show(t, load = () => 0) {
    this.at = t;
    this.state = stateAt(this.take, t, this.state);
    this.cy.startBatch();
    const owners = jobsByGpu(this.state), used = new Map(), now = new Map();
    const [from, to] = this.take.span;
    this.moving_s = this.take.live ? SHOWN_MOVING_S : Math.min(SHOWN_MOVING_S, MOVING_SHARE * (to - from));
    for (const circuit of circuits(this.plug, this.state)) this.circuit(circuit, t, load, used, now);
    this.flows(owners, t, now);
    for (const [id] of this.lit) if (!now.has(id)) this.cy.getElementById(id).remove(), this.looked.delete(id);
    for (const [id, edge] of now) {
      if (!this.lit.has(id)) this.cy.add(edge);
      this.look(id, edge.marks, edge.shown);
    }
    this.lit = now;
    for (const [port, link] of this.plug.at) this.cable(port, link, used, load);
    for (const { cables } of this.take.fabric.averagers) for (const ends of cables) this.averaged(ends.map(portOf), owners);
    for (const one of this.take.fabric.gpus) this.gpu(one.name, owners);
    for (const name of this.folded.keys()) this.fold(name, owners);
    for (const group of [this.take.fabric.packet_switches, this.take.fabric.optical_switches]) {
      for (const { name } of group) this.look(name, this.troubled(name));
    }
    if (this.ports.size) this.powers();
    this.cy.endBatch();
  }

  troubled(name) {
    if (this.state.down.has(name)) return "down";
    return [...this.state.alarms.values()].some((alarm) => alarm.switch === name) ? "alarm" : "";
  }

  circuit({ path, dark, job, duplex }, t, load, used, now) {
    const look = job && this.looks.get(job.id), colour = look ? look.colour : UNOWNED;
    const end = path[path.length - 1], begin = path[0];
    const share = Math.max(load(begin), load(end)), w = dark ? 3 : 1.5 + 6 * Math.min(1, share);
    let moving = false;
    for (let at = 1; at + 1 < path.length; at += 2) {
      const [name, ingress] = path[at].split(":");
      const since = this.state.changed.get(`${name}/${ingress}`);
      if (since != null && t - since < this.moving_s) moving = true;
    }
    const marks = [dark ? "dark" : "lit", moving ? "moving" : "", duplex ? "" : "oneway", job ? "" : "unowned"].join(" ");
    for (let at = 0; at + 1 < path.length; at += 1) {
      if (at % 2 === 0) {
        const id = this.edgeOf.get(path[at]), with_others = used.get(id);
        used.set(id, with_others ? together(with_others, { marks, colour, w }) : { marks, shown: { colour, w } });
      } else if (this.ports.has(path[at]) && this.ports.has(path[at + 1])) {
        const id = inside(path[at], path[at + 1]);
        now.set(id, { data: { id, source: path[at], target: path[at + 1], xc: true, colour, w }, classes: "cross", marks, shown: { colour, w } });
      }
    }
  }

  cable(port, link, used, load) {
    const id = this.edgeOf.get(port);
    const down = this.state.down.has(port) || this.state.down.has(link.other);
    const found = used.get(id);
    if (down) this.look(id, "cut");
    else if (found) this.look(id, found.marks, found.shown);
    else if (this.plug.optical.has(nodeOf(port)) || this.plug.optical.has(nodeOf(link.other))) this.look(id, "unlit", { w: 1 });
    else {
      const share = Math.max(load(port), load(link.other));
      this.look(id, share > 0.9 ? "wire full" : "wire", { w: 1.5 + 8 * Math.min(1, share) });
    }
  }

  /** A cable of an averager, over which the codes of the job of its GPU go. */
  averaged(ends, owners) {
    const jobs = [...owners.values()], only = jobs.every((one) => one.job === jobs[0].job) ? jobs[0] : undefined;
    const own = ends.map((end) => owners.get(nodeOf(end))).find(Boolean) || (ends.every((end) => !this.plug.gpus.has(nodeOf(end))) ? only : undefined), look = own?.job.state === "RUNNING" && this.looks.get(own.job.id);
    this.look(this.edgeOf.get(ends[0]), look ? "lit" : "unlit", look ? { colour: look.colour, w: 3 } : { w: 1 });
  }

  gpu(name, owners) {
    const own = owners.get(name), look = own && this.looks.get(own.job.id);
    const label = own ? `${name}\n${own.job.name}·${own.rank}` : name;
    const marks = this.state.down.has(name) ? "down" : own ? "busy" : "";
    this.look(name, marks, { label, colour: look ? look.colour : UNOWNED });
  }

  fold(name, owners) {
    const gpus = this.folded.get(name), busy = gpus.map((gpu) => owners.get(gpu)).filter(Boolean);
    const names = [...new Set(busy.map((own) => own.job.name))];
    const down = gpus.filter((gpu) => this.state.down.has(gpu)).length;
    const held = this.state.held && (this.state.held[name] || [0, 0]);
    if (held) return this.look(`fold ${name}`, "", { label: `${gpus.length} GPUs · ${name}\n${held[0]} busy, ${held[1]} jobs`, colour: UNOWNED, full: held[0] / gpus.length });
    const label = `${gpus.length} GPUs · ${name}\n${busy.length} busy${names.length ? `, ${names.length > 1 ? `${names.length} jobs` : names[0]}` : ""}${down ? `\n${down} lost` : ""}`;
    const look = names.length === 1 ? this.looks.get(busy[0].job.id) : null;
    return this.look(`fold ${name}`, down ? "down" : "", { label, colour: look ? look.colour : UNOWNED, full: busy.length / gpus.length });
  }

  /** Power at every port with a meter, against what a receiver needs; on demand. */
  powers() {
    const least = this.take.fabric.least_dbm ?? -Infinity;
    for (const port of this.ports.keys()) {
      const [name, number] = port.split(":"), size = this.plug.optical.get(name).size;
      const dbm = this.power ? this.take.power?.[name]?.[Number(number) + size] ?? this.take.power?.[name]?.[number] : null;
      const low = dbm != null && dbm < least;
      this.look(port, dbm == null ? "" : low ? "metered low" : "metered", { label: dbm == null ? number : `${number}\n${low ? "▼" : ""}${dbm.toFixed(low ? 0 : 1)}` });
    }
  }

  /** Light from GPU to GPU on planes, and what O-NICs switch for every flow: an arrow for as long as it is lit. */
  flows(owners, t, now) {
    if (this.folded.size) return;
    for (const { gpu, peer, wavelength } of this.state.flows) this.arrow(owners, now, [gpu, peer, wavelength, 1], "");
    for (const { pairs, dark, came } of this.state.paths.values()) {
      for (const pair of pairs) {
        const since = came.get(pathOf(...pair));
        this.arrow(owners, now, pair, dark ? "dark" : since != null && t - since < this.moving_s && since > this.take.span[0] ? "moving" : "");
      }
    }
  }

  arrow(owners, now, [gpu, peer, wavelength, count], marks) {
    if (this.state.down.has(gpu) || this.state.down.has(peer)) return;
    const id = pathOf(gpu, peer, wavelength), own = owners.get(gpu), look = own && this.looks.get(own.job.id);
    const label = wavelength != null ? `λ${wavelength}` : count > 1 ? `${count} ×` : "";
    const shown = { colour: look ? look.colour : UNOWNED, label, w: Math.min(8, 1.5 + count) };
    now.set(id, { data: { id, source: gpu, target: peer, ...shown }, classes: "flow", marks, shown });
  }

  /** All that can be tapped, for who has no pointer: the name and the id of each. */
  choices() {
    const folds = [...this.folded.keys()].map((name) => [`GPUs of ${name}`, `fold ${name}`]);
    const nodes = [...folds, ...this.cy.nodes(".packet, .optical, .averager, .gpu").map((one) => [one.id(), one.id()])];
    const wires = this.cy.edges(".fibre").filter((one) => one.data("count") === 1).map((one) => [one.data("ends").join(" – "), one.id()]);
    return [...nodes, ...wires].slice(0, MOST_CHOICES);
  }

  /** The name of a fold by its id, open or not. */
  foldOf(id) {
    return id.startsWith("fold ") && this.folded.has(id.slice(5)) ? id.slice(5) : null;
  }

  /** Let what has just changed move; called for every frame. */
  animate(ms) {
    const moving = this.cy.edges(".moving");
    if (moving.nonempty()) moving.style("line-dash-offset", -(ms / 25) % 24);
  }

  destroy() {
    this.sized.disconnect();
    this.cy.destroy();
  }
}
