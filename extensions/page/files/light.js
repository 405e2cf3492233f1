// State of a fabric at a moment: which light is lit, which is dark, which jobs run, what is down. Pure.
// A take (extensions/page/recorded.py, live.js) is read from its begin; events are those of GET /v1/events.

const key = (ingress, wavelength) => (wavelength == null ? `${ingress}` : `${ingress}λ${wavelength}`);
export const nodeOf = (port) => port.split(":")[0];
export const portOf = (name) => (name.includes(":") ? name : `${name}:0`);

/** What is plugged where: `other` end and rate of the link at every port, and each optical switch by name. */
export function plugged(fabric) {
  const at = new Map();
  for (const link of fabric.links) {
    const [a, b] = link.ends.map(portOf);
    at.set(a, { other: b, rate_bps: link.rate_bps });
    at.set(b, { other: a, rate_bps: link.rate_bps });
  }
  const named = (group) => new Map(group.map((one) => [one.name, one]));
  return {
    at,
    gpus: named(fabric.gpus),
    optical: named(fabric.optical_switches),
    packet: named(fabric.packet_switches),
    scale: fabric.scale || 1,
  };
}

/** An event as single moments: light that goes dark, light that is lit, and everything else at once. */
export function moments(event) {
  const found = [{ t: event.t, event }];
  // Of one that failed, only the switches know what stands.
  if (event.event !== "circuits" || (event.outcome && event.outcome !== "done")) return found;
  for (const [name, change] of Object.entries(event.changes || {})) {
    for (const xc of change.remove) found.push({ t: xc.t_dark ?? event.t, remove: xc, switch: name });
    for (const xc of change.add) {
      if (xc.t_dark != null) found.push({ t: xc.t_dark, dark: xc, switch: name });
      found.push({ t: xc.t_lit ?? event.t, add: xc, switch: name });
    }
  }
  return found;
}

/** All moments of a take in their order, `more` among them; removals before additions. */
export function ordered(events, more = []) {
  const rank = (one) => (one.remove ? 0 : one.dark && !one.pairs ? 1 : one.add ? 2 : 3);
  return [...events.flatMap(moments), ...more].sort((x, y) => x.t - y.t || rank(x) - rank(y));
}

export function begin(take) {
  const light = new Map();
  for (const [name, group] of Object.entries(take.light)) {
    light.set(name, new Map(group.map((xc) => [key(xc.ingress, xc.wavelength), xc])));
  }
  return {
    t: -Infinity,
    next: 0,
    light,
    dark: new Map(),
    changed: new Map(),
    jobs: new Map(take.jobs.map((job) => [job.id, { ...job }])),
    down: new Map(take.down || []),
    flows: [],
    paths: new Map(take.paths || []),
    back: take.back || [],
    alarms: new Map(take.alarms || []),
  };
}

/** Let the state after the first `count` moments be the begin of a take that grows; they are forgotten. */
export function rebase(take, count) {
  const state = begin(take);
  for (const moment of take.moments.slice(0, count)) apply(state, moment);
  take.light = Object.fromEntries([...state.light].map(([name, lit]) => [name, [...lit.values()]]));
  take.jobs = [...state.jobs.values()];
  take.down = [...state.down];
  take.alarms = [...state.alarms];
  take.paths = [...state.paths];
  take.back = state.back;
  take.moments = take.moments.slice(count);
  take.rebased = (take.rebased || 0) + 1;
}

function free(state, name, xc) {
  const lit = state.light.get(name) || new Map();
  for (const [at, other] of lit) {
    const same = other.wavelength == xc.wavelength;
    if (same && (other.ingress === xc.ingress || (xc.egress != null && other.egress === xc.egress))) lit.delete(at);
  }
  state.light.set(name, lit);
  return lit;
}

