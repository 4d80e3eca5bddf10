// What the controller told: the fabric, and the frames of the last ten minutes.

const KEPT_SECONDS = 600;
const MOST_FOUND = 100;
export const DOWN = -1;
export const UNKNOWN = -2;

export class Model extends EventTarget {
  fabric = null;
  frames = [];
  blocks = null;
  connected = false;
  #sought = null;
  found = null; // reads that frames leave out, as they were when their link was picked
  cursor = null; // the frame that is looked at, or null: the newest

  connect() {
    const source = new EventSource("/v1/events");
    source.addEventListener("open", () => {
      this.#connection(true);
      this.#loadHistory();
    });
    source.addEventListener("error", () => {
      this.#connection(false);
      if (source.readyState === EventSource.CLOSED) this.#connectAgain();
    });
    source.addEventListener("fabric", (event) => this.#setFabric(JSON.parse(event.data)));
    source.addEventListener("frame", (event) => this.#addFrame(JSON.parse(event.data)));
    source.addEventListener("blocks", (event) => { this.blocks = JSON.parse(event.data).blocks; });
  }

  async #connectAgain() {
    const answer = await fetch("/v1/health").catch(() => null);
    if (answer?.status === 401) this.#tell("stranger");
    else setTimeout(() => this.connect(), 2000);
  }

  get frame() {
    return this.cursor ?? this.frames.at(-1) ?? null;
  }

  get isLive() {
    return this.cursor === null;
  }

  look(index) {
    this.cursor = index === null || index >= this.frames.length - 1 ? null : this.frames[Math.max(index, 0)];
    this.#tell("frame");
  }

  get position() {
    return this.cursor === null ? this.frames.length - 1 : Math.max(this.frames.indexOf(this.cursor), 0);
  }

  // The transfers of a frame: parts of reads, appends, and flows of coflows that have a path.
  flows(frame) {
    const known = new Set(frame.reads?.reads.map(({ id }) => id));
    const more = this.isLive && this.found ? this.#readFlows(this.found.reads.filter(({ id }) => !known.has(id))) : [];
    return [...frame.flows ??= this.#flowsOf(frame), ...more];
  }

  // Frames have so many reads at most: ask once for the others over a link.
  async findReads(link) {
    this.found = null;
    this.#sought = link;
    const { reads } = this.frame ?? {};
    if (!link || !this.isLive || !reads || reads.total <= reads.reads.length) return;
    const ends = [link.a, link.b].map((number) => this.fabric.nodes[number].id);
    const answer = await fetch(`/v1/reads?limit=${MOST_FOUND}&link=${ends}`).catch(() => null);
    const told = answer?.ok ? await answer.json() : null;
    if (told && this.#sought === link) this.found = { link: link.number, ...told };
    this.#tell("frame");
  }

  #readFlows(reads) {
    const flows = [];
    for (const read of reads) {
      for (const part of read.parts) {
        if (part.ended) continue;
        flows.push({
          key: `${read.id}/${part.number}`, kind: read.placement_id ? "write" : "read", read, part,
          from: part.replica.host_name, to: read.client_name, path: this.#numbers(part.path),
          rate: part.measured_bps, share: part.share_bps,
        });
      }
    }
    return flows;
  }

  #flowsOf(frame) {
    const flows = this.#readFlows(frame.reads?.reads ?? []);
    for (const coflow of frame.members ?? []) {
      coflow.members.forEach((member, number) => flows.push({
        key: `${coflow.id}/${number}`, kind: "coflow", coflow, member, from: member.source_name,
        to: member.destination_name, path: this.#numbers(member.path), rate: null, share: member.rate_bps,
      }));
    }
    return flows;
  }

  // The load of a link there (0) or back (1), as a part of its capacity; null if it is not known, DOWN.
  load(frame, link, direction) {
    const value = frame.loads[2 * link + direction] ?? UNKNOWN;
    return value === UNKNOWN ? null : value === DOWN ? DOWN : value / 1000;
  }

  busiest(frame, link) {
    const there = this.load(frame, link, 0), back = this.load(frame, link, 1);
    return there === DOWN && back === DOWN ? DOWN : Math.max(there ?? 0, back ?? 0);
  }

  #numbers(path) {
    return path.map((node) => this.fabric?.numbers.get(node)).filter((number) => number !== undefined);
  }

  #connection(connected) {
    this.connected = connected;
    this.#tell("connection");
  }

  #setFabric(said) {
    const nodes = said.nodes.map(([id, name, tier], number) => ({ id, name, tier, number, links: [] }));
    const links = said.links.map(([a, b, there, back], number) => ({ a, b, capacity: [there, back], number }));
    // After a restart the controller numbers nodes and links anew, and when more is gone than there is.
    if (this.fabric?.nodes.some(({ id, number }) => nodes[number]?.id !== id)
        || this.fabric?.links.some(({ a, b, number }) => links[number]?.a !== a || links[number].b !== b)) {
      this.#forget();
      this.#tell("renumbered");
    }
    for (const link of links) {
      nodes[link.a].links.push(link.number);
      nodes[link.b].links.push(link.number);
    }
    const between = new Map(links.map((link) => [`${link.a},${link.b}`, link.number]));
    this.fabric = {
      epoch: said.epoch, nodes, links, numbers: new Map(nodes.map((node) => [node.id, node.number])),
      link: (a, b) => between.get(`${a},${b}`) ?? between.get(`${b},${a}`),
    };
    this.#tell("fabric");
  }

  #addFrame(frame) {
    const last = this.frames.at(-1);
    // The controller was started again, or its clock was set back.
    if (last && (last.health?.uptime_seconds > frame.health?.uptime_seconds + 2 || frame.at < last.at - 2)) this.#forget();
    else if (last && frame.at <= last.at) return;
    this.frames.push(frame);
    while (this.frames[0].at < frame.at - KEPT_SECONDS) this.frames.shift();
    this.#tell("frame");
  }

  #forget() {
    this.frames = [];
    this.cursor = null;
  }

  async #loadHistory() {
    const answer = await fetch("/v1/events/history").catch(() => null);
    if (!answer?.ok) return;
    const earlier = await answer.json();
    const known = new Set(this.frames.map((frame) => frame.at));
    this.frames.push(...earlier.filter((frame) => !known.has(frame.at)));
    this.frames.sort((a, b) => a.at - b.at);
    this.#tell("frame");
  }

  #tell(name) {
    this.dispatchEvent(new Event(name));
  }
}
