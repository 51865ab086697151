/** What a session is made of. */
export interface Options {
  /** The nodes' WebSockets: `wss://a.example/ws`. Each new connection goes to the next one. */
  addresses: readonly string[];
  /** Returns a login token, or the answer of `fetch` whose body is one. It is called before each
   * connection, because tokens expire; so let no cache answer (`cache: "no-store"`). If it throws,
   * if the answer is no success, or if it takes longer than `timeout`, it is called again after a
   * pause. */
  token: () => string | Response | Promise<string | Response>;
  /** This device's name. A login ends the session of the same device, whatever the policy is. */
  device: string;
  /** The class of the device, for policies that count by class. */
  class?: string;
  /** The version of this program, for the administrators: 1 to 64 bytes. */
  version?: string;
  /** `takeover` may end sessions under a policy that denies; only at the user's request. */
  intent?: "login" | "takeover";
  /** Sessions of the account that this login ends: handles from `End.sessions`. */
  end?: readonly string[];
  /** The longest time in ms for an answer of a node, and for a token: 10,000. */
  timeout?: number;
  /** Takes one message. The next one waits for the promise. The message is acknowledged when the
   * promise is fulfilled. If it is rejected, the client connects again after a pause, and the node
   * sends the message again. Without this callback, nothing is acknowledged. */
  onMessage?: (message: Message) => unknown;
  /** The session has begun, or goes on after a reconnect. */
  onOpen?: (info: Info) => void;
  /** The connection has ended, and the client comes back by itself. */
  onReconnecting?: (why: Reconnecting) => void;
}

/** Logs in, and keeps the session until it ends. */
export function connect(options: Options): Session;

export interface Session {
  /** `open`: the user is logged in. Nothing else means that. */
  readonly state: "connecting" | "open" | "waiting" | "ended";
  /** What the node said at the login, while the session is open. */
  readonly info: Info | null;
  /** Resolves when the session has ended and will not come back by itself. It never rejects. */
  readonly ended: Promise<End>;
  /** Sends a message to an account. Rejects with a `GatewayError`. */
  send(to: string, body: unknown, options?: SendOptions): Promise<Sent>;
  /** Logs out, and ends the session for good. */
  close(): void;
}

/** What a node says at a login. */
export interface Info {
  uid: string;
  session: string;
  node: string;
  /** Rises with each login of the account: the fencing token of what this session saves. */
  gen: number;
  /** Who confirmed the end of the older sessions. */
  oldConfirmed: "program" | "node" | "nobody";
}

/** Why a session has ended for good. */
export interface End {
  /** 1 another device logged in, 2 this device did, 3 an administrator, 4 no further session is
   * allowed, 5 banned or token refused. `null`: `close()`, or a login that no node accepts. */
  code: number | null;
  reason: string;
  /** `later`: the user may try again. `never`: only a login at the user's request. */
  retry: "never" | "later";
  /** The device that took over. */
  byDevice: string | null;
  /** With code 4: the account's sessions, the newest first. Otherwise empty. */
  sessions: OwnSession[];
}

/** A session of the account. */
export interface OwnSession {
  handle: string;
  device: string;
  class: string;
  since_ms: number;
}

/** Why and when the client connects again. */
export interface Reconnecting {
  /** 6 the node drains, 7 heartbeat lost, 8 the node lost its lease, 9 busy. `null`: the connection
   * broke, no token could be had, or `onMessage` failed. */
  code: number | null;
  reason: string;
  byDevice: string | null;
  /** Time in ms until the next attempt. */
  delay: number;
  /** The node that it goes to. */
  address: string;
  /** What `token` or `onMessage` threw, or what the browser did. */
  error?: unknown;
}

export interface Message {
  from: string;
  id: string;
  body: unknown;
}

export interface SendOptions {
  /** Only to this device of the account. */
  toDevice?: string;
  /** Only to the devices of this class. */
  toClass?: string;
  /** At most 128 bytes, unique among the messages of this account. Random unless given. */
  id?: string;
}

export type Outcome = "delivered" | "written" | "stored" | "failed";

export interface Sent {
  id: string;
  /** The worst outcome of the devices. */
  outcome: Outcome;
  devices: { device: string; class: string; outcome: Outcome }[];
}

/** Why a message was not sent, or is not known to have been sent. */
export class GatewayError extends Error {
  constructor(code: string, reason: string, retryAfterMs?: number);
  /** `not_open`: not sent. `unknown`: the connection ended before the outcome was known; the same
   * message with the same `id` may be sent again. Others are those of the protocol. */
  readonly code: string;
  /** With `throttled`: when the message may be sent again. */
  readonly retryAfterMs?: number;
}
