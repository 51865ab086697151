// Every step of a session, with a clock and WebSockets that the tests move by hand:
//
//   node --test clients/js/tests/machine.js
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { connect, GatewayError } from "../distlock-gateway.js";

const HOUR = 3_600_000;
const HEARTBEAT = 60_000;
const TIMEOUT = 10_000;

/** The time, and all timers that are set. */
const clock = {
  now: 1_000_000,
  timers: new Map(),
  number: 0,
  set(run, delay) {
    assert.ok(delay >= 0 && delay < 2 ** 31, `a timer of ${delay} ms`);
    clock.number += 1;
    clock.timers.set(clock.number, { run, at: clock.now + delay });
    return clock.number;
  },
  clear: (number) => clock.timers.delete(number),
};
globalThis.setTimeout = clock.set;
globalThis.clearTimeout = clock.clear;
Date.now = () => clock.now;
performance.now = () => clock.now;

/** Lets everything happen that waits for no timer. */
const settle = () => new Promise((done) => setImmediate(done));

/** Lets time pass, and each timer run when it is due. */
async function pass(ms) {
  const until = clock.now + ms;
  for (;;) {
    await settle();
    const due = [...clock.timers].filter(([, { at }]) => at <= until);
    if (due.length === 0) break;
    due.sort(([, one], [, other]) => one.at - other.at);
    const [number, { run, at }] = due[0];
    clock.timers.delete(number);
    clock.now = Math.max(clock.now, at);
    run();
  }
  clock.now = until;
}

/** The machine sleeps: time passes, and no timer runs. */
const sleep = (ms) => (clock.now += ms);

class Socket {
  static CONNECTING = 0;
  static OPEN = 1;
  static CLOSING = 2;
  static CLOSED = 3;
  static made = [];
  static refuses = false;
  readyState = Socket.CONNECTING;
  frames = [];

  constructor(address) {
    if (Socket.refuses) throw new Error("mixed content");
    this.address = address;
    Socket.made.push(this);
  }

  send(text) {
    assert.equal(this.readyState, Socket.OPEN, "sent to a closed socket");
    this.frames.push(JSON.parse(text));
  }

  close() {
    this.readyState = Socket.CLOSING;
  }

  opens() {
    this.readyState = Socket.OPEN;
    this.onopen();
  }

  says(frame) {
    this.onmessage({ data: typeof frame === "string" ? frame : JSON.stringify(frame) });
  }

  ends(code = 1006, reason = "") {
    this.readyState = Socket.CLOSED;
    this.onclose({ code, reason });
  }

  count(type) {
    return this.frames.filter((frame) => frame.type === type).length;
  }
}
globalThis.WebSocket = Socket;

const ADDRESSES = ["ws://a/ws", "ws://b/ws"];
const last = () => Socket.made.at(-1);

/** No session leaves a timer. */
let started = [];
afterEach(() => {
  for (const session of started) session.close();
  started = [];
  const left = clock.timers.size;
  clock.timers.clear();
  assert.equal(left, 0, "timers");
});

/** A session of a test, and what it was told. */
async function start(options = {}) {
  Socket.made = [];
  const told = [];
  const session = connect({
    addresses: ADDRESSES,
    token: () => "sesame",
    device: "pc",
    timeout: TIMEOUT,
    onOpen: (info) => told.push({ open: info }),
    onReconnecting: (why) => told.push({ reconnecting: why }),
    ...options,
  });
  session.ended.then((end) => told.push({ end }));
  started.push(session);
  await settle();
  return { session, told };
}

function logIn(socket, resume = "r1") {
  if (socket.readyState === Socket.CONNECTING) socket.opens();
  const who = { uid: "anna", session: "s", node: "n1", gen: 1, old_confirmed: "program" };
  const rest = { v: 1, acks: true, saves: false, heartbeat_ms: HEARTBEAT };
  socket.says({ type: "login_ok", resume, ...who, ...rest });
}

async function startOpen(options) {
  const it = await start(options);
  logIn(last());
  assert.equal(it.session.state, "open");
  return it;
}

