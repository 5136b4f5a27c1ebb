// Measures BullMQ. Settings: jobs are added by addBulk, 1,000 at a time, with removeOnComplete, so that finished jobs
// are not kept; one Worker with a concurrency of 200, so that its commands go to Redis without waiting for each
// other. All else is BullMQ's default. A Node process runs its code on one core, so this one uses little more. For
// the throughput the worker runs inside this script, and time and CPU are taken from the first handled job on; for
// the latency it runs in a process of its own, so that sending and handling do not share an event loop. The packages
// are found beside this script (node_modules) or where NODE_PATH says.

import { fork } from "node:child_process";
import { once } from "node:events";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const PAYLOAD = "x".repeat(100);
const BATCH = 1000;
const QUEUE = "peer";
const RATE = 200;
const WARMUP = 50;
const DEADLINE_SECONDS = 55;

const script = fileURLToPath(import.meta.url);
const [command, url, countText] = process.argv.slice(2);
const count = Number(countText);
let child;

function fail(error) {
  child?.kill("SIGKILL");
  console.error(`bullmq_peer.mjs ${command}: ${error?.message ?? error}`);
  process.exit(1);
}

process.on("uncaughtException", fail);
process.on("unhandledRejection", fail);
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) {
  process.on(signal, () => fail(signal));
}
setTimeout(() => fail(`not done within ${DEADLINE_SECONDS} seconds`), DEADLINE_SECONDS * 1000).unref();

const { Queue, Worker } = createRequire(import.meta.url)("bullmq");

async function openQueue(expected) {
  const queue = new Queue(QUEUE, { connection: { url }, defaultJobOptions: { removeOnComplete: true } });
  queue.on("error", fail);
  await queue.waitUntilReady();
  if (expected !== undefined) await expectRemaining(queue, expected);
  return queue;
}

async function expectRemaining(queue, expected) {
  const counts = await queue.getJobCounts();
  const left = Object.values(counts).reduce((sum, each) => sum + each, 0);
  if (left !== expected) throw new Error(`the queue holds ${left} messages instead of ${expected}`);
}

// Runs a worker until `count` jobs are handled and acknowledged; calls `ready` when it has started.
async function runWorker(handler, ready = () => {}) {
  let acknowledged = 0;
  const worker = new Worker(QUEUE, handler, { connection: { url }, concurrency: 200 });
  worker.on("error", fail);
  worker.on("failed", (_job, error) => fail(error));
  const done = new Promise((resolve) => {
    worker.on("completed", () => {
      acknowledged += 1;
      if (acknowledged === count) resolve(snapshot());
    });
  });
  await worker.waitUntilReady();
  ready();
  const end = await done;
  await worker.close();
  return end;
}

function snapshot() {
  const { user, system } = process.cpuUsage();
  return { seconds: performance.now() / 1000, cpu: (user + system) / 1e6 };
}

function difference(start, end) {
  return { seconds: end.seconds - start.seconds, cpu: end.cpu - start.cpu };
}

function wallClockMs() {
  return performance.timeOrigin + performance.now();
}

function percentile(ordered, share) {
  return Number(ordered[Math.ceil(share * ordered.length) - 1].toFixed(3));
}

async function fill() {
  const queue = await openQueue();
  const start = snapshot();
  for (let added = 0; added < count; added += BATCH) {
    const size = Math.min(BATCH, count - added);
    await queue.addBulk(Array.from({ length: size }, () => ({ name: "nothing", data: PAYLOAD })));
  }
  const { seconds, cpu } = difference(start, snapshot());
  await queue.close();
  return { seconds, messages: count, cpu };
}

async function work() {
  const queue = await openQueue(count);
  let handled = 0;
  let start;
  const end = await runWorker(async () => {
    start ??= snapshot();
    handled += 1;
  });
  await expectRemaining(queue, 0);
  await queue.close();
  const { seconds, cpu } = difference(start, end);
  return { seconds, messages: handled, cpu };
}

async function latency() {
  if (count <= WARMUP) throw new Error(`COUNT must be more than ${WARMUP}, which are left out`);
  const queue = await openQueue(0);
  child = fork(script, ["worker", url, countText], { stdio: ["ignore", 2, 2, "ipc"] });
  const ended = once(child, "exit");
  child.on("exit", (code) => code === 0 || fail(`the worker ended with code ${code}`));
  await once(child, "message");
  const answer = once(child, "message");
  const start = performance.now();
  for (let number = 0; number < count; number += 1) {
    const wait = start + (number * 1000) / RATE - performance.now();
    if (wait > 0) await sleep(wait);
    await queue.add("measure", wallClockMs());
  }
  const [latencies] = await answer;
  await ended;
  await queue.close();
  const ordered = latencies.slice(WARMUP).sort((a, b) => a - b);
  return { messages: count, p50_ms: percentile(ordered, 0.5), p99_ms: percentile(ordered, 0.99) };
}

// The process that `latency` starts: sends word when it is ready, and at the end the latencies.
async function worker() {
  process.on("disconnect", () => process.exit(1));
  const latencies = [];
  await runWorker(
    async (job) => {
      latencies.push(wallClockMs() - job.data);
    },
    () => process.send("ready"),
  );
  process.send(latencies, () => process.exit(0));
}

const commands = { fill, work, latency, worker };
if (process.argv.length !== 5 || !Object.hasOwn(commands, command) || !(Number.isInteger(count) && count > 0)) {
  console.error("usage: bullmq_peer.mjs fill|work|latency REDIS_URL COUNT");
  process.exit(1);
}
const result = await commands[command]();
if (result) console.log(JSON.stringify(result));
