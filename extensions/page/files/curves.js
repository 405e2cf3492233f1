// Curves over time with uPlot: one moment under the pointer for all of them, and for the picture.

import { exact, markOf, rate } from "./sentences.js";
import { jobRates, linkRate, ofLaps, times, trunks } from "./measures.js";

const MARKS = { light: "#c9a227", fault: "#b3001b", retry: "#5b6875", job: "#9fb0bf" };
const LINKS = ["#1c2733", "#8a97a5", "#5b4ea3", "#8c6d1f"];
const MOST_STEPS = 420;
const PANELS = [
  { id: "rate", title: "Throughput, in real units", unit: (v) => (v == null ? "–" : rate(v)) },
  { id: "time", title: "Iteration, emulated", unit: (v) => (v == null ? "–" : `${v.toFixed(3)} s`) },
  { id: "share", title: "GPU share", unit: (v) => (v == null ? "–" : `${v.toFixed(0)} %`), max: 100 },
  { id: "held", title: "GPUs held", unit: (v) => (v == null ? "–" : `${v.toFixed(0)} %`), max: 100 },
  { id: "ideal", title: "All-reduce ÷ ideal ring", unit: (v) => (v == null ? "–" : `${v.toFixed(2)} ×`) },
];

/** Columns of a panel over common times: values of single jobs at their own times, gaps between left out. */
function joined(series) {
  const at = [...new Set(series.flatMap((one) => one.at))].sort((a, b) => a - b);
  const place = new Map(at.map((t, index) => [t, index]));
  const columns = series.map((one) => {
    const values = new Array(at.length).fill(undefined);
    one.at.forEach((t, index) => (values[place.get(t)] = one.values[index]));
    return values;
  });
  return [at, ...columns];
}

/** Means over at most as many steps as can be told apart, where samples would be one block of colour. */
function coarser([at, ...columns], most) {
  const every = Math.ceil(at.length / most);
  if (every < 2) return [at, ...columns];
  const steps = Math.ceil(at.length / every);
  const mean = (column) =>
    Array.from({ length: steps }, (_, step) => {
      const part = column.slice(step * every, (step + 1) * every);
      return part.reduce((sum, v) => sum + v, 0) / part.length;
    });
  return [mean(at), ...columns.map(mean)];
}

/** A line of a curve as a background of its mark in the legend, px: its colour, in its own dash. */
function dashes({ stroke, dash }, colour = typeof stroke === "function" ? stroke() : stroke) {
  if (!dash?.length) return colour;
  let at = 0;
  const stops = dash.map((length, part) => `${part % 2 ? "transparent" : colour} ${at}px ${(at += length)}px`);
  return `repeating-linear-gradient(90deg, ${stops.join(", ")})`;
}

/** What a panel shows: `data` for uPlot and the `lines` with their looks. */
function content(id, take, plug, looks, links) {
  if (id === "rate") {
    const rates = jobRates(take, plug);
    const jobs = take.jobs.filter((job) => rates.has(job.id));
    const ports = [...trunks(take).slice(0, 2).map(([a]) => a), ...links].filter((port, i, all) => all.indexOf(port) === i && take.rates.ports[port]);
    return {
      data: coarser([times(take.rates), ...jobs.map((job) => rates.get(job.id)), ...ports.map((port) => linkRate(take, plug, port))], MOST_STEPS),
      lines: [
        ...jobs.map((job) => ({ label: `job ${job.name}`, ...looks.get(job.id), width: 2 })),
        ...ports.map((port, i) => ({ label: `link ${port}–${plug.at.get(port)?.other}`, colour: LINKS[i % LINKS.length], dash: [2, 2], width: 1.5 })),
      ],
    };
  }
  if (id === "held") {
    const lines = take.course ? [{ label: "of all GPUs", colour: "#0072b2", dash: [], width: 2 }] : [];
    return { data: take.course ? [take.course.t, take.course.held.map((share) => 100 * share)] : [[]], lines };
  }
  const jobs = take.jobs.filter((job) => take.laps[job.id]?.end.length);
  const series = jobs.map((job) => {
    const found = ofLaps(take, plug, job);
    return { at: found.at, values: found[id] };
  });
  return {
    data: joined(series),
    lines: jobs.map((job) => ({ label: `job ${job.name}`, ...looks.get(job.id), width: 2, stepped: true })),
  };
}

/** The curves of one take in a box. `clock` has `t`, `seek(t)` and `peek(t | null)`. */
export class Curves {
  constructor(box, take, plug, looks, clock) {
    Object.assign(this, { box, take, plug, looks, clock, plots: [], links: [] });
    this.sync = uPlot.sync(`take ${Math.random()}`);
    this.sized = new ResizeObserver(() => this.size());
    this.build();
    this.sized.observe(box);
  }

