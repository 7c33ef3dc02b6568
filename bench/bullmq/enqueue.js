// BullMQ's side of the comparison: enqueue the number of jobs named on the command line, and print the rate.
import { Queue } from "bullmq";

const { hostname, port } = new URL(process.env.BENCH_REDIS_URL);
const queue = new Queue("bench", { connection: { host: hostname, port: Number(port) } });
const count = Number(process.argv[3]);
const options = { removeOnComplete: true };
await queue.add("noop", {}, options);
const started = performance.now();
for (let sent = 1; sent < count; sent += 100) {
  const some = Math.min(100, count - sent);
  await Promise.all(Array.from({ length: some }, () => queue.add("noop", {}, options)));
}
console.log(((count - 1) * 1000) / (performance.now() - started));
await queue.close();