/** Nothing is left that could happen: no timer, no new connection. */
async function isOver({ session, told }, expected) {
  const made = Socket.made.length;
  await pass(HOUR);
  assert.equal(clock.timers.size, 0, "timers");
  assert.equal(Socket.made.length, made, "connections");
  assert.equal(session.state, "ended");
  const { end } = told.at(-1);
  assert.deepEqual({ ...end, ...expected }, end);
}

/** The session comes back by itself, at the next address, as the session that it was. */
async function comesBack({ session }, from, [soonest, latest], resume = "r1") {
  const made = Socket.made.length;
  assert.equal(session.state, "waiting");
  const begun = clock.now;
  while (Socket.made.length === made && clock.now - begun < HOUR) await pass(1);
  const took = clock.now - begun;
  assert.ok(took >= soonest && took <= latest + 2, `after ${took} ms`);
  assert.notEqual(last().address, from.address);
  last().opens();
  const [login] = last().frames;
  const expected = resume === null ? { intent: "login" } : { intent: "resume", resume };
  assert.deepEqual({ ...login, ...expected }, login);
  session.close();
  await settle();
  assert.equal(clock.timers.size, 0, "timers after close()");
}

const offline = (code, more = {}) => {
  const retry = [4, 9].includes(code) ? "later" : code < 6 ? "never" : "now";
  const intent = code < 6 ? "login" : "resume";
  return {
    type: "offline", code, reason: "why", retry, intent, retry_after_ms: 0,
    by_device: code === 1 ? "phone" : null, gen: 2, grace_ms: 2000, ...more,
  };
};

for (const code of [1, 2, 3, 4, 5])
  test(`offline ${code}, denied ${code} and close ${4500 + code} end the session`, async () => {
    const retry = code === 4 ? "later" : "never";
    for (const say of [
      (socket) => socket.says(offline(code)),
      (socket) => socket.says({ type: "denied", code, reason: "why", by_device: null }),
      (socket) => socket.ends(4500 + code, "why"),
    ]) {
      const it = await startOpen();
      const socket = last();
      say(socket);
      socket.ends(1000);
      await isOver(it, { code, reason: "why", retry });
    }
    const it = await start();
    last().opens();
    last().says({ type: "denied", code, reason: "why", by_device: "phone" });
    await isOver(it, { code, retry, byDevice: "phone" });
  });

for (const code of [6, 7, 8, 9])
  test(`offline ${code}, denied ${code} and close ${3995 + code} resume elsewhere`, async () => {
    const pause = code === 9 ? [250, 500] : [0, 0];
    for (const [say, delay] of [
      [(socket) => socket.says(offline(code)), pause],
      [(socket) => socket.says(offline(code, { retry_after_ms: 700 })), [700, 1050]],
      [(socket) => socket.says({ type: "denied", code, reason: "why" }), pause],
      [(socket) => socket.ends(3995 + code, "why"), pause],
    ]) {
      const it = await startOpen();
      const socket = last();
      say(socket);
      await settle();
      assert.equal(it.told.at(-1).reconnecting.code, code);
      await comesBack(it, socket, delay);
    }
  });

test("an offline notice is answered with bye, and the connection is closed", async () => {
  const it = await startOpen();
  last().says(offline(1));
  assert.equal(last().count("bye"), 1);
  assert.equal(last().readyState, Socket.CLOSING);
  await isOver(it, { code: 1, byDevice: "phone" });
});

test("a node that knows a code of its own is obeyed", async () => {
  let it = await startOpen();
  last().says(offline(77, { retry: "never", intent: "login" }));
  await isOver(it, { code: 77 });
  it = await startOpen();
  const socket = last();
  last().says(offline(77, { retry: "later", intent: "resume", retry_after_ms: 5000 }));
  await comesBack(it, socket, [5000, 7500]);
});

test("all nodes drain: the addresses are tried once at once, and then with pauses", async () => {
  const { session, told } = await start();
  for (let at = 0; at < 6; at += 1) {
    last().opens();
    last().says({ type: "denied", code: 6, reason: "drains" });
    await settle();
    await pass(told.at(-1).reconnecting.delay);
  }
  const delays = told.map(({ reconnecting }) => reconnecting.delay);
  assert.deepEqual(delays.slice(0, 2), [0, 0]);
  for (const [at, delay] of delays.slice(2).entries())
    assert.ok(delay >= 250 * 2 ** (at + 2) && delay <= 500 * 2 ** (at + 2), `${delays}`);
  session.close();
});

