// The page: what is shown, which moment, and who is told.

import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { Clock } from "./clock.js";
import { looks } from "./colours.js";
import { plugged } from "./light.js";
import { Events, TimeBar } from "./panels.js";
import { folders, take as recorded } from "./recorded.js";
import { described, Stage } from "./stage.js";

const viewOf = (take) => ({ take, plug: plugged(take.fabric), looks: looks(take.jobs) });

/** The take that the address names, `#1` or `#1+3`, counted over all folders; else the most telling one. */
function wanted(all) {
  const numbers = location.hash.slice(1).split("+").map(Number).filter((n) => all[n - 1]);
  const telling = all.findIndex((one) => one.eventful);
  return numbers.length ? numbers.slice(0, 2).map((n) => n - 1) : [Math.max(telling, 0)];
}

function Replay({ index }) {
  const all = index.flatMap((folder, of) => folder.takes.map((one, number) => ({ ...one, of, number, folder: folder.folder })));
  const [chosen, choose] = useState(() => wanted(all));
  const [views, setViews] = useState([]);
  const [error, setError] = useState("");
  useEffect(() => {
    let alive = true;
    // A frame in a notebook has no address of its own.
    if (location.protocol !== "about:") history.replaceState(null, "", `#${chosen.map((n) => n + 1).join("+")}`);
    Promise.all(chosen.map((n) => recorded(index, all[n].of, all[n].number)))
      .then((takes) => alive && setViews(takes.map(viewOf)))
      .catch((failure) => alive && setError(String(failure.message || failure)));
    return () => { alive = false; };
  }, [chosen.join("+")]);
  const option = (one, n) => html`<option value=${n}>${index.length > 1 ? `${one.folder}: ` : ""}${one.title}${one.place === one.arm ? "" : ` · ${one.place}`}</option>`;
  const head = html`<header>
    <h1>${index.map((one) => one.title).filter((one, n, list) => list.indexOf(one) === n).join(", ")}</h1>
    <label>Show <select value=${chosen[0]} onChange=${(e) => choose([Number(e.target.value), ...chosen.slice(1)])}>${all.map(option)}</select></label>
    ${all.length > 1 && html`<label>beside <select value=${chosen[1] ?? ""} onChange=${(e) => choose(e.target.value === "" ? [chosen[0]] : [chosen[0], Number(e.target.value)])}>
      <option value="">nothing</option>${all.map(option)}
    </select></label>`}
    ${index.filter((one) => one.left_out).map((one) => html`<small>${one.left_out} more runs: ringlight view ${one.folder}</small>`)}
  </header>`;
  return html`<${Page} head=${head} views=${views} error=${error} />`;
}

/** Everything below the head, over takes that are recorded or grow. `grown`: a number that changes as they do. */
export function Page({ head, views, error, live = false, grown = 0, sampled = 0, hands = null }) {
  const [, redraw] = useState(0), drawings = useRef(new Set()), clock = useRef(null), dirty = useRef(true), said = useRef(false);
  const [note, setNote] = useState(""), [jumps, setJumps] = useState(0);
  if (!clock.current) {
    clock.current = new Clock(() => { dirty.current = true; said.current = true; });
    clock.current.following = live;
  }
  const now = clock.current;
  if (views.length) now.span(Math.min(...views.map((v) => v.take.span[0])), Math.max(...views.map((v) => v.take.span[1])));
  dirty.current ||= Boolean(views.length);
  useEffect(() => { if (sampled) for (const one of drawings.current) one.curves.refresh(); }, [sampled]);
  useEffect(() => {
    let frame, before = performance.now(), told = 0;
    const step = (ms) => {
      const moved = now.tick((ms - before) / 1000);
      before = ms;
      if (moved || dirty.current) {
        dirty.current = false;
        for (const one of drawings.current) one.show(now.shown);
        }
      if ((said.current || moved) && ms - told > (said.current ? 40 : 100)) {
        told = ms;
        said.current = false;
        redraw((n) => n + 1);
      }
      for (const one of drawings.current) one.picture.animate(ms);
      frame = requestAnimationFrame(step);
    };
    frame = requestAnimationFrame(step);
    return () => cancelAnimationFrame(frame);
  }, []);
  useEffect(() => {
    const pressed = (e) => {
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && e.target.type !== "range") return;
      if (e.target.tagName === "BUTTON" && (e.key === " " || e.key === "Enter")) return;
      const step = (e.shiftKey ? 0.1 : 0.01) * (now.to - now.from);
      const keys = {
        " ": () => now.play(),
        ArrowLeft: () => now.seek(now.t - step),
        ArrowRight: () => now.seek(now.t + step),
        Home: () => now.seek(now.from),
        End: () => now.seek(now.to),
        "+": () => now.faster(1),
        "-": () => now.faster(-1),
        n: () => jump(1),
        p: () => jump(-1),
        l: () => live && now.follow(!now.following),
      };
      if (e.ctrlKey || e.metaKey || e.altKey || !keys[e.key]) return;
      e.preventDefault();
      keys[e.key]();
    };
    const jump = (way) => {
      const times = views.flatMap((v) => v.take.events.filter((event) => event.event !== "flow").map((event) => event.t)).sort((a, b) => a - b);
      const next = way > 0 ? times.find((t) => t > now.t) : times.filter((t) => t < now.t).pop();
      if (next == null) return;
      now.seek(next);
      setJumps((n) => n + 1);
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [views]);
  const ready = (drawing, here) => {
    if (here) drawings.current.add(drawing);
    else drawings.current.delete(drawing);
    dirty.current = true;
    window.ringlight = { clock: now, drawings: drawings.current };
  };
  const chosen = (found, drawing) => { setNote(described(found, drawing)); };
  const events = views.length > 0 && html`<${Events} views=${views} t=${now.shown} count=${grown} clock=${now} jumps=${jumps} />`;
  const alone = views.length === 1;
  return html`${head}
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <main class=${views.length > 1 ? "two" : "one"}>
      ${views.map((view) => html`<${Stage} key=${view.take.name} view=${view} clock=${now} ready=${ready} chosen=${chosen} note=${note} below=${alone && events} aside=${hands && html`<${hands} view=${view} />`} />`)}
    </main>
    ${!alone && events}
    ${views.length > 0 && html`<${TimeBar} clock=${now} live=${live} t=${now.shown} />`}
    <footer>Space plays, ← → scrub (with Shift farther), N and P go from event to event, + and − change the speed${live ? ", L follows the lab" : ""}.</footer>`;
}

async function start() {
  const app = document.getElementById("app");
  app.replaceChildren();
  const index = await folders();
  if (index) render(html`<${Replay} index=${index} />`, app);
  else {
    const { Live } = await import("./lab.js");
    render(html`<${Live} Page=${Page} viewOf=${viewOf} />`, app);
  }
}

start().catch((failure) => {
  document.getElementById("app").textContent = `The page cannot be shown: ${failure.message || failure}`;
});
