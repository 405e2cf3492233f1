// The bar of time and the list of events.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact.js";
import { exact, markOf, sentence, subjects } from "./sentences.js";
import { SPEEDS } from "./clock.js";

const SIGN = { light: "◆", fault: "✕", retry: "↻", job: "•" };
const MOST_SHOWN = 400;

export function TimeBar({ clock, live, t }) {
  const span = [clock.from, clock.speed < 0.2 ? Math.min(clock.to, clock.from + 1) : clock.to], at = exact(t ?? 0, span);
  return html`<form class="time" onSubmit=${(e) => e.preventDefault()}>
    ${live &&
    html`<button type="button" aria-pressed=${clock.following} onClick=${() => clock.follow(!clock.following)} title="Follow the lab (L)">Live</button>`}
    <button type="button" class="play" onClick=${() => (clock.following ? clock.seek(clock.t) : clock.play())} title="Play or pause (space)">
      ${clock.playing || clock.following ? "Pause" : "Play"}
    </button>
    <label>Speed <select value=${clock.speed} onChange=${(e) => { clock.speed = Number(e.target.value); clock.told(); }}>
      ${SPEEDS.map((speed) => html`<option value=${speed}>${speed} ×</option>`)}
    </select></label>
    <input type="range" aria-label="Time" min=${clock.from} max=${clock.to} step="any" value=${t}
      onInput=${(e) => clock.seek(Number(e.target.value))} />
    <output>${at} s <small>of ${exact(clock.to, [clock.from, clock.to])} s</small></output>
  </form>`;
}

function Choice({ name, of, value, set }) {
  if (!of.length) return null;
  return html`<label>${name} <select value=${value} onChange=${(e) => set(e.target.value)}>
    <option value="">all</option>
    ${of.map((one) => html`<option value=${one}>${one}</option>`)}
  </select></label>`;
}

/** What happened, as sentences, the latest that is past marked; a click takes the whole page there.
 *  `jumps`: a number that changes as a key goes from event to event. */
export function Events({ views, t, count, clock, jumps }) {
  const [job, setJob] = useState(""), [where, setWhere] = useState(""), [who, setWho] = useState("");
  const all = useMemo(
    () =>
      views
        .flatMap((view, index) => view.take.events.filter((event) => event.event !== "flow").map((event) => ({ event, index, about: subjects(event), text: sentence(event) })))
        .sort((x, y) => x.event.t - y.event.t),
    [views, count],
  );
  const names = (of) => [...new Set(all.flatMap(of).filter(Boolean))].sort();
  const found = all.filter(
    ({ about }) => (!job || about.job === job) && (!where || about.switches.includes(where)) && (!who || about.who === who),
  );
  let now = -1;
  while (now + 1 < found.length && found[now + 1].event.t <= t) now++;
  const first = Math.max(0, Math.min(now - MOST_SHOWN / 2, found.length - MOST_SHOWN));
  const shown = found.slice(first, first + MOST_SHOWN);
  const list = useRef(), over = useRef(false);
  useEffect(() => {
    // The list goes with the time, unless somebody is reading in it.
    const box = list.current, at = box.children[Math.max(0, now - first)];
    if (!at || over.current || box.contains(document.activeElement)) return;
    const top = at.offsetTop - box.offsetTop;
    if (top < box.scrollTop || top + at.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
  }, [now, found.length]);
  useEffect(() => {
    const box = list.current, marked = box.querySelector("[aria-current]");
    if (!jumps || !marked) return;
    if (box.contains(document.activeElement)) marked.focus({ preventScroll: true });
    marked.scrollIntoView({ block: "nearest" });
  }, [jumps]);
  return html`<section class="events" aria-label="What happened">
    <h2>What happened <small>${found.length} events</small></h2>
    <div class="filter">
      <${Choice} name="Job" of=${names(({ about }) => [about.job])} value=${job} set=${setJob} />
      <${Choice} name="Switch" of=${names(({ about }) => about.switches)} value=${where} set=${setWhere} />
      <${Choice} name="Asked by" of=${names(({ about }) => [about.who])} value=${who} set=${setWho} />
    </div>
    <ol ref=${list} onPointerEnter=${() => { over.current = true; }} onPointerLeave=${() => { over.current = false; }}>
      ${shown.map(({ event, index, text }, place) => {
        const mark = markOf(event);
        return html`<li class=${`${mark || ""} ${event.t <= t ? "past" : "ahead"}`} key=${`${index} ${event.id}`}>
          <button type="button" aria-current=${first + place === now ? "time" : undefined} onClick=${() => clock.seek(event.t)}>
            <time>${event.t.toFixed(3)} s</time><span class="sign" aria-hidden="true">${SIGN[mark] || ""}</span>
            ${views.length > 1 && html`<b>${index + 1}</b> `}<span>${text}</span>
          </button>
        </li>`;
      })}
    </ol>
  </section>`;
}