test("pauses grow to 30 s, and begin again after a connection that lasted", async () => {
  const { session, told } = await start();
  const fails = async () => {
    last().ends();
    await settle();
    const { delay } = told.at(-1).reconnecting;
    await pass(delay);
    return delay;
  };
  for (let at = 0; at < 12; at += 1) await fails();
  const longest = await fails();
  assert.ok(longest >= 15_000 && longest <= 30_000, `${longest}`);
  logIn(last());
  assert.ok((await fails()) >= 15_000, "it lasted for no time");
  logIn(last());
  await pass(TIMEOUT);
  assert.ok((await fails()) <= 500, "it lasted");
  session.close();
});

test("each failure of a login is tried again, and only as the user's first login", async () => {
  for (const fail of [
    (socket) => socket.ends(),
    (socket) => socket.says({ type: "busy", retry_after_ms: 300 }),
    (socket) => socket.says({ type: "error", code: "unavailable", reason: "no store" }),
    (socket) => socket.says({ type: "error", code: "too_slow", reason: "no login" }),
    (socket) => socket.says("no frame"),
    (socket) => socket.ends(1008),
  ]) {
    const it = await start({ intent: "takeover" });
    const socket = last();
    socket.opens();
    assert.equal(socket.frames[0].intent, "takeover");
    fail(socket);
    await pass(0);
    assert.equal(it.session.state, "waiting");
    const made = Socket.made.length;
    await pass(500);
    assert.equal(Socket.made.length, made + 1);
    last().opens();
    assert.equal(last().frames[0].intent, "takeover");
    it.session.close();
  }
});

test("a node that does not answer is left after the timeout, in every phase", async () => {
  for (const reach of [() => {}, () => last().opens(), () => logIn(last())]) {
    const it = await start();
    reach();
    const socket = last();
    await pass(HEARTBEAT / 3 + TIMEOUT - 1);
    assert.notEqual(socket.readyState, Socket.CLOSED);
    await pass(1);
    assert.equal(socket.readyState, Socket.CLOSING);
    assert.match(it.told.at(-1).reconnecting.reason, /answer|heard/);
    it.session.close();
  }
});

test("a login that takes long is waited for while the node answers", async () => {
  const it = await start();
  last().opens();
  for (let at = 0; at < 20; at += 1) {
    await pass(TIMEOUT / 2);
    last().says({ type: "pong" });
  }
  logIn(last());
  assert.equal(it.session.state, "open");
  it.session.close();
});

test("a login that is wrong is not tried again", async () => {
  const it = await start();
  last().opens();
  last().says({ type: "error", code: "bad_value", reason: "class is fridge" });
  last().ends(1008);
  await isOver(it, { code: null, reason: "class is fridge", retry: "never" });
});

test("a login that a newer one overtook is over", async () => {
  for (const [by, code] of [["phone", 1], ["pc", 2], [null, 1]]) {
    const it = await start();
    last().opens();
    last().says({ type: "superseded", by_device: by, gen: 2 });
    await isOver(it, { code, byDevice: by });
  }
});

test("a user who is denied chooses the session that the next login ends, once", async () => {
  const sessions = [{ handle: "h1", device: "tv", class: "", since_ms: 1 }];
  let it = await start();
  last().opens();
  assert.equal("end" in last().frames[0], false);
  last().says({ type: "denied", code: 4, reason: "no", by_device: "tv", sessions });
  await isOver(it, { code: 4, retry: "later", sessions });

  it = await startOpen({ end: ["h1"] });
  assert.deepEqual(last().frames[0].end, ["h1"]);
  last().ends();
  await pass(500);
  last().opens();
  assert.equal("end" in last().frames[0], false, "a resume ends nobody");
  last().says(offline(1));
  await isOver(it, { code: 1, sessions: [] });
});

test("a resume that is refused ends the session", async () => {
  const it = await startOpen();
  last().ends();
  await pass(500);
  last().opens();
  assert.equal(last().frames[0].intent, "resume");
  last().says({ type: "denied", code: 1, reason: "another device logged in", by_device: "x" });
  await isOver(it, { code: 1, byDevice: "x" });
});

