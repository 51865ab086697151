// One session, in Node or in a page, for the tests in tests/gateway: it prints what happens to it,
// and does what the bodies of its messages say.
//
//   node driver.js '{"options": {..}, "token": "..", "tokenFailures": 0}'
import { connect } from "../distlock-gateway.js";

const TICK_MS = 50;

/** Prints each frame, so that a test sees what a node sees. */
function traced(Plain, print) {
  return class extends Plain {
    constructor(address) {
      super(address);
      print({ event: "connects", address });
      const tell = ({ data }) => print({ event: "in", frame: JSON.parse(data) });
      this.addEventListener("message", tell);
    }

    send(text) {
      print({ event: "out", frame: JSON.parse(text) });
      super.send(text);
    }
  };
}

export function play({ options, token, tokenFailures = 0 }, print) {
  globalThis.WebSocket = traced(WebSocket, print);
  let failures = 0;
  const session = connect({
    ...options,
    token: async () => {
      if (tokenFailures-- > 0) throw new Error("no token yet");
      return token;
    },
    onOpen: (info) => print({ event: "open", info, state: session.state }),
    onReconnecting: (why) => {
      print({ event: "reconnecting", ...why, error: why.error?.message, state: session.state });
    },
    onMessage: async ({ from, id, body }) => {
      print({ event: "message", from, id, body });
      if (body.fail > failures) {
        failures += 1;
        throw new Error(`failure ${failures}`);
      }
      if (body.close) session.close();
      if (body.send) {
        const { to, text } = body.send;
        const tell = (what) => print({ event: "sent", ...what });
        session.send(to, text).then(tell, ({ code }) => tell({ code }));
      }
      print({ event: "handled", id });
    },
  });
  // The first thing that runs after a sleep says what the session takes itself for.
  let last = Date.now();
  const ticks = setInterval(() => {
    const slept = Date.now() - last;
    last = Date.now();
    if (slept > 40 * TICK_MS) print({ event: "woke", slept, state: session.state });
  }, TICK_MS);
  session.ended.then((end) => {
    clearInterval(ticks);
    print({ event: "ended", ...end, state: session.state });
  });
}

// In Node, the process ends when nothing is left to wait for: after `ended`, no timer may be left.
if (globalThis.process !== undefined)
  play(JSON.parse(process.argv[2]), (line) => console.log(JSON.stringify(line)));
