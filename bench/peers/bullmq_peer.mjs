// BullMQ: `node bullmq_peer.mjs URL COUNT [CONCURRENCY]`, run where the package is installed. No-op jobs, added 1,000 at a
// time; one worker in one process. What is done is kept, as it is by default.
import { createRequire } from 'node:module'

const { Queue, Worker } = createRequire(`${process.cwd()}/`)('bullmq')
const [url, count, concurrency] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4] ?? 100)]
const { hostname: host, port, pathname } = new URL(url)
const connection = { host, port: Number(port), db: Number(pathname.slice(1) || 0), maxRetriesPerRequest: null }
const name = `noop-${process.pid}`

const queue = new Queue(name, { connection })
await queue.waitUntilReady()
const added = performance.now()
for (let first = 0; first < count; first += 1000) {
  const jobs = Array.from({ length: Math.min(1000, count - first) }, (_, index) => ({
    name: 'noop',
    data: { to: 'somebody', number: first + index },
  }))
  await queue.addBulk(jobs)
}
const started = performance.now()
await new Promise((resolve, reject) => {
  let left = count
  const worker = new Worker(name, async () => null, { connection, concurrency })
  worker.on('completed', () => --left || resolve(worker.close()))
  worker.on('error', reject)
})
const ended = performance.now()
await queue.obliterate({ force: true })
await queue.close()
console.log(JSON.stringify({ add: (count * 1000) / (started - added), run: (count * 1000) / (ended - started) }))