test("each resume has a higher number than all before it", async () => {
  const it = await start();
  last().opens();
  assert.equal("attempt" in last().frames[0], false, "a login has no number");
  logIn(last(), "r1");
  const shown = [];
  for (const [fail, resume] of [
    [(socket) => socket.ends(), null],
    [(socket) => socket.says({ type: "busy", retry_after_ms: 300 }), null],
    [(socket) => socket.says({ type: "denied", code: 6, reason: "drains" }), null],
    [(socket) => socket.says({ type: "error", code: "unavailable", reason: "no store" }), "r2"],
    [(socket) => socket.ends(), "r3"],
    [(socket) => socket.says(offline(8)), null],
    [() => {}, null],
  ]) {
    fail(last());
    const made = Socket.made.length;
    while (Socket.made.length === made) await pass(100);
    last().opens();
    shown.push([last().frames[0].resume, last().frames[0].attempt]);
    if (resume !== null) logIn(last(), resume);
  }
  const expected = ["r1", "r1", "r1", "r1", "r2", "r3", "r3"].map((token, at) => [token, at + 1]);
  assert.deepEqual(shown, expected);
  it.session.close();
});

test("a token that cannot be had is asked for again", async () => {
  let asked = 0;
  const hangs = new Promise(() => {});
  const answers = [
    () => Promise.reject(new Error("401")),
    () => { throw new Error("offline"); },
    () => Promise.reject(),
    () => hangs,
    () => new Response("not here", { status: 404 }),
    () => Promise.resolve(new Response("sesame\n")),
  ];
  const it = await start({ token: () => answers[asked++]() });
  while (asked < 6) await pass(100);
  assert.equal(it.told.length, 5);
  assert.equal(it.told[0].reconnecting.error.message, "401");
  assert.match(it.told[4].reconnecting.reason, /^no token: .*404$/);
  last().opens();
  assert.equal(last().frames[0].token, "sesame");
  it.session.close();
});

test("a token that fails after close() changes nothing", async () => {
  let fail;
  const it = await start({ token: () => new Promise((_, reject) => (fail = reject)) });
  it.session.close();
  fail(new Error("late"));
  await isOver(it, { code: null });
});

test("a token that comes after its timeout, or after close(), is not used", async () => {
  let give = [];
  const token = () => new Promise((resolve) => give.push(resolve));
  const it = await start({ token });
  await pass(TIMEOUT + 500);
  assert.equal(give.length, 2);
  give[0]("late");
  await settle();
  assert.equal(Socket.made.length, 0);
  it.session.close();
  give[1]("later");
  await settle();
  assert.equal(Socket.made.length, 0);
  await isOver(it, { code: null });
});

test("close() leaves no timer, in every state, and logs out", async () => {
  for (const reach of [
    () => {},
    () => last().opens(),
    () => logIn(last()),
    () => { logIn(last()); last().ends(); },
    () => { logIn(last()); last().says(offline(6, { retry_after_ms: 5000 })); },
    () => last().ends(),
  ]) {
    const it = await start();
    reach();
    const was = it.session.state;
    it.session.close();
    it.session.close();
    assert.equal(clock.timers.size, 0, was);
    assert.equal(last().count("logout"), was === "open" ? 1 : 0);
    await isOver(it, { code: null, retry: "never" });
  }
});

test("an address that the browser refuses is not the end", async () => {
  Socket.refuses = true;
  const it = await start();
  await pass(0);
  assert.equal(it.told[0].reconnecting.error.message, "mixed content");
  Socket.refuses = false;
  await pass(500);
  assert.equal(Socket.made.length, 1);
  it.session.close();
});

test("options that cannot work are refused at once", () => {
  const good = { addresses: ADDRESSES, token: () => "t", device: "d" };
  for (const wrong of [
    { addresses: [] }, { addresses: "ws://a/ws" }, { addresses: ["http://a/ws"] },
    { addresses: ["a"] }, { token: "sesame" }, { device: "" },
  ])
    assert.throws(() => connect({ ...good, ...wrong }), TypeError);
  globalThis.WebSocket = undefined;
  assert.throws(() => connect(good), /Node has it from version 22/);
  globalThis.WebSocket = Socket;
  assert.equal(clock.timers.size, 0);
});