/** Change the state by one moment. */
export function apply(state, moment) {
  const where = moment.switch;
  if (moment.seen) {
    // All was read anew: what is not there is gone. Of a switch that does not answer, what was lit is taken to stay.
    const read = begin(moment.seen);
    for (const [name, lit] of read.light) state.light.set(name, lit);
    state.dark.clear();
    for (const [id, job] of read.jobs) state.jobs.set(id, job);
    state.down = new Map(read.down);
    state.alarms = read.alarms;
    state.back = read.back;
  } else if (moment.held) {
    state.held = moment.held;
  } else if (moment.pairs) {
    state.paths.set(moment.of, turned(state.paths.get(moment.of), moment));
  } else if (moment.remove) {
    const lit = state.light.get(where);
    const found = lit && lit.get(key(moment.remove.ingress, moment.remove.wavelength));
    if (found && (moment.remove.egress == null || found.egress === moment.remove.egress)) {
      lit.delete(key(moment.remove.ingress, moment.remove.wavelength));
    }
  } else if (moment.dark) {
    free(state, where, moment.dark);
    state.dark.set(`${where}/${key(moment.dark.ingress, moment.dark.wavelength)}`, { ...moment.dark, switch: where });
  } else if (moment.add) {
    const at = key(moment.add.ingress, moment.add.wavelength);
    free(state, where, moment.add).set(at, moment.add);
    state.dark.delete(`${where}/${at}`);
    state.changed.set(`${where}/${at}`, moment.t);
  } else {
    tell(state, moment.event);
  }
}

/** Name of a lightpath from a GPU to a peer. */
export const pathOf = (gpu, peer, wavelength) => `w ${gpu} ${peer} ${wavelength ?? ""}`;

/** Lightpaths between GPUs as they are after a change of them; `came`: since when each has shone. */
function turned(before, { pairs, dark, t }) {
  if (dark) return { pairs, dark, came: before?.came || new Map() };
  return { pairs, dark, came: new Map(pairs.map(([gpu, peer, wavelength]) => [pathOf(gpu, peer, wavelength), before?.came.get(pathOf(gpu, peer, wavelength)) ?? t])) };
}

function tell(state, event) {
  switch (event.event) {
    case "job": {
      const job = state.jobs.get(event.job) || { id: event.job, name: event.name, gpus: [] };
      state.jobs.set(event.job, { ...job, state: event.state, error: event.error, gpus: event.gpus || job.gpus });
      break;
    }
    case "recovered":
      state.jobs.set(event.job, { ...state.jobs.get(event.job), gpus: event.gpus });
      break;
    case "lost":
      state.down.set(event.gpu, event.text || "lost");
      break;
    case "action":
      fault(state, event);
      break;
    case "fault":
      asked(state, event);
      break;
    case "optical_switch":
    case "packet_switch":
      down_or_up(state, event.switch, event);
      break;
    case "onic":
      down_or_up(state, event.gpu, event);
      break;
    case "process":
      down_or_up(state, event.name, event);
      break;
    case "packet_switch_port":
      down_or_up(state, `${event.switch}:${event.port}`, { ...event, text: `port ${event.state}` });
      break;
    case "optical_alarm":
      state.alarms.set(`${event.switch}/${event.kind}/${event.port}`, event);
      break;
    case "optical_alarm_cleared":
      state.alarms.delete(`${event.switch}/${event.kind}/${event.port}`);
      break;
    case "drift":
      state.alarms.set(`${event.switch}/drift`, event);
      break;
    case "drift_over":
      state.alarms.delete(`${event.switch}/drift`);
      break;
    case "flow":
      state.flows.push(event);
      break;
  }
}

function down_or_up(state, name, event) {
  if (event.state === "down") state.down.set(name, event.text || "down");
  else state.down.delete(name);
}

/** Cut links, killed switches and lost GPUs of a scenario's events. */
function fault(state, event) {
  const names = struck(event.target || "");
  const hit = { cut: names, kill: names, lose: names }[event.do];
  if (event.state === "begun" && hit) {
    for (const name of hit) state.down.set(name, `${event.do} by event ${event.name}`);
  } else if (event.state === "ended" && (event.back || event.do === "restore" || event.error)) {
    for (const name of names) state.down.delete(name);
  }
}

