// One process of graphile-worker: the same protocol and the same work as worker.py.
"use strict";

const fs = require("fs");
const { Pool } = require("pg");
const { run, runMigrations, makeWorkerUtils, Logger } = require("graphile-worker");

const work = JSON.parse(process.argv[2]);
const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const logger = new Logger(() => (level, message) => {
  if (level === "error" || level === "warning") console.error(message);
});
const QUEUE = "bench";
const BATCH = 1000;
const LOOK = 10;

const starts = [];
const board = fs.openSync(work.board, "r+");
const number = Buffer.alloc(8);
let jobs = 0;
let told = 0;

const begun = new Promise((resolve) => {
  let first = true;
  process.stdin.on("data", (line) => {
    if (first) resolve(BigInt(line.toString().trim()));
    first = false;
  });
  process.stdin.on("end", () => process.exit(1)); // whoever started us is gone
});

async function begin() {
  process.stdout.write("ready\n");
  const at = await begun;
  for (let left = at - now(); left > 0n; left = at - now()) await sleep(Number(left) / 1e6);
}

const finish = (found) => {
  process.stdout.write(JSON.stringify(found) + "\n", () => process.exit(0));
};

// The board is a file that others have mapped: a process's count is a number of its own, after two flags.
const tell = () => {
  if (told === jobs) return;
  number.writeBigInt64LE(BigInt((told = jobs)));
  fs.writeSync(board, number, 0, 8, 8 * (2 + work.index));
};

const isOver = () => {
  fs.readSync(board, number, 0, 8, 0);
  return number.readBigInt64LE() !== 0n;
};

async function fill(pool) {
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  for (let low = 0; low < work.count; low += BATCH) {
    const some = Array.from({ length: Math.min(BATCH, work.count - low) }, (_, index) => low + index);
    await utils.addJobs(some.map((n) => ({ identifier: QUEUE, payload: { n } })));
  }
}

async function insert(pool) {
  const utils = await makeWorkerUtils({ pgPool: pool, logger });
  const asked = [];
  for (let n = 0; n < work.count; n += 1) {
    await sleep(work.every * 1e3 * (0.5 + Math.random()));
    asked.push(Number(now()));
    await utils.addJob(QUEUE, { n });
  }
  finish({ begun: asked });
}

async function drain(pool) {
  const { concurrency, localQueue, completeJobBatchDelay } = work.options;
  const cpu = process.cpuUsage();
  setInterval(tell, 1);
  setInterval(() => {
    if (!isOver()) return;
    const used = process.cpuUsage(cpu);
    finish({ starts, cpu: (used.user + used.system) / 1e6 });
  }, LOOK);
  const count = async () => {
    jobs += 1;
  };
  const record = async ({ n }) => {
    starts.push([n, Number(now())]);
    jobs += 1;
  };
  const worker = { concurrentJobs: concurrency ?? 1, ...(localQueue && { localQueue, completeJobBatchDelay }) };
  await run({
    pgPool: pool,
    logger,
    noHandleSignals: true,
    taskList: { [QUEUE]: work.records ? record : count },
    preset: { worker },
  });
}

async function main() {
  const pool = new Pool({ connectionString: work.url, max: (work.options.concurrency ?? 1) + 4 });
  pool.on("error", (error) => console.error(error));
  if (work.role === "install") {
    await runMigrations({ pgPool: pool, logger });
    await begin();
    return finish({});
  }
  await pool.query("select 1");
  if (work.role === "filled") {
    await fill(pool);
    await begin();
    return finish({});
  }
  await begin();
  if (work.role === "insert") return insert(pool);
  if (work.role === "work") return drain(pool);
  const since = now();
  await fill(pool);
  return finish({ seconds: Number(now() - since) / 1e9 });
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
