// Replays of one run at the same time do the same work, and each tries to end the run. So few
// start at a time. A replay that takes longer leaves the limit: it may run a step.

export type Kind = 'step' | 'replay';

/** Young deliveries of one run that may run at a time, and when a delivery stops to be young. */
const LIMITS: Record<Kind, { atOnce: number; youth: number }> = {
  replay: { atOnce: 2, youth: 250 },
  // Their ends are limited instead, by Deliveries.
  step: { atOnce: Infinity, youth: 0 },
};

interface Entry {
  readonly kind: Kind;
  readonly run: string;
  readonly state: Run;
  readonly work: () => Promise<void>;
  started: boolean;
  young: boolean;
  timer?: NodeJS.Timeout;
}

interface Run {
  readonly young: Record<Kind, number>;
  readonly waiting: Entry[];
}

/** Starts deliveries in their order, few of one run at a time. */
export class RunLimit {
  readonly #entries = new Map<object, Entry>();
  readonly #runs = new Map<string, Run>();

  /** Starts `work` now or once the limit of its run allows it. Work without a run starts now. */
  add(key: object, run: string | undefined, kind: Kind, work: () => Promise<void>): void {
    if (run === undefined) {
      void work();
      return;
    }
    const state = this.#runs.get(run) ?? { young: { step: 0, replay: 0 }, waiting: [] };
    this.#runs.set(run, state);
    const entry: Entry = { kind, run, state, work, started: false, young: false };
    this.#entries.set(key, entry);
    state.waiting.push(entry);
    this.#advance(run, state);
  }

  isWaiting(key: object): boolean {
    return this.#entries.get(key)?.started === false;
  }

  /** Ends an entry: it has run, or it will not be started any more. */
  remove(key: object): void {
    const entry = this.#entries.get(key);
    if (entry === undefined) return;
    const { run, state } = entry;
    this.#entries.delete(key);
    const index = state.waiting.indexOf(entry);
    if (index >= 0) state.waiting.splice(index, 1);
    this.#leave(entry);
    this.#advance(run, state);
  }

  #leave(entry: Entry): void {
    clearTimeout(entry.timer);
    if (entry.young) entry.state.young[entry.kind] -= 1;
    entry.young = false;
  }

  #advance(run: string, state: Run): void {
    for (const entry of [...state.waiting]) {
      const { atOnce, youth } = LIMITS[entry.kind];
      if (state.young[entry.kind] >= atOnce) continue;
      state.waiting.splice(state.waiting.indexOf(entry), 1);
      state.young[entry.kind] += 1;
      entry.started = true;
      entry.young = true;
      entry.timer = setTimeout(() => {
        this.#leave(entry);
        this.#advance(run, state);
      }, youth);
      void entry.work();
    }
    const { step, replay } = state.young;
    if (state.waiting.length === 0 && step + replay === 0) {
      // Entries that are not young any more have no part in the limit.
      if (this.#runs.get(run) === state) this.#runs.delete(run);
    }
  }
}
