// Takes of run folders: fetched from the server of the page, or written into the page itself.

import { ordered } from "./light.js";

const asked = async (name) => {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${(await answer.json().catch(() => ({}))).detail || answer.status}`);
  return answer.json();
};

/** The folders of this page and their takes; null where it is the page of a lab. */
export async function folders() {
  const inside = document.getElementById("recorded");
  if (inside) return JSON.parse(inside.textContent);
  return document.querySelector("meta[name=source]").content === "lab" ? null : asked("runs.json");
}

/** A take, ready to be drawn. */
export async function take(index, folder, number) {
  const known = index[folder].takes[number];
  const found = known.take || (await asked(`take/${folder}/${number}.json`));
  const { sets, turns } = found.lightpaths;
  const paths = turns.map(([t, of, set, dark]) => ({ t, of, pairs: sets[set], dark }));
  return { ...found, of: index[folder], moments: ordered(found.events, [...paths, ...(found.held || [])]) };
}
