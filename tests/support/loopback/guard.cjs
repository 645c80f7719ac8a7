// Refuses connections of Node beyond loopback, and writes each attempt down for the test that runs.
"use strict";
const fs = require("node:fs");
const net = require("node:net");

const record = process.env.LOOPBACK_RECORD;
const connect = net.Socket.prototype.connect;

function hostOf(first, second) {
  const options = Array.isArray(first) ? first[0] : first;
  if (typeof options === "object" && options !== null) return options.path ? null : options.host || "localhost";
  if (typeof options === "string" && Number.isNaN(Number(options))) return null; // the path of a local socket
  return typeof second === "string" ? second : "localhost";
}

function staysHere(host) {
  const name = host.toLowerCase().replace(/^::ffff:/, "");
  if (net.isIPv4(name)) return name.startsWith("127.") || name === "0.0.0.0";
  return ["::1", "::", "localhost"].includes(name) || name.endsWith(".localhost");
}

if (record) {
  net.Socket.prototype.connect = function (...given) {
    const host = hostOf(...given);
    if (host === null || staysHere(host)) return connect.apply(this, given);
    fs.appendFileSync(record, `${host}, by process ${process.pid} (${process.argv.join(" ").slice(0, 200)})\n`);
    process.nextTick(() => this.destroy(new Error(`a test may not reach beyond loopback: ${host}`)));
    return this;
  };
}
