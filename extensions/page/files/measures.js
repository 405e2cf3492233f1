// What the curves show of a take: rates of ports, links and jobs, and what follows from iterations. Pure.

import { gpuAtPort, nodeOf, portOf, stateAt } from "./light.js";

const WITHIN_S = 1.5;

/** Index of the sample at `t`; -1 outside. */
export function sampleAt(rates, t) {
  const count = rates.times ? rates.times.length : 0;
  if (rates.times) {
    if (!count || t < rates.times[0] - WITHIN_S || t > rates.times[count - 1] + WITHIN_S) return -1;
    let low = 0, high = count - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rates.times[middle] < t) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  const step = Math.floor((t - rates.t0) / rates.step_s);
  const first = Object.values(rates.ports)[0];
  return first && step >= 0 && step < first.rx.length ? step : -1;
}

/** Times of all samples. */
export function times(rates) {
  if (rates.times) return rates.times;
  const first = Object.values(rates.ports)[0];
  return first ? Array.from(first.rx, (_, step) => rates.t0 + step * rates.step_s) : [];
}

const unit = (rates) => rates.unit_bps || 1;

/** Share of a link's rate that is used at a packet switch's port at `t`: the busier direction. */
export function loadAt(take, plug, t) {
  const at = sampleAt(take.rates, t), of = new Map();
  if (at < 0) return () => 0;
  return (port) => {
    if (of.has(port)) return of.get(port);
    const series = take.rates.ports[port], link = plug.at.get(port);
    const bps = series ? Math.max(series.rx[at] || 0, series.tx[at] || 0) * unit(take.rates) : 0;
    const share = link && link.rate_bps ? (bps * plug.scale) / link.rate_bps : 0;
    of.set(port, share);
    return share;
  };
}

/** What a job's GPUs send, as real bits per second: over the ports that their light leads to at each time. */
export function jobRates(take, plug) {
  const at = times(take.rates), found = new Map(take.jobs.map((job) => [job.id, new Array(at.length).fill(0)]));
  const turns = [-Infinity, ...take.moments.filter((one) => one.add || one.remove || one.dark || one.event?.event === "job").map((one) => one.t)];
  let state, owners, until = -Infinity, next = 0;
  for (let step = 0; step < at.length; step++) {
    if (at[step] >= until) {
      state = stateAt(take, at[step], state);
      owners = [...gpuAtPort(plug, state)].map(([port, gpu]) => [take.rates.ports[port], jobOf(state, gpu)]).filter(([series, job]) => series && job);
      while (next < turns.length && turns[next] <= at[step]) next++;
      until = turns[next] ?? Infinity;
    }
    for (const [series, job] of owners) {
      if (!found.has(job)) found.set(job, new Array(at.length).fill(0));
      found.get(job)[step] += (series.rx[step] || 0) * unit(take.rates) * plug.scale;
    }
  }
  return found;
}

function jobOf(state, gpu) {
  for (const job of state.jobs.values()) if (job.gpus.includes(gpu)) return job.id;
  return undefined;
}

/** Both directions of the link at a packet switch's port, real bits per second; the greater at each time. */
export function linkRate(take, plug, port) {
  const series = take.rates.ports[port];
  if (!series) return null;
  return series.rx.map((rx, step) => Math.max(rx, series.tx[step]) * unit(take.rates) * plug.scale);
}

/** Links between packet switches that are plugged fixed, by the port at one end. */
export function trunks(take) {
  const packet = new Set(take.fabric.packet_switches.map((one) => one.name));
  return take.fabric.links
    .map((link) => link.ends.map(portOf))
    .filter((ends) => ends.every((end) => packet.has(nodeOf(end))));
}

/** The shortest time in which a ring's all-reduce can be done over the GPUs' own links, emulated seconds. */
export function idealSeconds(take, plug, job) {
  const size = job.gpus.length;
  const rates = job.gpus.map((gpu) => plug.at.get(`${gpu}:0`)?.rate_bps).filter(Boolean);
  if (!job.gradient_bytes || size < 2 || !rates.length) return null;
  return (2 * (size - 1) * job.gradient_bytes * 8) / (size * (Math.min(...rates) / plug.scale));
}

/** Values of a job's iterations at their ends: `time`, `share` of the GPUs' time, all-reduce over `ideal`. */
export function ofLaps(take, plug, job) {
  const laps = take.laps[job.id];
  if (!laps) return { at: [], time: [], share: [], ideal: [] };
  const best = idealSeconds(take, plug, job);
  const span = laps.begin.map((begin, i) => laps.end[i] - begin);
  return {
    at: laps.end,
    time: span,
    share: laps.compute_s.map((s, i) => (100 * s) / span[i]),
    ideal: best ? laps.allreduce_s.map((s) => s / best) : laps.allreduce_s.map(() => null),
  };
}
