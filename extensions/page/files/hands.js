// Hands in the lab: light and remove circuits, regroup, inject faults. What it would do is shown first and asked
// for once more; all goes by the public REST API.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { clearPlan, faultPlan, FAULTS, labFaultPlan, restorePlan, targets, WHAT } from "./faults.js";
import { nodeOf, stateAt } from "./light.js";
import { seconds } from "./sentences.js";

/** How often a regrouping that is under way is asked for, and for how long. */
const POLL_MS = 300, LONGEST_S = 120;

const same = (pair, a, b) => pair.map(full).sort().join() === [a, b].map(full).sort().join();
const full = (port) => (port.includes(":") ? port : `${port}:0`);
const named = (xc) => `${xc.ingress} → ${xc.egress}`;

/** The circuits that stand once `a`–`b` is lit or removed; circuits that use its ports give way. */
function changed(circuits, a, b, light) {
  const others = circuits.filter((pair) => (light ? !pair.map(full).some((end) => end === full(a) || end === full(b)) : !same(pair, a, b)));
  return light ? [...others, [a, b]] : others;
}

/** Longest time that the light of some switches can be dark, seconds, as their profiles say. */
async function darkness(api, plans) {
  const moved = Object.entries(plans).filter(([, plan]) => plan.add.length);
  const timings = await Promise.all(moved.map(([name]) => api.get(`/v1/optical-switches/${name}`)));
  return Math.max(0, ...timings.map((one) => one.timing.dark.most_s));
}

async function circuitPlan(api, a, b, light) {
  const standing = (await api.get("/v1/circuits")).circuits.filter((one) => one.duplex).map((one) => one.ends);
  const wanted = changed(standing, a, b, light);
  if (!light && wanted.length === standing.length) throw new Error(`no circuit joins ${a} and ${b}`);
  const found = await api.call("PUT", "/v1/circuits", { circuits: wanted, dry_run: true });
  const plans = Object.fromEntries(Object.entries(found.optical_switches).map(([name, one]) => [name, one.plan]));
  const gone = standing.filter((pair) => !wanted.some((other) => same(pair, ...other)));
  const dark = await darkness(api, plans);
  return {
    title: `${light ? "Light" : "Remove"} ${a} – ${b}`,
    lines: [
      ...Object.entries(plans).map(([name, plan]) => `${name}: removes ${plan.remove.map(named).join(", ") || "nothing"}; lights ${plan.add.map(named).join(", ") || "nothing"}; keeps ${plan.keep.length}`),
      gone.length ? `Goes dark: ${gone.map((pair) => pair.join(" – ")).join(", ")}` : "No circuit goes dark for good",
      dark ? `New light is dark for at most ${seconds(dark)}` : "",
    ],
    go: () => api.call("PUT", "/v1/circuits", { circuits: wanted, dry_run: false }),
  };
}

async function regroupPlan(api, jobs) {
  const body = jobs.length ? { jobs } : {};
  const found = await api.call("POST", "/v1/regroup", { ...body, dry_run: true });
  const { plan } = found;
  const changes = Object.fromEntries(Object.entries(plan.cross_connects).filter(([, one]) => one.add.length));
  const dark = await darkness(api, changes);
  return {
    title: `Regroup ${found.jobs.length} job${found.jobs.length === 1 ? "" : "s"}`,
    lines: [
      plan.moves.length ? `Moves ${plan.moves.map((move) => `${move.gpu} from ${move.from} to ${move.to}`).join("; ")}` : "Nothing moves: it is as good as it can be",
      `${plan.stay_lit.length} circuits are kept and stay lit`,
      dark ? `What moves is dark for at most ${seconds(dark)}` : "",
      ...plan.predicted.filter((one) => one.before_s && one.after_s).map((one) => `Job ${one.job}: an iteration takes ${seconds(one.before_s)} now, ${seconds(one.after_s)} then`),
      ...(found.problems || []),
    ],
    go: () => api.call("POST", "/v1/regroup", { ...body, dry_run: false }),
    idle: !plan.moves.length,
  };
}

const ended = (found) => found?.problems?.[0] || found?.error || (found?.state === "FAILED" ? "failed" : "done");

/** How a regrouping ended, in words; `alive()`: whether somebody waits for that. */
async function settled(api, { id }, alive) {
  for (const deadline = performance.now() + 1e3 * LONGEST_S; alive() && performance.now() < deadline; ) {
    await new Promise((go) => setTimeout(go, POLL_MS));
    try {
      const found = await api.get(`/v1/regroup/${id}`);
      if (found.state !== "APPLYING") return ended(found);
    } catch (failure) {
      // A controller that is away comes back; one that answers knows no more.
      if (failure.status) return failure.message;
    }
  }
  return `not over after ${LONGEST_S} s`;
}

function Plan({ plan, busy, done, cancel }) {
  const box = useRef();
  useEffect(() => box.current.scrollIntoView({ block: "nearest" }), [plan]);
  return html`<div class="plan" role="alertdialog" aria-label="Plan" ref=${box}>
    <strong>${plan.title}: only a plan</strong>
    <ul>${plan.lines.filter(Boolean).map((line) => html`<li>${line}</li>`)}</ul>
    <button type="button" disabled=${busy || plan.idle} onClick=${done}>Do it</button> <button type="button" disabled=${busy} onClick=${cancel}>Leave it</button>
  </div>`;
}