test("pings keep the session, well within the node's heartbeat", async () => {
  const it = await startOpen();
  const socket = last();
  for (let at = 1; at <= 100; at += 1) {
    const before = socket.count("ping");
    await pass(HEARTBEAT / 3);
    assert.equal(socket.count("ping"), before + 1);
    socket.says({ type: "pong" });
  }
  assert.equal(it.session.state, "open");
  assert.ok(clock.timers.size <= 1);
  it.session.close();
});

test("another frame than the pong is a sign of life, too", async () => {
  const it = await startOpen({ onMessage: () => {} });
  const socket = last();
  await pass(HEARTBEAT / 3);
  for (let seq = 1; seq < 10; seq += 1) {
    await pass(TIMEOUT - 1);
    socket.says({ type: "message", from: "bob", id: `m${seq}`, body: 1, seq });
  }
  assert.equal(it.session.state, "open");
  await pass(TIMEOUT);
  assert.equal(it.session.state, "waiting");
  it.session.close();
});

test("after a sleep the session is not open, before anything has run", async () => {
  for (const slept of [HEARTBEAT / 3 + TIMEOUT + 1, HEARTBEAT + 1, 10 * HOUR]) {
    const it = await startOpen();
    const socket = last();
    sleep(slept);
    assert.equal(it.session.info, null);
    assert.equal(it.session.state, "waiting");
    const refused = await it.session.send("bob", 1).catch((error) => error);
    assert.equal(refused.code, "not_open");
    assert.equal(socket.count("send"), 0);
    await comesBack(it, socket, [250, 500]);
  }
  const it = await startOpen();
  sleep(HEARTBEAT / 3 + TIMEOUT - 1);
  assert.equal(it.session.state, "open", "a nap");
  it.session.close();
});

test("either clock alone notices a sleep", async () => {
  for (const stands of [Date, performance]) {
    const real = stands.now;
    const stopped = clock.now;
    stands.now = () => stopped;
    const it = await startOpen();
    sleep(HOUR);
    assert.equal(it.session.state, "waiting");
    stands.now = real;
    it.session.close();
  }
});

test("a token from before a sleep is not used", async () => {
  let give;
  const token = () => new Promise((resolve) => (give = resolve));
  for (const sleeps of [
    () => { sleep(HOUR); give("old"); },
    async () => { give("old"); await settle(); sleep(HOUR); last().opens(); },
  ]) {
    const it = await start({ token });
    await sleeps();
    await settle();
    assert.equal(it.session.state, "waiting");
    await pass(500);
    give("new");
    await settle();
    last().opens();
    const logins = Socket.made.flatMap(({ frames }) => frames.filter((it) => it.token));
    assert.deepEqual(logins.map(({ token }) => token), ["new"]);
    it.session.close();
  }
});

test("after a sleep a buffered message is not handed out, and a notice is obeyed", async () => {
  const messages = [];
  const onMessage = ({ id }) => messages.push(id);
  let it = await startOpen({ onMessage });
  let socket = last();
  sleep(HOUR);
  socket.says({ type: "message", from: "bob", id: "m1", body: 1, seq: 1 });
  socket.says({ type: "message", from: "bob", id: "m2", body: 1, seq: 2 });
  await settle();
  assert.ok(it.told.at(-1).reconnecting, "before a timer ran");
  assert.deepEqual(messages, []);
  assert.equal(socket.count("ack"), 0);
  await comesBack(it, socket, [250, 500]);

  it = await startOpen({ onMessage });
  sleep(HOUR);
  last().says(offline(1));
  await isOver(it, { code: 1 });
});

test("a login_ok that comes after a sleep names the session that is resumed", async () => {
  const it = await start();
  const socket = last();
  socket.opens();
  sleep(HOUR);
  logIn(socket, "r9");
  await settle();
  assert.deepEqual(it.told.filter(({ open }) => open), []);
  await comesBack(it, socket, [250, 500], "r9");
});

