// A program that uses every type of the package. The test compiles it and runs it.
import { connect, GatewayError } from "distlock-gateway";
import type { End, Info, Message, Options, Outcome, Reconnecting, Sent } from "distlock-gateway";

const options: Options = {
  addresses: ["ws://127.0.0.1:1/ws"] as const,
  token: async () => "sesame",
  device: "pc",
  class: "web",
  intent: "takeover",
  timeout: 1000,
  onOpen: (info: Info) => console.log(info.gen + 1, info.oldConfirmed === "program"),
  onReconnecting: ({ code, delay, address, error }: Reconnecting) => {
    console.log(code?.toFixed(), delay.toFixed(), address.length, error);
  },
  onMessage: async ({ from, id, body }: Message) => console.log(from, id, body),
};
const session = connect(options);
try {
  const sent: Sent = await session.send("bob", { text: "hello" }, { toDevice: "pc", id: "m1" });
  const outcome: Outcome = sent.devices[0]?.outcome ?? sent.outcome;
  console.log(outcome, session.info?.node);
} catch (error) {
  if (!(error instanceof GatewayError) || error.code !== "not_open") throw error;
}
session.close();
// @ts-expect-error: a state that does not exist
if (session.state === "kicked") session.close();
// @ts-expect-error: no device
const missing: Options = { addresses: [], token: () => "t" };
void missing;
const end: End = await session.ended;
const handles: string[] = end.sessions.map(({ handle }) => handle);
connect({ ...options, end: handles }).close();
console.log("ended", end.code);