/** The forms, for the view of a lab. */
export function Hands({ view }) {
  const { api, take, plug } = view;
  const ends = useMemo(() => [...plug.at.keys()].filter((port) => !plug.optical.has(nodeOf(port)) && plug.optical.has(nodeOf(plug.at.get(port).other))), [plug]);
  const ocs = take.fabric.optical_switches.map((one) => one.name);
  const running = take.jobs.filter((job) => !["SUCCEEDED", "FAILED", "CANCELLED"].includes(job.state));
  const [a, setA] = useState(""), [b, setB] = useState(""), [job, setJob] = useState("");
  const [name, setName] = useState(ocs[0] || ""), [kind, setKind] = useState("deny"), [port, setPort] = useState("1");
  const [what, setWhat] = useState("link"), [target, setTarget] = useState(""), [back, setBack] = useState("10");
  // All of them once somebody is there: hundreds are slow to lay out.
  const there = useMemo(() => targets(what, take.fabric), [what, plug]), [asked, setAsked] = useState(false), broken = [...new Set(take.broken)];
  const [plan, setPlan] = useState(null), [said, setSaid] = useState(""), [busy, setBusy] = useState(false);
  // The form that was asked, beside which all answers stand; and which of all askings is the last.
  const [asking, setAsking] = useState(""), latest = useRef(0);
  useEffect(() => setPlan(null), [take.name]);
  useEffect(() => () => { latest.current = -1; }, []);
  const ask = async (form, making) => {
    latest.current += 1;
    setAsking(form), setSaid(""), setPlan(null), setBusy(true);
    try { setPlan(await making()); } catch (failure) { setSaid(String(failure.message)); }
    setBusy(false);
  };
  const done = async () => {
    const mine = latest.current, alive = () => latest.current === mine, say = (words) => alive() && setSaid(words);
    setBusy(true);
    let found = null;
    try {
      found = await plan.go();
      say(`${plan.title}: ${found?.state === "APPLYING" ? "under way" : ended(found)}`);
    } catch (failure) { say(`${plan.title}: ${failure.message}`); }
    setPlan(null), setBusy(false);
    if (found?.state === "APPLYING") {
      const end = await settled(api, found, alive);
      say(`${plan.title}: ${end}`);
    }
  };
  const answer = (form) => form === asking && html`
    ${plan && html`<${Plan} plan=${plan} busy=${busy} done=${done} cancel=${() => setPlan(null)} />`}
    ${said && html`<p class="note" role="status">${said}</p>`}`;
  const end = (label, value, set) => html`<label>${label} <input list="ends" value=${value} onInput=${(e) => set(e.target.value.trim())} /></label>`;
  return html`<section class="hands" aria-label="Hands">
    <h2>Hands</h2>
    <datalist id="ends">${ends.map((one) => html`<option value=${one.replace(/^(g.*):0$/, "$1")} />`)}</datalist>
    ${ends.length > 0 && html`<form onSubmit=${(e) => { e.preventDefault(); ask("circuit", () => circuitPlan(api, a, b, true)); }}>
      ${end("Circuit from", a, setA)} ${end("to", b, setB)}
      <button disabled=${busy || !a || !b}>Light …</button>
      <button type="button" disabled=${busy || !a || !b} onClick=${() => ask("circuit", () => circuitPlan(api, a, b, false))}>Remove …</button>
    </form>${answer("circuit")}
    <form onSubmit=${(e) => { e.preventDefault(); ask("regroup", () => regroupPlan(api, job ? [job] : [])); }}>
      <label>Regroup <select value=${job} onChange=${(e) => setJob(e.target.value)}><option value="">all jobs</option>${running.map((one) => html`<option value=${one.id}>job ${one.name}</option>`)}</select></label>
      <button disabled=${busy}>Plan …</button>
    </form>${answer("regroup")}`}
    ${ocs.length > 0 && html`<form onSubmit=${(e) => { e.preventDefault(); ask("switch", async () => faultPlan(api, name, kind, port)); }}>
      <label>Fault of <select value=${name} onChange=${(e) => setName(e.target.value)}>${ocs.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      <label>kind <select value=${kind} onChange=${(e) => setKind(e.target.value)}>${Object.keys(FAULTS).map((one) => html`<option value=${one}>${one}</option>`)}</select></label>
      ${kind === "port-failed" && html`<label>port <input inputmode="numeric" value=${port} onInput=${(e) => setPort(e.target.value)} /></label>`}
      <button disabled=${busy}>Inject …</button>
      <button type="button" disabled=${busy} onClick=${() => ask("switch", async () => clearPlan(api, name))}>Clear …</button>
    </form>${answer("switch")}`}
    <form onSubmit=${(e) => { e.preventDefault(); ask("lab", async () => labFaultPlan(api, target || there[0], back, plug, stateAt(take, take.span[1]))); }}>
      <label>Break <select value=${what} onChange=${(e) => { setWhat(e.target.value); setTarget(""); }}>${Object.entries(WHAT).map(([kind, said]) => html`<option value=${kind}>${said}</option>`)}</select></label>
      <label>which <select value=${target || there[0]} onFocus=${() => setAsked(true)} onChange=${(e) => setTarget(e.target.value)}>${(asked ? there : there.slice(0, 1)).map((one) => html`<option value=${one}>${one.replace(/^\w+ /, "")}</option>`)}</select></label>
      <label>back after, s <input class="short" inputmode="decimal" value=${back} onInput=${(e) => setBack(e.target.value.trim())} /></label>
      <button disabled=${busy || !there.length}>Break …</button>
      ${broken.map((one) => html`<button type="button" disabled=${busy} onClick=${() => ask("lab", () => restorePlan(api, one))}>Restore ${one} …</button>`)}
    </form>${answer("lab")}
  </section>`;
}