test("a message is acknowledged after its callback, and the next one waits for it", async () => {
  const begun = [];
  const onMessage = ({ id }) => new Promise((done) => begun.push({ id, done }));
  const it = await startOpen({ onMessage });
  const socket = last();
  for (const seq of [1, 2, 3])
    socket.says({ type: "message", from: "bob", id: `m${seq}`, body: seq, seq });
  for (const seq of [1, 2, 3]) {
    await settle();
    assert.equal(begun.length, seq);
    assert.equal(begun.at(-1).id, `m${seq}`);
    assert.equal(socket.count("ack"), seq - 1);
    begun.at(-1).done();
  }
  await settle();
  const acks = socket.frames.filter(({ type }) => type === "ack").map(({ seq }) => seq);
  assert.deepEqual(acks, [1, 2, 3]);
  it.session.close();
});

test("a message that comes twice is shown once, and acknowledged twice", async () => {
  const shown = [];
  const it = await startOpen({ onMessage: ({ from, id }) => shown.push(`${from} ${id}`) });
  const socket = last();
  for (const [from, id, seq] of [["bob", "m1", 1], ["bob", "m1", 2], ["otto", "m1", 3]])
    socket.says({ type: "message", from, id, body: 1, seq });
  await settle();
  assert.deepEqual(shown, ["bob m1", "otto m1"]);
  assert.equal(socket.count("ack"), 3);
  it.session.close();
});

test("a callback that fails acknowledges nothing, and gets the message again", async () => {
  const tried = [];
  const onMessage = async ({ id }) => {
    tried.push(id);
    if (tried.length <= 2) throw new Error("full");
  };
  const it = await startOpen({ onMessage });
  for (const seq of [1, 2]) {
    const socket = last();
    socket.says({ type: "message", from: "bob", id: "m1", body: 1, seq: 1 });
    socket.says({ type: "message", from: "bob", id: "m2", body: 1, seq: 2 });
    await settle();
    assert.equal(socket.count("ack"), 0);
    assert.equal(it.session.state, "waiting");
    const { reason, error, delay } = it.told.at(-1).reconnecting;
    assert.deepEqual([reason, error.message], ["onMessage failed", "full"]);
    assert.ok(delay >= 250 * seq, "pauses grow although each login succeeded");
    await pass(delay);
    logIn(last());
  }
  const socket = last();
  socket.says({ type: "message", from: "bob", id: "m1", body: 1, seq: 1 });
  socket.says({ type: "message", from: "bob", id: "m2", body: 1, seq: 2 });
  await settle();
  assert.deepEqual(tried, ["m1", "m1", "m1", "m2"]);
  assert.equal(socket.count("ack"), 2);
  it.session.close();
});

test("a callback that outlives its connection acknowledges on the next one alone", async () => {
  const begun = [];
  const onMessage = ({ id }) => new Promise((done) => begun.push({ id, done }));
  const it = await startOpen({ onMessage });
  const first = last();
  first.says({ type: "message", from: "bob", id: "m1", body: 1, seq: 1 });
  first.says({ type: "message", from: "bob", id: "m2", body: 1, seq: 2 });
  await settle();
  first.ends();
  await pass(500);
  const second = last();
  logIn(second, "r2");
  second.says({ type: "message", from: "bob", id: "m1", body: 1, seq: 1 });
  second.says({ type: "message", from: "bob", id: "m2", body: 1, seq: 2 });
  await settle();
  assert.equal(begun.length, 1, "one at a time");
  begun[0].done();
  await settle();
  assert.deepEqual([first.count("ack"), second.count("ack")], [0, 1]);
  assert.deepEqual(begun.map(({ id }) => id), ["m1", "m2"]);
  begun[1].done();
  await settle();
  assert.equal(second.count("ack"), 2);
  it.session.close();
});

test("close() in a callback is the end: nothing is acknowledged, nothing more comes", async () => {
  const shown = [];
  let session;
  const onMessage = ({ id }) => {
    shown.push(id);
    session.close();
  };
  const it = await startOpen({ onMessage });
  session = it.session;
  const socket = last();
  for (const seq of [1, 2])
    socket.says({ type: "message", from: "bob", id: `m${seq}`, body: 1, seq });
  await isOver(it, { code: null });
  assert.deepEqual([shown, socket.count("ack")], [["m1"], 0]);
});