/** What a fault puts down: the ports of a link, else what it names. */
export function struck(target) {
  const [kind, ...names] = target.split(" ");
  return kind === "link" ? names.map(portOf) : names;
}

/** A fault that somebody asked for by REST, and its end. */
function asked(state, event) {
  const names = struck(event.target);
  if (event.do === "restore") for (const name of names) state.down.delete(name);
  else for (const name of names) state.down.set(name, `${event.do}, asked for by ${event.who}`);
  if (event.back_after_s != null) state.back = [...state.back, { t: event.t + event.back_after_s, names }];
}

/** The state of a take at `t`; `state` is an earlier one to go on from, if any. `take.moments` is in order. */
export function stateAt(take, t, state) {
  const goesOn = state && state.t <= t && state.of === take && state.rebased === take.rebased;
  const now = goesOn ? state : Object.assign(begin(take), { of: take, rebased: take.rebased });
  while (now.next < take.moments.length && take.moments[now.next].t <= t) apply(now, take.moments[now.next++]);
  now.t = t;
  now.flows = now.flows.filter((flow) => flow.t_end > t);
  for (const { names } of now.back.filter((one) => one.t <= t)) for (const name of names) now.down.delete(name);
  now.back = now.back.filter((one) => one.t > t);
  return now;
}

/** Follow light from an electrical port; the ports that it passes, and whether any cross-connect is dark. */
export function trace(plug, state, source) {
  const path = [source];
  for (let hops = 0; hops < 64; hops++) {
    const link = plug.at.get(path[path.length - 1]);
    if (!link) break;
    path.push(link.other);
    const [name, number] = link.other.split(":");
    const optical = plug.optical.get(name);
    if (!optical || optical.wavelengths != null) break;
    const lit = (state.light.get(name) || new Map()).get(number);
    const soon = lit ? null : state.dark.get(`${name}/${number}`);
    const xc = lit || soon;
    if (!xc) return { path, dark: false, ends: null };
    if (soon) path.dark = true;
    path.push(`${name}:${xc.egress - optical.size}`);
  }
  const end = path[path.length - 1];
  const arrived = path.length > 1 && !plug.optical.has(nodeOf(end));
  return { path, dark: Boolean(path.dark), ends: arrived ? [source, end] : null };
}

/** The job that has each GPU now. */
export function jobsByGpu(state) {
  const found = new Map();
  for (const job of state.jobs.values()) {
    if (["SUCCEEDED", "FAILED", "CANCELLED"].includes(job.state)) continue;
    job.gpus.forEach((gpu, rank) => found.set(gpu, { job, rank }));
  }
  return found;
}

/** Circuits between electrical ports through optical switches, each once, with the job whose GPU is at an end. */
export function circuits(plug, state) {
  const found = [], seen = new Set(), owners = jobsByGpu(state);
  for (const port of plug.at.keys()) {
    if (plug.optical.has(nodeOf(port)) || seen.has(port)) continue;
    const { path, dark, ends } = trace(plug, state, port);
    if (!ends || path.length < 4) continue;
    seen.add(port).add(ends[1]);
    const back = trace(plug, state, ends[1]);
    const gpu = ends.map(nodeOf).find((name) => plug.gpus.has(name));
    found.push({
      ends,
      path,
      dark,
      duplex: Boolean(back.ends && back.ends[1] === port),
      gpu,
      job: gpu ? owners.get(gpu)?.job : undefined,
    });
  }
  return found;
}

/** The GPU lit to, or plugged into, every port of a packet switch. */
export function gpuAtPort(plug, state) {
  const found = new Map();
  for (const [port, link] of plug.at) {
    if (!plug.packet.has(nodeOf(port))) continue;
    const end = plug.optical.has(nodeOf(link.other)) ? trace(plug, state, port).ends?.[1] : link.other;
    if (end && plug.gpus.has(nodeOf(end))) found.set(port, nodeOf(end));
  }
  return found;
}
