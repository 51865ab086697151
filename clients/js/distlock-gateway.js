// The client of a distlock gateway, for browsers and for Node 22 and later.
//
// A `Session` is what the caller holds: it decides whether and when to connect again, and hands out
// messages in order. A `Connection` is one WebSocket from its opening to its end. Only a session
// logs in, and only one connection of it is in use at any time: a connection that was left tells
// nothing and sends nothing.
//
// The invariant: without its user, a client never logs in with anything but `resume`, once it has
// been let in. So it can end no session that was granted later than its own.

/** Codes of a notice whose session may be continued without the user, elsewhere or later. */
const RETURNS = new Set([6, 7, 8, 9]);
/** Codes for which the next address is tried at once. */
const AT_ONCE = new Set([6, 7, 8]);
/** A connection that lasted for this long ends a series of failures. */
const STABLE_MS = 10_000;
const SHORTEST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 30_000;
/** The longest time that `setTimeout` accepts. Beyond it, the timer would fire at once. */
const LONGEST_TIMER_MS = 2 ** 31 - 1;
/** Messages that are remembered, so that one that comes twice is handed out once. A node keeps 100
 * messages for an account, and 64 more may wait for their acknowledgement. */
const REMEMBERED = 1000;

/** Logs in, and keeps the session. The options are described in `distlock-gateway.d.ts`. */
export function connect(options) {
  return new Session(options);
}

/** Why a message was not sent, or is not known to have been sent. */
export class GatewayError extends Error {
  name = "GatewayError";

  constructor(code, reason, retryAfterMs) {
    super(reason);
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }
}

class Session {
  ended;
  #options;
  #state = "connecting";
  #info = null;
  /** The index of the address that is tried next. */
  #next = 0;
  #connection = null;
  /** What the next login shows to continue the session; null before the first `login_ok`. */
  #resume = null;
  /** Resumes so far. Their number tells a node which of two is the later one. It never falls: also
   * an attempt that a node has granted may get no answer, or another answer than `login_ok`. */
  #resumes = 0;
  /** Connections in a row that failed, or that ended soon. */
  #failures = 0;
  /** The wait for the token or for the next attempt: a session has one timer, a connection one. */
  #timer = null;
  /** Whether a node has said how long to wait. */
  #told = false;
  /** Messages that wait for their turn, each with the connection that it came from. */
  #queue = [];
  #working = false;
  #handled = new Set();
  /** Messages that were sent, by their id, until their outcome is known. */
  #sent = new Map();
  #end;
  #online = () => this.#networkIsBack();

