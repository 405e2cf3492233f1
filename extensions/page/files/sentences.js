// Events as sentences, and what kind of mark each makes on the curves.

const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const list = (names) => (names || []).join(", ");
export const seconds = (s) => {
  const size = Math.abs(s);
  if (size >= 100) return `${s.toFixed(0)} s`;
  if (size >= 1) return `${s.toFixed(2)} s`;
  return size >= 0.001 ? `${(s * 1e3).toFixed(size >= 0.1 ? 0 : 1)} ms` : `${(s * 1e6).toFixed(0)} µs`;
};
/** Seconds with as many decimals as a thousandth of the span needs, two at least. */
export const exact = (t, [from, to]) => t.toFixed(Math.min(9, Math.max(2, Math.ceil(-Math.log10((to - from || 1) / 1000)))));
export const rate = (bps) => {
  for (const [unit, size] of [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6], ["kbit/s", 1e3]]) {
    if (bps >= size) return `${(bps / size).toFixed(bps / size >= 100 ? 0 : 1)} ${unit}`;
  }
  return `${bps.toFixed(0)} bit/s`;
};

/** Longest time that light of a change was dark, seconds; null where no switch tells it. */
export function darkSeconds(event) {
  const times = Object.values(event.changes || {}).flatMap((change) =>
    change.add.filter((xc) => xc.t_dark != null && xc.t_lit != null).map((xc) => xc.t_lit - xc.t_dark),
  );
  return times.length ? Math.max(...times) : null;
}

function circuits(event) {
  const changes = Object.values(event.changes || {});
  const count = (what) => changes.reduce((sum, change) => sum + change[what].length, 0);
  const added = event.added ?? count("add"), removed = event.removed ?? count("remove");
  const parts = [`${plural(added, "cross-connect")} lit`];
  if (removed) parts.push(`${removed} removed`);
  if (event.kept) parts.push(`${event.kept} kept`);
  const dark = darkSeconds(event);
  const said = `Light changed on ${list(Object.keys(event.changes || {})) || "no switch"}: ${parts.join(", ")}`;
  const how = event.outcome && event.outcome !== "done" ? `; ${event.outcome}: ${event.problems?.[0] ?? ""}` : "";
  return said + (dark == null ? "" : `, dark for ${seconds(dark)}`) + (event.who ? `, by ${event.who}` : "") + how;
}

function action(event) {
  const what = `${event.do} ${event.target || ""}`.trim();
  if (event.state === "begun") return `Event ${event.name}: ${what}`;
  if (event.error) return `Event ${event.name}: ${what} failed: ${event.error}`;
  const moves = (event.moves || []).map((move) => `${move.gpu} from ${move.from} to ${move.to}`);
  const moved = event.fibres_moved == null ? "" : `, ${plural(event.fibres_moved, "fibre")} moved: ${moves.join("; ")}`;
  return `Event ${event.name}: ${what} is ${event.back ? "over" : "done"}${moved}`;
}

const upOrDown = (what) => (event) =>
  `${what} ${event.switch ?? event.gpu ?? event.name ?? ""} is ${event.state}${event.text ? `: ${event.text}` : ""}`;

