// Hands that break a lab: links, GPUs and switches by the lab's fault service, and what an emulated optical
// switch does wrong. Each has a plan that says what it strikes.

import { jobsByGpu, nodeOf, portOf, trace } from "./light.js";

export const FAULTS = {
  deny: "refuses the next writes", half: "makes the first half of a write, then refuses", "lose-reply": "carries a write out and does not reply",
  drop: "makes half of a write and ends the connection", slow: "tunes light late", "never-tunes": "never tunes new light", ghost: "shows light that is not there",
  vanish: "loses new light after a while", "port-failed": "a port is broken",
};
/** What can be broken, by what is done to it. */
const DOES = { "link": "cut", "gpu": "lose", "switch": "kill" };
export const WHAT = { link: "Cut a link", gpu: "Lose a GPU", switch: "Kill a switch" };

/** Targets of a kind, as the fault service calls them. */
export function targets(kind, fabric) {
  if (kind === "link") return fabric.links.map((link) => `link ${link.ends.join(" ")}`);
  if (kind === "gpu") return fabric.gpus.map((gpu) => `gpu ${gpu.name}`);
  return [...fabric.packet_switches, ...fabric.optical_switches].map((one) => `switch ${one.name}`);
}

/** Jobs whose ranks or light a target has, each in words. */
function struck(target, plug, state) {
  const [kind, ...names] = target.split(" "), owners = jobsByGpu(state);
  const own = (gpu) => (owners.has(gpu) ? [`job ${owners.get(gpu).job.name}, rank ${owners.get(gpu).rank} on ${gpu}`] : []);
  if (kind === "gpu") return own(names[0]);
  const hit = (port) => names.includes(port) || names.map(portOf).includes(port) || (kind === "switch" && names.includes(nodeOf(port)));
  return [...plug.gpus.keys()].filter((gpu) => trace(plug, state, portOf(gpu)).path.some(hit)).flatMap(own);
}

/** What a fault of the lab strikes, and how it is asked for. */
export function labFaultPlan(api, target, back, plug, state) {
  const does = DOES[target.split(" ")[0]], after = Number(back);
  if (back && !(after >= 0)) throw new Error(`${back}: not a number of seconds`);
  const jobs = struck(target, plug, state);
  const body = { do: does, target, ...(back ? { back_after_s: after } : {}) };
  return {
    title: `${does} ${target}`,
    lines: [
      jobs.length ? `Strikes ${jobs.join("; ")}` : "No job has a rank or light there now",
      does === "lose" ? "Its worker is killed and its links are cut; the job fails, or goes on as it was submitted to" : "",
      does === "kill" ? "A packet switch goes down with its rules; light of an optical one stays, but nobody can change it" : "",
      back ? `It is back after ${after} s` : "It lasts until it is restored",
    ],
    go: () => api.call("POST", "/v1/faults", body),
  };
}

export async function restorePlan(api, target) {
  return { title: `restore ${target}`, lines: ["What was broken there works again; a killed worker does not come back"], go: () => api.call("POST", "/v1/faults", { do: "restore", target }) };
}

export function faultPlan(api, name, kind, port) {
  const body = { kind, ...(kind === "port-failed" ? { port: Number(port) } : { count: 1 }) };
  return {
    title: `Fault ${kind} of ${name}`,
    lines: [`The emulated switch ${FAULTS[kind]}${kind === "port-failed" ? `: port ${port}` : ", once"}`, "It stays until it has acted, or is cleared"],
    go: () => api.call("POST", `/v1/optical-switches/${name}/faults`, body),
  };
}

export function clearPlan(api, name) {
  return { title: `Clear all faults of ${name}`, lines: ["What they broke works again"], go: () => api.call("DELETE", `/v1/optical-switches/${name}/faults`) };
}