  constructor(options) {
    const { addresses, token, device } = options;
    if (typeof WebSocket !== "function")
      throw new Error("there is no WebSocket here: Node has it from version 22 on");
    if (!Array.isArray(addresses) || addresses.length === 0)
      throw new TypeError("addresses must name at least one node");
    for (const address of addresses)
      if (!/^wss?:$/.test(new URL(address).protocol))
        throw new TypeError(`${address} must begin with ws:// or wss://`);
    if (typeof token !== "function") throw new TypeError("token must be a function");
    if (typeof device !== "string" || device === "")
      throw new TypeError(`device must be a text, and not empty: it is ${JSON.stringify(device)}`);
    this.#options = { class: "", intent: "login", timeout: 10_000, ...options };
    this.ended = new Promise((resolve) => (this.#end = resolve));
    // A browser says when a network is there again. Node has no such event.
    globalThis.addEventListener?.("online", this.#online);
    this.#attempt();
  }

  get state() {
    // After a sleep of the machine nothing has run yet that could have noticed it.
    this.#connection?.check();
    return this.#state;
  }

  get info() {
    return this.state === "open" ? this.#info : null;
  }

  send(to, body, { toDevice, toClass, id = randomId() } = {}) {
    id = String(id);
    if (this.state !== "open")
      return Promise.reject(new GatewayError("not_open", "the session is not open"));
    if (this.#sent.has(id))
      return Promise.reject(new GatewayError("bad_value", `${id} is still under way`));
    const frame = { type: "send", to, body, id, to_device: toDevice, to_class: toClass };
    return new Promise((resolve, reject) => {
      this.#connection.send(frame);
      this.#sent.set(id, { resolve, reject });
    });
  }

  close() {
    if (this.#state === "ended") return;
    if (this.#state === "open") this.#connection.send({ type: "logout" });
    this.#finish({ code: null, reason: "closed by this client", retry: "never", byDevice: null });
  }

  async #attempt() {
    this.#state = "connecting";
    // The timer is the mark of this attempt: when it is no more in place, the answer is too late.
    const { timeout } = this.#options;
    const late = () => this.#again({ code: null, reason: "no token came in time" });
    const timer = (this.#timer = setTimeout(late, timeout));
    const asked = new Stopwatch();
    let token;
    try {
      token = await textOf(await this.#options.token());
    } catch (error) {
      const reason = `no token: ${error?.message ?? error}`;
      if (this.#timer === timer) this.#again({ code: null, reason, error });
      return;
    }
    if (this.#timer !== timer) return;
    clearTimeout(timer);
    // A token from before a sleep may have expired, and a login with it would be the end.
    if (asked.elapsed() > timeout) late();
    else this.#open(token);
  }

  #open(token) {
    const { addresses, timeout, device, intent, end, version, class: of } = this.#options;
    const address = addresses[this.#next];
    this.#next = (this.#next + 1) % addresses.length;
    const login = { type: "login", v: 1, acks: true, token, device, version, class: of };
    if (this.#resume === null) Object.assign(login, { intent, end });
    else
      Object.assign(login, { intent: "resume", resume: this.#resume, attempt: ++this.#resumes });
    try {
      const connection = new Connection(address, timeout, login, {
        frame: (frame, late) => this.#frame(connection, frame, late),
        lost: (why) => this.#lost(why),
      });
      this.#connection = connection;
    } catch (error) {
      // A page that came by https may not connect to ws://.
      this.#again({ code: null, reason: "this address cannot be used here", error });
    }
  }

  /** `late`: so long after the sign of life before it that the node may have ended the session. */
  #frame(connection, frame, late) {
    const { code = null, reason = "", retry_after_ms: retryAfter = 0 } = frame;
    const byDevice = frame.by_device ?? null;
    switch (frame.type) {
      case "login_ok":
        // Even one that comes late names the session that has to be resumed.
        this.#resume = frame.resume;
        if (!late) this.#loggedIn(frame);
        break;
      case "message":
        // A node that gets no acknowledgement keeps the message, and sends it again.
        if (!late && this.#options.onMessage) this.#take(connection, frame);
        break;
      case "sent":
        this.#settle(frame.id, ({ resolve }) => {
          resolve({ id: frame.id, outcome: frame.outcome, devices: frame.devices });
        });
        break;
      case "offline":
        connection.send({ type: "bye" });
        // `intent` tells a node's "later" (9) from one that needs the user (4).
        if (frame.retry !== "never" && frame.intent === "resume")
          this.#again({ code, reason, byDevice, retryAfter });
        else this.#finish({ code, reason, retry: frame.retry, byDevice });
        break;
      case "denied":
        this.#over(code, reason, byDevice, frame.sessions);
        break;
      case "superseded":
        this.#over(byDevice === this.#options.device ? 2 : 1, "a newer login came", byDevice);
        break;
      case "busy":
        this.#again({ code: 9, reason: "the node is busy", retryAfter });
        break;
      case "error":
        this.#error(frame);
        break;
    }
  }

  #loggedIn({ uid, session, node, gen, old_confirmed: oldConfirmed, heartbeat_ms: heartbeat }) {
    this.#state = "open";
    this.#info = { uid, session, node, gen, oldConfirmed };
    this.#connection.loggedIn(heartbeat);
    this.#tell(this.#options.onOpen, this.#info);
  }

  #error({ code, reason, id, retry_after_ms: retryAfter }) {
    const error = new GatewayError(code, reason, retryAfter);
    if (id !== undefined) this.#settle(id, ({ reject }) => reject(error));
    // The store is out of reach, or this client was too slow: both may pass.
    else if (code === "unavailable" || code === "too_slow")
      this.#again({ code: null, reason, error });
    // The login itself is wrong, and would be wrong again. Later, after a frame over the limit for
    // example, the node ends the connection.
    else if (this.#state === "connecting")
      this.#finish({ code: null, reason, retry: "never", byDevice: null });
  }

  /** What a code without further advice means: of `denied`, or of a WebSocket that was closed. */
  #over(code, reason, byDevice = null, sessions) {
    if (RETURNS.has(code)) return this.#again({ code, reason, byDevice });
    const retry = code === 4 ? "later" : "never";
    this.#finish({ code, reason, retry, byDevice, sessions });
  }

  #lost({ closeCode, reason }) {
    if (closeCode >= 4500 && closeCode < 5000) this.#over(closeCode - 4500, reason);
    else if (closeCode >= 4001 && closeCode <= 4004) this.#over(closeCode - 3995, reason);
    else this.#again({ code: null, reason: reason || "the connection broke" });
  }

  /** Leaves the connection, and comes back after a pause. */
  #again({ code, reason, byDevice = null, retryAfter = 0, error }) {
    const lasted = this.#drop();
    if (lasted >= STABLE_MS) this.#failures = 0;
    const atOnce = AT_ONCE.has(code) && this.#failures < this.#options.addresses.length;
    const longest = Math.min(LONGEST_PAUSE_MS, SHORTEST_PAUSE_MS * 2 ** this.#failures);
    const pause = atOnce ? 0 : longest * (1 - Math.random() / 2);
    const told = retryAfter * (1 + Math.random() / 2);
    const delay = Math.min(Math.max(pause, told), LONGEST_TIMER_MS);
    this.#failures += 1;
    this.#state = "waiting";
    this.#told = retryAfter > 0;
    this.#timer = setTimeout(() => this.#attempt(), delay);
    const address = this.#options.addresses[this.#next];
    this.#tell(this.#options.onReconnecting, { code, reason, byDevice, delay, address, error });
  }

  #finish({ sessions = [], ...end }) {
    this.#drop();
    this.#state = "ended";
    globalThis.removeEventListener?.("online", this.#online);
    this.#end({ ...end, sessions });
  }

  /** Leaves the connection, and forgets what belonged to it. Returns how long it was logged in. */
  #drop() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const connection = this.#connection;
    this.#connection = null;
    this.#info = null;
    this.#queue = [];
    const unknown = "the connection ended before the outcome was known";
    for (const { reject } of this.#sent.values()) reject(new GatewayError("unknown", unknown));
    this.#sent.clear();
    return connection?.leave() ?? 0;
  }

  #settle(id, how) {
    const sent = this.#sent.get(id);
    this.#sent.delete(id);
    if (sent) how(sent);
  }

  #take(connection, frame) {
    this.#queue.push({ connection, frame });
    if (!this.#working) this.#work();
  }

  /** Hands out the messages one after the other. `ack` is for all messages up to its number: a
   * later message must not be acknowledged while an earlier one is not. */
  async #work() {
    this.#working = true;
    while (this.#queue.length > 0) {
      const { connection, frame } = this.#queue.shift();
      const { from, id, body, seq } = frame;
      const name = JSON.stringify([from, id]);
      if (!this.#handled.has(name)) {
        try {
          await this.#options.onMessage({ from, id, body });
        } catch (error) {
          // Nothing after it may be acknowledged on this connection. The next one brings it again.
          if (connection === this.#connection)
            this.#again({ code: null, reason: "onMessage failed", error });
          continue;
        }
        this.#handled.add(name);
        if (this.#handled.size > REMEMBERED)
          this.#handled.delete(this.#handled.values().next().value);
      }
      // The numbers start again with each connection: one that was left sends nothing.
      connection.send({ type: "ack", seq });
    }
    this.#working = false;
  }

  #networkIsBack() {
    if (this.#state === "open") this.#connection.ping();
    if (this.#state !== "waiting" || this.#told) return;
    clearTimeout(this.#timer);
    this.#attempt();
  }

  /** Callbacks never run inside a call of their own program. What they throw is reported as usual,
   * and changes nothing here. */
  #tell(callback, what) {
    queueMicrotask(() => this.#state !== "ended" && callback?.(what));
  }
}

/** One WebSocket, from its opening to its end, which it tells once. */
class Connection {
  #socket;
  #tell;
  /** How long an answer may take. */
  #patience;
  #interval;
  /** After a longer silence, the node may have ended the session. */
  #limit;
  #timer = null;
  #heard = new Stopwatch();
  #loggedIn = null;
  #left = false;

  constructor(address, patience, login, tell) {
    this.#tell = tell;
    this.#patience = patience;
    // Until the node has said how much silence it accepts. It answers during a login, too.
    this.#interval = patience / 2;
    this.#limit = this.#interval + patience;
    this.#socket = new WebSocket(address);
    this.#socket.onopen = () => {
      this.check();
      if (this.#left) return;
      this.#heard = new Stopwatch();
      this.send(login);
      this.ping();
    };
    this.#socket.onmessage = ({ data }) => this.#receive(data);
    this.#socket.onclose = ({ code, reason }) => this.#lost({ closeCode: code, reason });
    this.#wait(patience);
  }

  /** From now on, the node ends a session that it hears nothing from for `heartbeat` ms. */
  loggedIn(heartbeat) {
    this.#loggedIn = new Stopwatch();
    this.#interval = heartbeat / 3;
    this.#limit = Math.min(this.#interval + this.#patience, heartbeat);
    this.#pingLater();
  }

  send(frame) {
    const text = JSON.stringify(frame);
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(text);
  }

  ping() {
    this.send({ type: "ping" });
    this.#wait(this.#patience);
  }

  /** Ends the connection if its node has been silent for too long. */
  check() {
    if (!this.#left && this.#isLate())
      this.#lost({ reason: "nothing was heard from the node for too long" });
  }

  /** Closes, and tells nothing more. Returns how long the connection was logged in. */
  leave() {
    this.#left = true;
    clearTimeout(this.#timer);
    const { CONNECTING, OPEN } = WebSocket;
    if ([CONNECTING, OPEN].includes(this.#socket.readyState)) this.#socket.close(1000);
    return this.#loggedIn?.elapsed() ?? 0;
  }

  #receive(data) {
    if (this.#left) return;
    // What waited in a buffer while the machine slept is no sign of life.
    const late = this.#isLate();
    if (!late) this.#heard = new Stopwatch();
    let frame;
    try {
      frame = JSON.parse(data);
    } catch {
      return this.#lost({ reason: "the node sent something else than a frame" });
    }
    // A timer that is set here, and not by another timer, is not slowed down to once a minute in a
    // tab that nobody looks at.
    if (frame.type === "pong" && !late) this.#pingLater();
    this.#tell.frame(frame, late);
    this.check();
  }

  #pingLater() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.check();
      if (!this.#left) this.ping();
    }, this.#interval);
  }

  /** Waits for a sign of life. Another frame than the answer to the ping is one, too. */
  #wait(time) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      const silent = this.#heard.elapsed();
      if (silent >= this.#patience) this.#lost({ reason: "the node does not answer" });
      else this.#wait(this.#patience - silent);
    }, time);
  }

  #isLate() {
    return this.#heard.elapsed() > this.#limit;
  }

  #lost(why) {
    if (this.#left) return;
    this.leave();
    this.#tell.lost(why);
  }
}

/** The time since a moment. One clock may stand still while the machine sleeps, and the other may
 * be set back: the longer time counts. */
class Stopwatch {
  #date = Date.now();
  #steady = performance.now();

  elapsed() {
    return Math.max(Date.now() - this.#date, performance.now() - this.#steady);
  }
}

/** 128 random bits. `crypto.randomUUID` is missing in pages that came by http. */
/** The token itself, of what the program returned for it. */
async function textOf(token) {
  if (!(token instanceof Response)) return token;
  if (!token.ok) throw new Error(`${token.url} answered ${token.status}`);
  return (await token.text()).trim();
}

function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
