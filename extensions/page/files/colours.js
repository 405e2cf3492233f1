// Colours of jobs: Okabe and Ito's, which people with any kind of colour vision tell apart. A job called by a
// colour's name gets the one that is nearest. Dashes tell jobs apart without colour.

const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d1f", "#5b4ea3"];
const NAMED = { red: "#d55e00", orange: "#e69f00", blue: "#0072b2", green: "#009e73", purple: "#cc79a7", sky: "#56b4e9" };
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [12, 6]];
export const UNOWNED = "#4a5561";

/** The look of each job of a take, by its id: `colour` and `dash`. */
export function looks(jobs) {
  const found = new Map(), taken = new Set(jobs.map((job) => NAMED[job.name]).filter(Boolean));
  const free = PALETTE.filter((colour) => !taken.has(colour));
  jobs.forEach((job, index) => {
    const colour = NAMED[job.name] || free[index % free.length] || PALETTE[index % PALETTE.length];
    found.set(job.id, { colour, dash: DASHES[index % DASHES.length] });
  });
  return found;
}
