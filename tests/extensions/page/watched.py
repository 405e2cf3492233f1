"""What ``viewing`` looks at: a fabric of 64 GPUs, and scripts that it runs in the page."""

from __future__ import annotations

from typing import Any

GPUS, TORS = 64, 4
#: Scrubs over all of a run in steps that are not next to each other; frames per second.
SCRUB = """(async () => {
  const clock = ringlight.clock, begun = performance.now();
  let frames = 0;
  for (; performance.now() - begun < SECONDS * 1000; frames++) {
    clock.seek(clock.from + (clock.to - clock.from) * (frames % 200) / 200);
    await new Promise(requestAnimationFrame);
  }
  return frames / ((performance.now() - begun) / 1000);
})()"""
#: An hour: samples of every port twice a second, iterations of four jobs, alarms, changes of a circuit.
HOUR = """(async () => {
  const lab = ringlightLab, take = lab.take, begin = take.span[1] + lab.zero;
  const ports = [...[...ringlight.drawings][0].view.plug.at.keys()].filter(port => port.startsWith("tor"));
  let id = lab.last;
  for (let step = 0; step < 7200; step++) {
    const t = begin + step / 2, times = {begin: t - 0.5, end: t, compute_s: 0.3, allreduce_s: 0.2};
    lab.on({
      event: "rates", t, power_dbm: {}, lightpaths: [],
      ports: Object.fromEntries(ports.map(port => [port, [1e7 * Math.random(), 1e7]])),
      iterations: ["a", "b", "c", "d"].map(job => ({job, i: step, ...times})),
    });
    const xc = {ingress: 1, egress: 161 + step % 2, wavelength: null, t_dark: t - 0.04, t_lit: t - 0.01};
    const changes = {ocs0: {remove: [], add: [xc]}};
    const change = {event: "circuits", who: "rest", outcome: "done", problems: [], timeline: [], changes};
    if (step % 4 === 0) lab.on({...change, id: ++id, t});
    for (let port = 0; port < 5; port++) {
      lab.on({event: "optical_alarm", id: ++id, t, switch: "ocs0", kind: "LOS", port, text: "no light"});
    }
    if (step % 100 === 0) await new Promise(requestAnimationFrame);
  }
  return take.events.length;
})()"""


def scenario(iterations: int) -> dict[str, Any]:
    """Four jobs of 16 GPUs each, scattered over four packet switches behind one optical switch."""
    each, ports = GPUS // TORS, GPUS // TORS + 4
    tors = [f"tor{t}:{p + 1}" for t in range(TORS) for p in range(ports)]
    fibres = [f"g{g}" for g in range(GPUS)] + tors
    links: list[Any] = [
        {"ends": [end, f"ocs0:{n + 1}"], "rate": "40 Gbit/s"}
        for n, end in enumerate(fibres)
    ]
    links += [
        {
            "ends": [f"tor{t}:{ports + 1}", f"tor{t + 1}:{ports + 2}"],
            "rate": "100 Gbit/s",
        }
        for t in range(TORS - 1)
    ]
    return {
        "name": "view",
        "description": "64 GPUs behind one optical switch",
        "scale": {"payload": 400},
        "fabric": {
            "servers": {
                f"s{s}": {"gpus": {f"g{8 * s + i}": "tesla-m40" for i in range(8)}}
                for s in range(8)
            },
            "packet_switches": {f"tor{t}": {"ports": ports + 2} for t in range(TORS)},
            "optical_switches": {
                "ocs0": {"size": 160, "driver": "scpi", "profile": "mems"}
            },
            "links": links,
            "circuits": [
                [f"g{g}", f"tor{g // each}:{g % each + 1}"] for g in range(GPUS)
            ],
        },
        "training": {
            "model": "resnet50",
            "compute": "1 s",
            "batch": 16,
            "iterations": iterations,
            "collective": "ring",
        },
        "jobs": {
            f"job{j}": {"ranks": [f"g{g}" for g in range(j, GPUS, TORS)]}
            for j in range(TORS)
        },
        "arms": {
            "moved": {
                "events": [{"when": {"job": "job0", "iteration": 5}, "do": "regroup"}]
            }
        },
    }
