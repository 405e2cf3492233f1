// A live lab as a take that grows: read once from the REST API, then by its stream of events. After every break
// the stream goes on by the number of the last event; a controller that was started anew is read anew.

import { ordered, rebase, struck } from "./light.js";

const RETRY_MS = 300, MOST_MOMENTS = 4000, MOST_EVENTS = 4000, MOST_SAMPLES = 1200, MOST_LAPS = 2000, MOST_JOBS = 40;
const ENDED = ["SUCCEEDED", "FAILED", "CANCELLED"];
/** Events after which only the switches know what is lit. */
const READ_AFTER = new Set(["plane", "drift_over", "optical_switch", "onic"]);

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Calls of the REST API, with the reader's token. */
export class Api {
  constructor(token = "") {
    this.token = token;
  }

  get headers() {
    return this.token ? { authorization: `Bearer ${this.token}` } : {};
  }

  async call(method, path, body) {
    const json = body === undefined ? {} : { "content-type": "application/json" };
    const answer = await fetch(path, { method, headers: { ...this.headers, ...json }, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
    const found = await answer.json().catch(() => null);
    // A change that was taken back is an answer, too.
    if (!answer.ok && !(answer.status === 502 && found?.optical_switches)) throw new Refused(answer.status, found?.detail || `${answer.status} ${answer.statusText}`);
    return found;
  }

  get(path) {
    return this.call("GET", path);
  }

  /** Server-sent events as objects, until the stream ends. */
  async *events(path, signal) {
    const answer = await fetch(path, { headers: this.headers, signal, cache: "no-store" });
    if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => null))?.detail || answer.statusText);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let left = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (left + value).split("\n\n");
      left = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").find((line) => line.startsWith("data: "));
        if (data) yield JSON.parse(data.slice(6));
      }
    }
  }
}

/** A lab that is watched. `told(what)` is called when the take has grown: `start`, `events`, `samples`, `state`. */
export class Lab {
  constructor(api, told) {
    Object.assign(this, { api, told, take: null, last: 0, restarts: null, connected: false, missed: 0, stop: new AbortController() });
  }

  end() {
    this.stop.abort();
  }

  /** Watch until ended. Throws Refused where the token is not taken. */
  async run() {
    while (!this.stop.signal.aborted) {
      try {
        await this.watch();
      } catch (failure) {
        if (failure.status === 401 || failure.status === 403) throw failure;
      }
      this.connected = false;
      this.told("state");
      await new Promise((go) => setTimeout(go, RETRY_MS));
    }
  }

  async watch() {
    const health = await this.api.get("/v1/health");
    const other = this.take && health.lab !== this.take.name;
    if (other) this.take = null;
    // A controller that was started anew counts its events anew.
    if (other || (this.restarts != null && health.restarts !== this.restarts)) this.last = 0;
    const stream = this.api.events(`/v1/events?after=${this.last}&rates=true`, this.stop.signal);
    const first = stream.next();
    if (!this.take) await this.begin(health);
    else await this.readAnew();
    this.restarts = health.restarts;
    this.connected = true;
    this.told("state");
    for (let event = (await first).value; event; event = (await stream.next()).value) this.on(event);
  }

  async read() {
    const faults = this.api.get("/v1/faults").catch(() => []);
    const [switches, jobs, health] = await Promise.all([this.api.get("/v1/optical-switches"), this.api.get("/v1/jobs"), this.api.get("/v1/health")]);
    const lit = await Promise.all(
      switches.map((one) => this.api.get(`/v1/optical-switches/${one.name}/cross-connects`).catch(() => null)),
    );
    const read = switches.flatMap((one, index) => (lit[index] ? [[one.name, lit[index].filter((xc) => xc.state !== "FAILED")]] : []));
    const broken = (await faults).filter((one) => ["asked", "in force"].includes(one.state));
    const hit = broken.flatMap((one) => struck(one.target).map((name) => [name, one.do])), lasts = (one) => one.back_after_s == null;
    const down = [...Object.entries(health.packet_switches), ...Object.entries(health.optical_switches)];
    return {
      t: health.t,
      light: Object.fromEntries(read),
      jobs: jobs.map((job) => this.job(job)),
      down: [...down.filter(([, up]) => !up).map(([name]) => [name, "cannot be reached"]), ...hit],
      broken: broken.filter(lasts).map((one) => one.target),
      back: broken.filter((one) => !lasts(one)).map((one) => ({ t: (one.t_done ?? one.t_asked) + one.back_after_s - this.zero, names: struck(one.target) })),
      alarms: [],
    };
  }

  job(job) {
    const gpus = job.ranks.map((rank) => rank.gpu), { gradient_bytes, iterations } = job.spec;
    return { id: job.id, name: job.name, title: job.name, state: job.state, error: job.error, gpus, gradient_bytes, iterations };
  }

  async begin(health) {
    this.zero = health.t - health.uptime_s;
    const [fabric, seen] = await Promise.all([this.api.get("/v1/fabric"), this.read()]);
    const at = seen.t - this.zero;
    const jobs = seen.jobs.filter((job) => !ENDED.includes(job.state));
    this.take = {
      name: health.lab, arm: "", title: `Lab ${health.lab}`, label: "live", live: true,
      // The extensions of these keys may not be installed.
      ...seen, fabric: { grids: [], rings: [], averagers: [], ...fabric }, jobs, span: [at, at], begun: at, events: [], moments: [], laps: {}, rates: { times: [], ports: {} }, lit: "[]",
    };
    this.told("start");
  }

