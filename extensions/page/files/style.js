// How the picture of a fabric looks. Faults have a shape or a sign besides their colour.

const INK = "#1c2733", QUIET = "#8a97a5", PAPER = "#ffffff", WRONG = "#b3001b";
const text = { "font-family": "system-ui, sans-serif", "font-size": 11, "min-zoomed-font-size": 6, color: INK, "text-wrap": "wrap" };
/** Dashes of links: what has just moved, what is dark, and fibres without light. Lit light has none. */
export const DASH = { moving: [14, 10], dark: [4, 6], unlit: [1, 2] };
const dashed = (dash) => ({ "line-style": "dashed", "line-dash-pattern": dash });
const centred = { "text-valign": "center", "text-halign": "center" };

export const STYLE = [
  { selector: "node", style: { ...text, label: "data(label)" } },
  {
    selector: ".server",
    style: { shape: "round-rectangle", "background-color": "#eef2f6", "border-width": 1, "border-color": "#c8d1da", padding: 7, "text-valign": "top", "text-margin-y": -3, color: "#5b6875" },
  },
  {
    selector: ".gpu",
    style: { ...centred, shape: "round-rectangle", width: 46, height: 36, "background-color": PAPER, "border-width": 1.5, "border-color": QUIET, "z-index": 18 },
  },
  { selector: ".gpu.busy", style: { "border-width": 4, "border-color": "data(colour)" } },
  {
    selector: ".fold",
    style: { ...centred, shape: "round-rectangle", width: 200, height: 90, "background-color": "#eef2f6", "border-width": 5, "border-style": "double", "border-color": "data(colour)", "font-size": 18, "background-fill": "linear-gradient", "background-gradient-direction": "to-right", "background-gradient-stop-colors": "#c3d3e2 #c3d3e2 #eef2f6 #eef2f6", "background-gradient-stop-positions": (one) => `0% ${100 * one.data("full")}% ${100 * one.data("full")}% 100%` },
  },
  {
    selector: ".packet, .averager",
    style: { ...centred, shape: "rectangle", width: "data(w)", height: "data(h)", "background-color": INK, color: PAPER, "font-weight": "bold", "font-size": "data(font)", "border-width": 0 },
  },
  { selector: ".averager", style: { shape: "hexagon", "background-color": "#3d4f61" } },
  {
    selector: ".optical",
    style: { ...centred, shape: "round-rectangle", width: "data(w)", height: "data(h)", "background-color": "#fff8e6", "border-width": 2, "border-color": "#c9a227", "z-compound-depth": "bottom" },
  },
  { selector: ".optical.body", style: { "text-halign": "left", "text-margin-x": -4, "z-index": 0 } },
  { selector: ".body.many", style: { "text-halign": "center", "text-margin-x": 0, "text-background-color": "#fff8e6", "text-background-opacity": 0.9 } },
  { selector: ".big", style: { "font-size": 26 } },
  { selector: ".whole", style: { ...centred, shape: "ellipse", width: 130, height: 130, "background-color": "#fff8e6", "border-width": 2, "border-style": "dashed", "border-color": "#c9a227", "z-index": 12 } },
  {
    selector: ".port",
    style: { shape: "ellipse", width: 11, height: 11, "background-color": "#ffffff", "border-width": 1.5, "border-color": "#a8861a", "font-size": 7, ...centred, "z-index": 20 },
  },
  { selector: ".port.metered", style: { "text-valign": "top", "font-size": 8, "text-background-color": PAPER, "text-background-opacity": 0.85 } },
  { selector: ".port.metered.below", style: { "text-valign": "bottom" } },
  { selector: ".port.low", style: { "border-color": WRONG, "border-style": "double", "border-width": 4, color: WRONG } },
  {
    selector: "edge",
    style: { width: "data(w)", "curve-style": "straight", "line-color": "#b9c3cd", "line-cap": "butt", "z-index": 5 },
  },
  { selector: ".level", style: { "curve-style": "unbundled-bezier", "control-point-distances": 46, "control-point-weights": 0.5 } },
  { selector: ".wire", style: { "line-color": "#5f6f7f" } },
  { selector: ".full", style: { "line-color": "#5f6f7f", "line-outline-width": 1.5, "line-outline-color": "#e69f00" } },
  { selector: ".unlit", style: { "line-color": "#b3bfca", ...dashed(DASH.unlit) } },
  { selector: ".lit", style: { "line-color": "data(colour)", "z-index": 10 } },
  { selector: ".lit.unowned", style: { "line-color": "#7c8894" } },
  { selector: ".moving", style: { ...dashed(DASH.moving), "underlay-color": "#ffc800", "underlay-opacity": 0.6, "underlay-padding": 4, "underlay-shape": "ellipse", "z-index": 15 } },
  { selector: ".dark", style: { "line-color": "data(colour)", ...dashed(DASH.dark), "line-opacity": 0.85, "z-index": 12 } },
  { selector: ".oneway", style: { "target-arrow-shape": "triangle", "target-arrow-color": "data(colour)", "arrow-scale": 0.8 } },
  {
    selector: ".cut",
    style: { "line-color": WRONG, "line-style": "dashed", width: 2, label: "✕ cut", color: WRONG, "font-size": 13, "font-weight": "bold", "text-background-color": PAPER, "text-background-opacity": 1, "z-index": 30 },
  },
  {
    selector: ".flow",
    style: { "curve-style": "bezier", "line-color": "data(colour)", "target-arrow-shape": "triangle", "target-arrow-color": "data(colour)", label: "data(label)", "font-size": 9, color: INK, "text-background-color": PAPER, "text-background-opacity": 0.8, "z-index": 25 },
  },
  {
    selector: "node.down",
    style: { "background-color": "#fbe3e6", color: WRONG, "border-width": 4, "border-style": "dashed", "border-color": WRONG },
  },
  { selector: "node.alarm", style: { "border-width": 4, "border-style": "double", "border-color": WRONG } },
  { selector: "edge:selected, node:selected", style: { "overlay-color": "#0072b2", "overlay-opacity": 0.18, "overlay-padding": 4 } },
];
