// Perfetto's trace_processor, as its viewer ships it, behind the standard streams: node trace_processor.js FOLDER
// FOLDER holds engine_bundle.js, the worker of the viewer, and trace_processor.wasm. Bytes of requests come in, bytes of replies go out
// (TraceProcessorRpcStream); what the worker logs goes to the standard error.
"use strict";
const fs = require("fs");
const path = require("path");
const { MessageChannel } = require("worker_threads");

const read = (name) => fs.readFileSync(path.join(process.argv[2], path.basename(name)));

// The worker expects a browser: its own scope, a place it was loaded from, and a synchronous request for the WebAssembly file.
globalThis.self = globalThis;
globalThis.location = { href: "https://viewer/engine_bundle.js" };
globalThis.WorkerGlobalScope = function () {};
globalThis.importScripts = () => {};
globalThis.XMLHttpRequest = class {
  open(_method, name) {
    this.name = name;
  }
  send() {
    this.status = 200;
    this.response = Uint8Array.from(read(this.name)).buffer;
  }
};
Object.defineProperty(process, "versions", { value: { ...process.versions, node: undefined } });
console.log = console.warn = console.error = (...words) => process.stderr.write(words.join(" ") + "\n");

(0, eval)(read("engine_bundle.js").toString());
const { port1, port2 } = new MessageChannel();
self.onmessage({ data: port2 });
port1.on("message", (reply) => process.stdout.write(reply));
process.stdin.on("data", (chunk) => port1.postMessage(new Uint8Array(chunk)));
process.stdin.on("end", () => process.exit(0));