  async readAnew() {
    const seen = await this.read();
    for (const job of seen.jobs) this.know(job);
    this.take.broken = seen.broken;
    this.add([{ t: Math.max(seen.t - this.zero, this.take.span[1]), seen }]);
    this.told("events");
  }

  /** A job that the curves and colours should know. */
  know(job) {
    const known = this.take.jobs.find((one) => one.id === job.id);
    if (!known && !ENDED.includes(job.state)) {
      this.take.jobs.push(job);
      const over = this.take.jobs.length > MOST_JOBS && this.take.jobs.find((one) => ENDED.includes(one.state));
      if (over) this.take.jobs = this.take.jobs.filter((one) => one !== over), delete this.take.laps[over.id];
    }
    else if (known) Object.assign(known, { state: job.state, gradient_bytes: job.gradient_bytes ?? known.gradient_bytes, gpus: job.gpus?.length ? job.gpus : known.gpus });
  }

  add(moments) {
    const take = this.take;
    for (const moment of moments) {
      // What is told late was true then; it is drawn from now on.
      take.moments.push({ ...moment, t: Math.max(moment.t, take.moments.at(-1)?.t ?? moment.t) });
    }
    if (take.moments.length > MOST_MOMENTS) {
      take.begun = take.moments[MOST_MOMENTS / 2 - 1].t;
      rebase(take, MOST_MOMENTS / 2);
      take.span[0] = Math.max(take.span[0], take.begun);
    }
  }

  on(event) {
    const take = this.take, t = event.t - this.zero;
    if (event.event === "rates") return this.sample(event, t);
    if (event.id <= this.last) return undefined;
    if (this.last && event.id > this.last + 1) this.missed += event.id - this.last - 1;
    this.last = event.id;
    const here = moved(event, this.zero);
    take.events.push(here);
    if (take.events.length > MOST_EVENTS) take.events.splice(0, MOST_EVENTS / 4);
    take.span[0] = Math.min(take.span[0], Math.max(take.begun, t));
    take.span[1] = Math.max(take.span[1], t);
    if (t > take.begun) {
      this.add(ordered([here]));
      if (event.event === "fault") this.take.broken = [...this.take.broken.filter((one) => one !== event.target), ...(event.do === "restore" || event.back_after_s != null ? [] : [event.target])];
      if (event.event === "job") this.know({ ...event, id: event.job, title: event.name, gpus: event.gpus || [] });
      if (event.event === "job" && event.state === "STARTING") this.api.get(`/v1/jobs/${event.job}`).then((job) => this.know(this.job(job)), () => {});
      if (READ_AFTER.has(event.event) || (event.event === "circuits" && event.outcome !== "done")) this.readAnew().catch(() => {});
    }
    this.told("events");
    return undefined;
  }

  sample(event, t) {
    const { rates, laps, span } = this.take;
    span[1] = Math.max(span[1], t);
    rates.times.push(t);
    const count = rates.times.length;
    for (const [port, [rx, tx]] of Object.entries(event.ports)) {
      const series = (rates.ports[port] ||= { rx: new Array(count - 1).fill(0), tx: new Array(count - 1).fill(0) });
      series.rx[count - 1] = rx;
      series.tx[count - 1] = tx;
    }
    for (const series of Object.values(rates.ports)) {
      if (series.rx.length < count) series.rx.push(0), series.tx.push(0);
    }
    if (count > MOST_SAMPLES) {
      const away = MOST_SAMPLES / 4;
      rates.times.splice(0, away);
      for (const series of Object.values(rates.ports)) series.rx.splice(0, away), series.tx.splice(0, away);
    }
    for (const lap of event.iterations) {
      const of = (laps[lap.job] ||= { i: [], begin: [], end: [], compute_s: [], allreduce_s: [] });
      const values = { ...lap, begin: lap.begin - this.zero, end: lap.end - this.zero };
      for (const [name, column] of Object.entries(of)) {
        column.push(values[name]);
        if (column.length > MOST_LAPS) column.splice(0, MOST_LAPS / 4);
      }
    }
    this.take.power = event.power_dbm;
    const lit = JSON.stringify(event.lightpaths);
    if (lit !== this.take.lit) this.add([{ t, of: "lab", pairs: event.lightpaths, dark: false }]);
    this.take.lit = lit;
    this.told("samples");
  }
}

/** An event with its times counted from the start of the controller. */
function moved(event, zero) {
  const off = (t) => (t == null ? t : t - zero);
  const here = { ...event, t: off(event.t) };
  if (event.changes) {
    const xc = (one) => ({ ...one, t_dark: off(one.t_dark), t_lit: off(one.t_lit) });
    here.changes = Object.fromEntries(
      Object.entries(event.changes).map(([name, { remove, add }]) => [name, { remove: remove.map(xc), add: add.map(xc) }]),
    );
  }
  return here;
}
