// A worker that does nothing with each job, 50 at a time.
import { Worker } from "bullmq";

const { hostname, port } = new URL(process.env.BENCH_REDIS_URL);
const worker = new Worker("bench", async () => {}, { connection: { host: hostname, port: Number(port) }, concurrency: 50 });
process.on("SIGTERM", async () => {
  await worker.close(true);
  process.exit(0);
});
