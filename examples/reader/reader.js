// Answers the requests of the conformance kit: docs/format/conformance.md. `node reader.js DIRECTORY TOPIC` prints records.
import readline from 'node:readline'
import { Log } from './log.js'

const text = (bytes) => bytes === null ? null : Buffer.from(bytes).toString('base64')

async function* answers(request) {
  if (!['topics', 'offsets', 'offset_for_time', 'read'].includes(request.request)) {
    yield { unsupported: request.request }
    return
  }
  const log = new Log(request.log)
  if (request.request === 'topics') {
    yield { topics: await log.topics() }
    return
  }
  const { partitions } = await log.open(request.topic, request.version)
  if (request.request === 'offsets') {
    yield { offsets: Object.fromEntries(partitions.map(({ number, start, end }) => [number, [start, end]])) }
  } else if (request.request === 'offset_for_time') {
    yield { offset: log.forTime(partitions.find(({ number }) => number === request.partition), request.timestamp) }
  } else {
    let end = 0
    for (const partition of partitions) {
      for (const { offset, timestamp, timestampType, key, value, headers } of
        log.records(partition, request.isolation_level === 'read_committed')) {
        const fields = { key: text(key), value: text(value), headers: headers.map(([name, held]) => [name, text(held)]) }
        yield { partition: partition.number, offset, timestamp, timestampType, ...fields }
        end += 1
      }
    }
    yield { end }
  }
}

async function answer(request) {
  const lines = []
  try {
    for await (const line of answers(request)) lines.push(JSON.stringify(line))
  } catch (error) {
    lines.push(JSON.stringify({ refused: `${error.name}: ${error.message}` }))
  }
  process.stdout.write(lines.join('\n') + '\n')
}

const [directory, topic] = process.argv.slice(2)
if (directory) {
  await answer({ request: 'read', log: directory, topic })
} else {
  for await (const line of readline.createInterface({ input: process.stdin })) await answer(JSON.parse(line))
}
