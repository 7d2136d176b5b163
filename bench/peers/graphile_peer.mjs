// graphile-worker: `node graphile_peer.mjs URL COUNT [CONCURRENCY]`, run where the package is installed. No-op jobs, added
// 1,000 at a time; one process, a local queue and batches for what is done, which is its fastest form.
import { createRequire } from 'node:module'

const { Logger, makeWorkerUtils, run } = createRequire(`${process.cwd()}/`)('graphile-worker')
const [url, count, concurrency] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4] ?? 24)]
const logger = new Logger(() => () => {})

const utils = await makeWorkerUtils({ connectionString: url, logger })
await utils.migrate()
const added = performance.now()
for (let first = 0; first < count; first += 1000) {
  const specs = Array.from({ length: Math.min(1000, count - first) }, (_, index) => ({
    identifier: 'noop',
    payload: { to: 'somebody', number: first + index },
  }))
  await utils.withPgClient((client) =>
    client.query(
      `select from graphile_worker.add_jobs(
         array(select json_populate_recordset(null::graphile_worker.job_spec, $1::json)))`,
      [JSON.stringify(specs)],
    ),
  )
}
const started = performance.now()
await new Promise((resolve, reject) => {
  let left = count
  const preset = { worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } }
  const taskList = {
    noop: async () => {
      if (--left === 0) runner.then((one) => one.stop()).then(resolve, reject)
    },
  }
  const runner = run({ connectionString: url, concurrency, taskList, logger, noHandleSignals: true, preset })
  runner.catch(reject)
})
const ended = performance.now()
await utils.release()
console.log(JSON.stringify({ add: (count * 1000) / (started - added), run: (count * 1000) / (ended - started) }))