  /** The panels that have something to show, and what. */
  filled() {
    return PANELS.map((panel) => ({ panel, found: content(panel.id, this.take, this.plug, this.looks, this.links) })).filter(
      ({ found }) => found.data[0].length && found.data.slice(1).some((column) => column.some((v) => v != null)),
    );
  }

  build(filled = this.filled()) {
    for (const { plot } of this.plots) plot.destroy();
    this.box.replaceChildren();
    this.plots = filled.map(({ panel, found }) => ({ panel, plot: this.plot(panel, found) }));
  }

  plot(panel, { data, lines }) {
    const options = {
      title: panel.title,
      width: Math.max(200, this.box.clientWidth - 2),
      height: panel.id === "rate" ? 200 : 140,
      cursor: { sync: { key: this.sync.key, setSeries: false }, drag: { x: false, y: false }, points: { size: 5 } },
      legend: { live: true, markers: { width: 0, fill: (own, series) => dashes(own.series[series]) } },
      scales: { x: { time: false, range: () => this.range() }, y: { range: (_, low, high) => [0, panel.max || (high || 1) * 1.1] } },
      axes: [
        { size: 24, values: (_, ticks) => ticks.map((t) => `${+t.toPrecision(4)} s`), font: "11px system-ui", grid: { stroke: "#eef1f4" } },
        { size: 84, values: (_, ticks) => ticks.map(panel.unit), font: "11px system-ui", grid: { stroke: "#eef1f4" } },
      ],
      series: [
        { label: "t", value: (_, t) => (t == null ? "–" : `${exact(t, this.take.span)} s`) },
        ...lines.map((line) => ({
          label: line.label,
          stroke: line.colour,
          width: line.width,
          dash: line.dash,
          // An iteration has its value from begin to end.
          value: (own, v, series, at) => panel.unit(v ?? (line.stepped && at != null ? own.data[series].slice(at).find((one) => one != null) : v)),
          spanGaps: true,
          points: { show: false },
          paths: line.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined,
        })),
      ],
      hooks: {
        draw: [(plot) => this.marks(plot)],
        setCursor: [(plot) => plot === this.under && this.clock.peek(plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null)],
      },
    };
    const plot = new uPlot(options, data, this.box);
    plot.over.addEventListener("pointerenter", () => (this.under = plot));
    plot.over.addEventListener("pointerleave", () => { this.under = null; this.clock.peek(null); });
    plot.over.addEventListener("click", () => this.clock.seek(plot.posToVal(plot.cursor.left, "x")));
    const now = document.createElement("div");
    now.className = "now";
    plot.over.append(now);
    plot.now = now;
    return plot;
  }

  range() {
    const [from, to] = this.take.span;
    return this.take.live ? [Math.max(from, to - 120), to] : [from, Math.max(to, from + 1e-9)];
  }

  marks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const event of this.take.events) {
      const mark = markOf(event), at = plot.valToPos(event.t, "x", true);
      if (!mark || at < bbox.left || at > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = MARKS[mark];
      ctx.lineWidth = mark === "job" ? 1 : 1.5;
      ctx.setLineDash(mark === "fault" ? [] : mark === "light" ? [6, 3] : [1, 3]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      // A fault has a cross and light a diamond, so that neither needs its colour.
      ctx.font = `${12 * devicePixelRatio}px system-ui`;
      ctx.textAlign = "center";
      if (mark !== "job") ctx.fillText({ light: "◆", fault: "✕", retry: "↻" }[mark], at, bbox.top + 11 * devicePixelRatio);
    }
    ctx.restore();
  }

  /** Put the line of the present moment at `t`. */
  show(t) {
    const now = performance.now(), told = now - (this.told || 0) > 100;
    if (told) this.told = now;
    for (const { plot } of this.plots) {
      // Under the pointer uPlot does it by itself.
      if (told && !this.under) plot.setLegend({ idx: plot.data[0].length ? plot.valToIdx(t) : null });
      const at = plot.valToPos(t, "x");
      plot.now.style.transform = `translateX(${Math.max(0, Math.min(at, plot.over.clientWidth))}px)`;
    }
  }

  /** Take in what has been measured since; of a live lab. */
  refresh() {
    const filled = this.filled(), alike = ({ panel, found }, at) => this.plots[at]?.panel === panel && this.plots[at].plot.series.length === found.data.length;
    if (filled.length !== this.plots.length || !filled.every(alike)) this.build(filled);
    else filled.forEach(({ found }, at) => this.plots[at].plot.setData(found.data));
  }

  toggle(port) {
    this.links = this.links.includes(port) ? this.links.filter((one) => one !== port) : [...this.links, port];
    this.build();
  }

  size() {
    for (const { plot } of this.plots) plot.setSize({ width: Math.max(200, this.box.clientWidth - 2), height: plot.height });
  }

  destroy() {
    this.sized.disconnect();
    for (const { plot } of this.plots) plot.destroy();
  }
}
