// One worker process of Node's peers: the same protocol and the same work as peers/worker.py.
"use strict";

const work = JSON.parse(process.argv[2]);
const now = () => Number(process.hrtime.bigint()); // CLOCK_MONOTONIC; exact for 104 days of uptime
const starts = [];
let jobs = 0;
let going = true;

const record = (asked) => {
  starts.push([now(), asked, null, null, null]);
};

const begun = new Promise((resolve) => {
  let first = true;
  process.stdin.on("data", (line) => {
    if (first) resolve(Number(line));
    first = false;
  });
  process.stdin.on("end", () => process.exit(1)); // whoever started us is gone
});

const until = (instant) =>
  new Promise((resolve) => {
    const look = () => (now() >= instant ? resolve() : setTimeout(look, Math.max(0, (instant - now()) / 1e6)));
    look();
  });

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const finish = (result) => {
  process.stdout.write(JSON.stringify(result) + "\n", () => process.exit(0));
};

const cpu = () => {
  const used = process.cpuUsage();
  return (used.user + used.system) / 1e6;
};

async function bottleneck() {
  const Bottleneck = require("bottleneck");
  const Redis = require("ioredis");
  const options = { id: "bench", datastore: "ioredis", clearDatastore: false, Redis, clientOptions: clientOptions() };
  if (work.task !== "flood") options.minTime = work.interval * 1000;
  const limiter = new Bottleneck(options);
  limiter.on("error", (error) => console.error(error));
  await limiter.ready();
  return (job) => limiter.schedule(async () => job());
}

function clientOptions() {
  const url = new URL(work.url);
  return { host: url.hostname, port: Number(url.port) };
}

async function bullmq() {
  const { Queue, Worker } = require("bullmq");
  const connection = { ...clientOptions(), maxRetriesPerRequest: null };
  const queue = new Queue("bench", { connection });
  const jobOptions = { removeOnComplete: true, removeOnFail: true };
  const asked = () => queue.add("job", { asked: now() }, jobOptions);
  const worker = new Worker(
    "bench",
    async (job) => {
      record(job.data.asked);
      if (!work.arrivals.length) await asked(); // in place of the caller that asks again
    },
    {
      connection,
      autorun: false,
      concurrency: work.callers,
      limiter: { max: 1, duration: Math.max(1, Math.ceil(work.interval * 1000 - 1e-6)) },
    },
  );
  worker.on("error", (error) => console.error(error));
  await queue.waitUntilReady();
  await worker.waitUntilReady();
  return { start: () => void worker.run(), ask: asked };
}

async function pace(ready) {
  const go = await ready();
  process.stdout.write("ready\n");
  const begin = await begun;
  await until(begin);
  void watch(begin);
  if (go.start) go.start();
  const ask =
    go.ask ||
    (() => {
      const asked = now();
      return go(() => record(asked));
    });
  if (work.arrivals.length) {
    for (const after of work.arrivals) {
      await until(begin + after * 1e9);
      void ask();
    }
    return;
  }
  for (let caller = 0; caller < work.callers; caller += 1) {
    void (async () => {
      if (go.ask) return go.ask();
      for (;;) await ask();
    })();
  }
}

async function flood(ready) {
  const go = await ready();
  process.stdout.write("ready\n");
  const begin = await begun;
  await until(begin);
  void watch(begin);
  for (let caller = 0; caller < work.callers; caller += 1) {
    void (async () => {
      while (going) {
        await go(() => {
          jobs += 1;
        });
      }
    })();
  }
}

async function latency(ready) {
  const Redis = require("ioredis");
  const bare = new Redis(clientOptions());
  const go = await ready();
  await bare.incr("floor");
  process.stdout.write("ready\n");
  await begun;
  const waits = [];
  const trips = [];
  for (let call = 0; call < work.calls + 10; call += 1) {
    await sleep(work.interval * 1500);
    const first = now();
    await bare.incr("floor");
    const asked = now();
    let at = 0;
    await go(() => {
      at = now();
    });
    trips.push((asked - first) / 1e3);
    waits.push((at - asked) / 1e3);
  }
  finish({ waits: waits.slice(10), trips: trips.slice(10) });
}

async function watch(begin) {
  const from = begin + work.settle * 1e9;
  const to = from + work.seconds * 1e9;
  await until(from);
  const before = [now(), jobs, cpu()];
  await until(to);
  const after = [now(), jobs, cpu()];
  going = false;
  finish({
    starts,
    jobs: after[1] - before[1],
    seconds: (after[0] - before[0]) / 1e9,
    cpu: after[2] - before[2],
  });
}

const tasks = { pace, flood, latency };
tasks[work.task]({ bottleneck, bullmq }[work.place]).catch((error) => {
  console.error(error);
  process.exit(1);
});
