// The page of a live lab: asks for the token where there is one, and follows the lab.

import { html, useEffect, useRef, useState } from "./vendor/preact.js";
import { looks } from "./colours.js";
import { Hands } from "./hands.js";
import { Api, Lab } from "./live.js";

const KEPT = "ringlight token";
const kept = () => { try { return sessionStorage.getItem(KEPT) || ""; } catch { return ""; } };

function Token({ refused, give }) {
  const [token, set] = useState("");
  return html`<form class="wait" onSubmit=${(e) => { e.preventDefault(); give(token); }}>
    <p>${refused || "This lab asks for its token."}</p>
    <label>Token <input type="password" autocomplete="off" value=${token} onInput=${(e) => set(e.target.value)} /></label>
    <button>Open</button>
  </form>`;
}

export function Live({ Page, viewOf }) {
  const [token, setToken] = useState(kept), [refused, setRefused] = useState(""), [needed, setNeeded] = useState(false);
  const [view, setView] = useState(null), [grown, setGrown] = useState(0), [sampled, setSampled] = useState(0), [connected, setConnected] = useState(false);
  const lab = useRef(null);
  useEffect(() => {
    const api = new Api(token);
    const one = (lab.current = new Lab(api, (what) => {
      if (what === "start") setView(Object.assign(viewOf(one.take), { api, lab: one }));
      if (what === "events") setView((now) => { if (now) for (const [id, look] of looks(one.take.jobs)) now.looks.set(id, look); return now; });
      if (what === "samples") setSampled((n) => n + 1);
      setConnected(one.connected);
      setGrown((n) => n + 1);
    }));
    one.run().catch((failure) => {
      if (failure.status === 401) setNeeded(true);
      setRefused(token || failure.status !== 401 ? `${failure.message}` : "");
    });
    window.ringlightLab = one;
    // A page that the browser keeps for its "back" button would go on to read the stream.
    const away = () => one.end(), back = (event) => { if (event.persisted) location.reload(); };
    addEventListener("pagehide", away);
    addEventListener("pageshow", back);
    return () => {
      removeEventListener("pagehide", away);
      removeEventListener("pageshow", back);
      one.end();
    };
  }, [token]);
  const give = (given) => {
    try { sessionStorage.setItem(KEPT, given); } catch { /* It is asked for again then. */ }
    setNeeded(false);
    setToken(given);
  };
  if (needed) return html`<${Token} refused=${refused} give=${give} />`;
  if (!view) return html`<p class="wait">${refused || "Looking for the controller …"}</p>`;
  const head = html`<header><h1>Lab ${view.take.name}</h1>
    <span class=${connected ? "on" : "error"} role="status">${connected ? "● connected" : "✕ no answer from the controller; trying again"}</span></header>`;
  return html`<${Page} head=${head} views=${[view]} live=${true} grown=${grown} sampled=${sampled} hands=${Hands} />`;
}
