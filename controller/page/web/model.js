// What the controller told: the fabric, and the frames of the last ten minutes.

const KEPT_SECONDS = 600;
const FOUND_AT_ONCE = 100;
export const DOWN = -1;
export const UNKNOWN = -2;

export class Model extends EventTarget {
  fabric = null;
  frames = [];
  blocks = null;
  connected = false;
  standsBy = null; // what a controller says that stands by for another one, and has nothing to show
  found = null; // what frames leave out of what is picked, as it was then
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
    if (answer?.status === 401) {
      this.#tell("stranger");
      return;
    }
    const health = answer?.ok ? await answer.json().catch(() => null) : null;
    this.standsBy = health?.status === "standby" ? health : null;
    this.#tell("connection");
    setTimeout(() => this.connect(), 2000);
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
    const told = frame.flows ??= this.#flowsOf(frame);
    if (!this.isLive || !this.found) return told;
    const known = new Set(told.map(({ key }) => key)), reads = new Set(frame.reads?.reads.map(({ id }) => id));
    return [...told, ...this.found.flows.filter((flow) => !known.has(flow.key) && !reads.has(flow.read?.id))];
  }

  // Frames have so many reads and coflows at most: ask once for the others of what is picked, over a busy link in pages.
  find(selection) {
    const isCoflow = selection?.kind === "flow" && this.frame?.coflows?.coflows.some(({ id }) => selection.flow === `${id}/`);
    if (selection?.kind === "flow" && !isCoflow) return; // it may be one of those that were found for its link
    this.found = null;
    if (isCoflow) this.#seek(null, [["coflow", `/v1/coflows/${selection.flow.slice(0, -1)}?`]]);
    if (selection?.kind !== "link") return;
    const { a, b } = this.fabric.links[selection.link], ends = [a, b].map((number) => this.fabric.nodes[number].id);
    this.#seek(selection.link, [["reads", `/v1/reads?link=${ends}&`], ["coflows", `/v1/coflow-flows?link=${ends}&`]]);
  }

  #seek(link, urls) {
    this.found = { link, urls, lists: urls.map(([name, url]) => ({ name, url, next: 0 })), flows: [], isAsked: false };
    this.#findIfLeftOut();
  }

  // Not before a frame leaves something out: a controller that was started again hears of its transfers one by one.
  #findIfLeftOut() {
    if (this.found && !this.found.isAsked && this.isLive && this.frame && this.left(this.frame).length) this.findMore();
  }

  get hasMore() {
    return this.isLive && this.found?.isAsked && this.found.lists.some(({ next }) => next !== null);
  }

  async findMore() {
    const { found } = this;
    if (found.isAsking) return; // a second click before the answer
    found.isAsked = found.isAsking = true;
    await Promise.all(found.lists.filter(({ next }) => next !== null).map(async (list) => {
      const answer = await fetch(`${list.url}limit=${FOUND_AT_ONCE}&offset=${list.next}`).catch(() => null);
      if (answer?.status === 404) list.next = null; // coflows are not scheduled here, or this one has ended
      const told = answer?.ok ? await answer.json().catch(() => null) : null;
      if (!told) return;
      found.flows.push(...told.reads ? this.#readFlows(told.reads) : this.#coflowFlows(told.members ? this.#membersOf(told, list.next) : told.flows));
      list.next = told.next_offset;
    }));
    found.isAsking = false;
    this.#tell("frame");
  }

  // The lists that a frame leaves something out of, with how many are shown; not those that were found for this link.
  left(frame, link = null) {
    const told = new Map((frame.members ?? []).map((coflow) => [coflow.id, coflow.members.length]));
    const lists = [["reads", frame.reads, frame.reads?.reads.length],
      ["coflows", frame.coflows, frame.coflows?.coflows.filter((coflow) => told.get(coflow.id) >= coflow.flows).length]];
    const found = link !== null && this.isLive && this.found?.link === link ? this.found.lists : [];
    return lists.filter(([name, list, shown]) => list?.total > shown && found.find((each) => each.name === name)?.next !== null);
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
      flows.push(...this.#coflowFlows(this.#membersOf(coflow, 0)));
    }
    return flows;
  }

  #membersOf(coflow, offset) {
    return coflow.members.map((member, index) => ({
      ...member, number: offset + index, coflow: coflow.id, coflow_state: coflow.state, position: coflow.position }));
  }

  #coflowFlows(members) {
    return members.map((member) => ({
      key: `${member.coflow}/${member.number}`, kind: "coflow", member, from: member.source_name,
      to: member.destination_name, path: this.#numbers(member.path), rate: null, share: member.rate_bps,
    }));
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
    if (connected) this.standsBy = null;
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
    this.#findIfLeftOut();
    this.#tell("frame");
  }

  #forget() {
    this.frames = [];
    this.cursor = null;
    if (this.found) this.#seek(this.found.link, this.found.urls);
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
