// One take on the page: its picture, its curves and the key to its colours.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { Curves } from "./curves.js";
import { Picture } from "./fabric.js";
import { loadAt } from "./measures.js";
import { rate } from "./sentences.js";
import { DASH } from "./style.js";

/** Draws a take in the boxes of a stage, a frame at a time. */
export class Drawing {
  constructor(boxes, view, clock, chosen) {
    this.view = view;
    const { take, plug, looks } = view;
    this.picture = new Picture(boxes.picture, take, plug, looks, (found) => {
      const port = (found.ends || []).find((end) => take.rates.ports[end]);
      if (port) this.curves.toggle(port);
      chosen(found, this);
    });
    this.curves = new Curves(boxes.curves, take, plug, looks, clock);
  }

  show(t) {
    const { take, plug } = this.view;
    this.picture.show(t, loadAt(take, plug, t));
    this.curves.show(t);
  }

  destroy() {
    this.picture.destroy();
    this.curves.destroy();
  }
}

/** A link of the picture, as a sample of the key. */
const sample = (kind, look = {}) => html`<svg width="38" height="10" aria-hidden="true"><line x1="0" y1="5" x2="38" y2="5" class=${`k-${kind}`} stroke-dasharray=${DASH[kind]?.join(" ")} ...${look} /></svg>`;

function Key({ view, show, drawing }) {
  const [power, setPower] = useState(false);
  const [choices, choose] = useState([]), [looked, look] = useState(""), [, again] = useState(0);
  const picture = () => drawing.current.picture, fold = drawing.current && picture().foldOf(looked);
  const lookAt = (id) => { look(id); if (id && !picture().foldOf(id)) picture().cy.getElementById(id).emit("tap"); };
  const unfold = () => { picture().unfold(fold); choose(picture().choices()); again((n) => n + 1); };
  return html`<ul class="key">
    <li><label>Look at <select value=${looked} onFocus=${() => choose(picture().choices())} onChange=${(e) => lookAt(e.target.value)}>
      <option value="">…</option>${choices.map(([label, id]) => html`<option value=${id}>${label}</option>`)}
    </select></label> ${fold && html`<button type="button" onClick=${unfold}>${picture().open.has(fold) ? "Fold" : "Unfold"}</button>`}</li>
    ${view.take.live && view.take.fabric.optical_switches.length > 0 && html`<li><label><input type="checkbox" checked=${power} onChange=${(e) => { setPower(e.target.checked); show(e.target.checked); }} /> power, dBm</label></li>`}
    ${view.take.jobs.map(
      (job) => html`<li>
        ${sample("lit", { stroke: view.looks.get(job.id).colour })} job ${job.name}: ${job.gpus.length} GPUs
      </li>`,
    )}
    <li>${sample("moving")} just moved</li>
    <li>${sample("dark")} dark</li>
    <li>${sample("unlit")} no light</li>
    <li>width: load</li>
  </ul>`;
}

/** The boxes of a take; `ready` gets its drawing, and null when it goes. */
export function Stage({ view, clock, ready, chosen, note, below, aside }) {
  const picture = useRef(), curves = useRef(), own = useRef();
  useEffect(() => {
    const drawing = new Drawing({ picture: picture.current, curves: curves.current }, view, clock, chosen);
    own.current = drawing;
    ready(drawing, true);
    return () => {
      ready(drawing, false);
      drawing.destroy();
    };
  }, [view]);
  return html`<section class="stage" aria-label=${view.take.title}>
    <h2>${view.take.title} <small>${view.take.label}</small></h2>
    <div class="both">
      <div class="left"><div class="seen">
        <div class="picture" ref=${picture} role="img" aria-label=${`Fabric: ${view.take.fabric.gpus.length} GPUs`}></div>
        <${Key} view=${view} drawing=${own} show=${(on) => { own.current.picture.power = on; clock.told(); }} />
        ${note && html`<p class="note" role="status">${note}</p>`}
      </div>${below}</div>
      <div class="right"><div class="curves" ref=${curves}></div>${aside}</div>
    </div>
  </section>`;
}

/** What a tapped node or link is, in a line. */
export function described(found, drawing) {
  const { take, plug } = drawing.view, state = drawing.picture.state;
  // It can be tapped before it is drawn for the first time.
  if (!state) return found.gpu || found.switch || found.port || "";
  const load = loadAt(take, plug, drawing.picture.at);
  if (found.ends && found.count === 1) {
    const [a, b] = found.ends, share = Math.max(load(a), load(b)), bps = plug.at.get(a)?.rate_bps;
    return `${a} – ${b}: ${bps ? `${rate(bps)}, ${(100 * share).toFixed(0)} % used` : "cable"}`;
  }
  if (found.gpu) {
    const gpu = plug.gpus.get(found.gpu);
    return `${gpu.name}: ${gpu.model} in ${gpu.server}, ${gpu.ip}${state.down.has(gpu.name) ? `; ${state.down.get(gpu.name)}` : ""}`;
  }
  if (found.switch) {
    const lit = state.light.get(found.switch), optical = plug.optical.get(found.switch);
    const more = optical ? `${optical.profile}, ${optical.size} ports, ${lit ? lit.size : 0} cross-connects` : "packet switch";
    return `${found.switch}: ${more}${state.down.has(found.switch) ? `; ${state.down.get(found.switch)}` : ""}`;
  }
  return found.port || "";
}