test("without onMessage nothing is acknowledged", async () => {
  const it = await startOpen();
  last().says({ type: "message", from: "bob", id: "m1", body: 1, seq: 1 });
  await settle();
  assert.equal(last().count("ack"), 0);
  it.session.close();
});

test("the outcome of a message comes to its sender", async () => {
  const it = await startOpen();
  const socket = last();
  const fails = (sending) => sending.then(assert.fail, (error) => error);
  const sent = it.session.send("bob", { a: 1 }, { id: "m1", toDevice: "phone" });
  const { type, to, to_device, body, id } = socket.frames.at(-1);
  assert.deepEqual([type, to, to_device, body, id], ["send", "bob", "phone", { a: 1 }, "m1"]);
  assert.equal((await fails(it.session.send("bob", 1, { id: "m1" }))).code, "bad_value");
  const devices = [{ device: "phone", class: "", outcome: "delivered" }];
  socket.says({ type: "sent", id: "m1", outcome: "delivered", devices });
  assert.deepEqual(await sent, { id: "m1", outcome: "delivered", devices });

  const refused = it.session.send("bob", 1, { id: "m2" });
  const error = { type: "error", id: "m2", code: "throttled", reason: "r", retry_after_ms: 9 };
  socket.says(error);
  const { code, retryAfterMs, message } = await fails(refused);
  assert.deepEqual([code, retryAfterMs, message], ["throttled", 9, "r"]);
  assert.equal(it.session.state, "open");

  const circle = {};
  circle.circle = circle;
  assert.ok((await fails(it.session.send("bob", circle))) instanceof TypeError);

  const lost = it.session.send("bob", 1);
  assert.match(socket.frames.at(-1).id, /^[0-9a-f]{32}$/);
  socket.ends();
  const unknown = await fails(lost);
  assert.ok(unknown instanceof GatewayError && unknown.code === "unknown");
  assert.equal((await fails(it.session.send("bob", 1))).code, "not_open");
  await pass(500);
  logIn(last());
  const again = it.session.send("bob", 1, { id: socket.frames.at(-1).id });
  last().says({ type: "sent", id: last().frames.at(-1).id, outcome: "stored", devices: [] });
  assert.equal((await again).outcome, "stored");
  it.session.close();
});

test("an error about a frame does not end the session, but its connection", async () => {
  const it = await startOpen();
  const socket = last();
  socket.says({ type: "error", code: "too_long", reason: "the frame is over the limit" });
  assert.equal(it.session.state, "open");
  socket.ends(1009, "the frame is over the limit");
  await settle();
  assert.equal(it.told.at(-1).reconnecting.reason, "the frame is over the limit");
  await comesBack(it, socket, [250, 500]);
});

test("frames and events of a connection that was left are ignored", async () => {
  const it = await startOpen();
  const old = last();
  old.says(offline(6));
  await pass(0);
  const socket = last();
  logIn(socket, "r2");
  old.says(offline(1));
  old.says({ type: "login_ok", resume: "wrong" });
  old.ends(4501);
  assert.equal(it.session.state, "open");
  socket.ends();
  await comesBack(it, socket, [250, 1000], "r2");
});

test("when the network is back, the pause ends, unless a node has asked for it", async () => {
  const heard = new Set();
  globalThis.addEventListener = (event, run) => event === "online" && heard.add(run);
  globalThis.removeEventListener = (event, run) => heard.delete(run);
  const online = () => heard.forEach((run) => run());
  const it = await startOpen();
  await pass(1);
  const pings = last().count("ping");
  online();
  assert.equal(last().count("ping"), pings + 1, "an open connection is tried");
  last().ends();
  online();
  await settle();
  assert.equal(Socket.made.length, 2);
  last().opens();
  last().says({ type: "busy", retry_after_ms: 5000 });
  online();
  await settle();
  assert.equal(Socket.made.length, 2);
  it.session.close();
  assert.equal(heard.size, 0);
  delete globalThis.addEventListener;
  delete globalThis.removeEventListener;
});