const SAID = {
  job: (e) => `Job ${e.name} is ${e.state}${e.error ? `: ${e.error}` : ""}`,
  job_clean: (e) => `GPUs ${list(e.gpus)} are free again`,
  lost: (e) => `Job ${e.job} lost rank ${e.rank} on ${e.gpu}${e.text ? `: ${e.text}` : ""}`,
  recovered: (e) => `Job ${e.job} goes on with iteration ${e.iteration} on ${list(e.gpus)}`,
  circuits,
  action,
  regroup: (e) =>
    `Regroup ${e.regroup} is ${e.state}, ${plural(e.fibres_moved ?? 0, "fibre")} to move${e.error ? `: ${e.error}` : ""}`,
  plane: (e) => `Light of job ${e.job} on ${e.plane} is ${e.state}${e.error || e.text ? `: ${e.error || e.text}` : ""}`,
  light: (e) => `Light of job ${e.job} on ${e.place} was divided anew, dark for ${seconds(e.dark_s ?? 0)}`,
  optical_switch: upOrDown("Optical switch"),
  packet_switch: upOrDown("Packet switch"),
  packet_switch_port: (e) => `Port ${e.port} of ${e.switch}, to ${e.peer}, is ${e.state}`,
  packet_switch_alarm: (e) => `Packet switch ${e.switch}: ${e.text}`,
  packet_switch_light: (e) => `Light at ${plural(e.ports?.length ?? 0, "port")} of ${e.switch} has changed`,
  optical_alarm: (e) => `Alarm of ${e.switch}${e.port == null ? "" : `, port ${e.port}`}: ${e.text}`,
  optical_alarm_cleared: (e) => `Alarm ${e.kind} of ${e.switch}${e.port == null ? "" : `, port ${e.port}`} is over`,
  drift: (e) => `${e.switch} is not as it was set: ${e.text}`,
  drift_over: (e) => `${e.switch} is as it was set again${e.text ? `: ${e.text}` : ""}`,
  flow_drift: (e) => `Flow table of ${e.switch} is not as it was set: ${e.text}`,
  flows_mended: (e) => `Flow table of ${e.switch} was put right: ${plural(e.changes ?? 0, "change")}`,
  onic: upOrDown("O-NIC of"),
  fault: (e) => `Fault asked for: ${e.do} ${e.target}${e.back_after_s == null ? "" : `, back after ${seconds(e.back_after_s)}`}, by ${e.who}`,
  agent: (e) => `Server agent is ${e.state}${e.text ? `: ${e.text}` : ""}`,
  controller: (e) => `Controller is ${e.state}`,
  process: (e) => `${e.text}${e.state === "up" ? ` is back after ${seconds(e.away_s ?? 0)}` : ""}`,
  gpus_announced: (e) => `GPUs ${list(e.gpus)} were announced to the network`,
  late: (e) => e.text,
  flow: (e) => `Light from ${e.gpu} to ${e.peer}${e.wavelength == null ? "" : ` on λ${e.wavelength}`} for ${seconds(e.t_end - e.t)}`,
};

export const sentence = (event) => (SAID[event.event] ? SAID[event.event](event) : event.event.replaceAll("_", " "));

/** What a mark means: `light`, `fault`, `retry`, `job`; null for no mark. */
export function markOf(event) {
  switch (event.event) {
    case "circuits":
    case "light":
      return event.problems?.length ? "fault" : "light";
    case "plane":
      return event.state === "failed" ? "fault" : "light";
    case "recovered":
    case "drift_over":
    case "flows_mended":
      return "retry";
    case "fault":
      return event.do === "restore" ? "retry" : "fault";
    case "lost":
    case "drift":
    case "flow_drift":
    case "optical_alarm":
    case "packet_switch_alarm":
    case "late":
      return "fault";
    case "action":
      return event.state === "begun" ? (event.do === "regroup" || event.do === "circuits" ? "light" : "fault") : null;
    case "optical_switch":
    case "packet_switch":
    case "packet_switch_port":
    case "onic":
    case "agent":
    case "process":
      return event.state === "down" ? "fault" : "retry";
    case "job":
      return event.state === "FAILED" || event.state === "RECOVERING" ? "fault" : "job";
    default:
      return null;
  }
}

/** Names that a filter can find an event by: its job, its switches, who asked. */
export function subjects(event) {
  const named = event.event === "fault" ? event.target.split(" ").slice(1).map((name) => name.split(":")[0]) : [];
  const switches = [event.switch, ...named, ...Object.keys(event.changes || {}), ...(event.switches || [])];
  return {
    job: event.job && (event.name || event.job),
    switches: switches.filter(Boolean),
    who: event.who,
  };
}
