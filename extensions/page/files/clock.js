// The moment that is shown: played at a speed, scrubbed, peeked at under the pointer, or followed live.

export const SPEEDS = [1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 60, 600, 3600, 36_000];
/** A replay that would be over sooner or later than this, seconds, begins at another speed than that of the run. */
const SOON_S = 1, LATE_S = 900, WANTED_S = 60;

export class Clock {
  constructor(told) {
    Object.assign(this, { t: 0, from: 0, to: 1, playing: false, speed: 1, following: false, peeked: null, told });
  }

  span(from, to) {
    this.from = from;
    this.to = Math.max(to, from);
    this.t = Math.min(Math.max(this.t, from), this.to);
    const long = this.to - from;
    if (!this.chosen && long > 0 && !this.following && (long < SOON_S || long > LATE_S)) {
      this.speed = SPEEDS.findLast((speed) => speed * WANTED_S <= Math.max(long, SPEEDS[0] * WANTED_S));
    }
    this.chosen ||= long > 0;
  }

  /** The moment to draw. */
  get shown() {
    return this.peeked ?? this.t;
  }

  play(on = !this.playing) {
    if (on && !this.following && this.t >= this.to) this.t = this.from;
    this.playing = on;
    this.told();
  }

  follow(on) {
    this.following = on;
    if (on) this.t = this.to;
    this.told();
  }

  seek(t) {
    this.peeked = null;
    this.following = false;
    this.t = Math.min(Math.max(t, this.from), this.to);
    this.told();
  }

  peek(t) {
    this.peeked = t == null ? null : Math.min(Math.max(t, this.from), this.to);
    this.told();
  }

  faster(by) {
    const at = SPEEDS.indexOf(this.speed);
    this.speed = SPEEDS[Math.min(Math.max(at + by, 0), SPEEDS.length - 1)];
    this.told();
  }

  /** Go on by `seconds` of the reader's time; whether anything moved. */
  tick(seconds) {
    if (this.following) {
      this.t = this.to;
      return true;
    }
    if (!this.playing) return false;
    this.t = Math.min(this.t + seconds * this.speed, this.to);
    if (this.t >= this.to) {
      this.playing = false;
      this.told();
    }
    return true;
  }
}
