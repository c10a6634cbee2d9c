// A log directory with manifests: docs/format/index.md, manifest.md, reading.md, sidecars.md.
import fs from 'node:fs'
import path from 'node:path'
import zlib from 'node:zlib'
import { parquetReadObjects } from 'hyparquet'
import { batches, records, Refused, safe } from './batches.js'

const refuse = (why) => { throw new Refused(why) }
const ACTIONS = ['commitInfo', 'protocol', 'metaData', 'add', 'remove', 'txn']
const GONE = ['removed', 'deleting']

async function parquet(file) {
  const { buffer, byteOffset, byteLength } = fs.readFileSync(file)
  const compressors = { ZSTD: (input) => zlib.zstdDecompressSync(input) }
  return parquetReadObjects({ file: buffer.slice(byteOffset, byteOffset + byteLength), compressors, utf8: false })
}

export class Log {
  constructor(directory) {
    this.directory = directory
    const content = fs.readFileSync(path.join(directory, '_manifest/log-directory.json'), 'utf8')
    const version = content ? JSON.parse(content)['format.version'] : 1 // D2
    if (!(version <= 1)) refuse(`a log directory of format.version ${version}`) // D1
  }

  async topics() {
    const found = []
    for (const name of fs.readdirSync(path.join(this.directory, '_manifest')).sort()) {
      if (commits(path.join(this.directory, '_manifest', name)).length === 0) continue // D3
      if (!(await this.snapshot(name)).isDeleted) found.push(name)
    }
    return found
  }

  // A version of a topic, by default the latest: M1 to M11.
  async snapshot(topic, version) {
    const table = path.join(this.directory, '_manifest', topic)
    const rows = { topic: [], partition: [], segment: [], transaction: [] }
    for (const [file, kind] of await files(table, version)) {
      if (!rows[kind]) refuse(`rows of kind ${kind}`)
      rows[kind].push(...await parquet(path.join(table, file)))
    }
    if (rows.topic.length !== 1) refuse(`${rows.topic.length} rows of the topic`)
    const [{ topic_id: id, properties }] = rows.topic
    if (Number(properties['format.version']) !== 2) refuse(`a topic of format.version ${properties['format.version']}`) // D8
    for (const { state } of rows.segment) {
      if (!['chunk', 'sealed', ...GONE].includes(state)) refuse(`a row of state ${state}`) // M18
    }
    const live = rows.segment
      .filter((row) => row.topic_id === id && !GONE.includes(row.state)) // M15
      .map((row) => ({ ...row, base: safe(row.base_offset), next: safe(row.next_offset) }))
      .sort((one, other) => one.base - other.base || one.next - other.next)
    const partitions = rows.partition.map((row) => ({
      number: row.partition,
      start: safe(row.log_start_offset),
      end: safe(row.log_end_offset),
      stable: safe(row.last_stable_offset),
      segments: live.filter((segment) => segment.partition === row.partition),
    })).sort((one, other) => one.number - other.number)
    return { partitions, isDeleted: 'deleted_ms' in properties }
  }

  async open(topic, version) {
    const snapshot = await this.snapshot(topic, version)
    return snapshot.isDeleted ? refuse('no such topic') : snapshot
  }

  // The records of a partition: R1 to R5.
  * records({ start, end, stable, segments }, committed) {
    end = committed ? Math.min(end, stable) : end
    for (const [number, segment] of segments.entries()) {
      const low = Math.max(start, segment.base)
      const high = Math.min(end, segment.next)
      if (low >= high) continue
      const shift = segment.base - safe(segment.file_base_offset) // R8
      const aborted = committed ? segments.slice(number).flatMap((later) => this.aborted(later)) : []
      const position = lookUp(this.index(segment), low - shift - nameOffset(segment))
      for (const batch of batches(this.read(segment, 'log'), position)) {
        if (batch.baseOffset + shift >= high) break
        if (batch.isControl || isAborted(batch, shift, aborted)) continue
        for (const record of records(batch)) {
          const offset = record.offset + shift
          if (offset >= low && offset < high) yield { ...record, offset }
        }
      }
    }
  }

  // The record with the lowest offset that is not older than a time: R9.
  forTime({ start, segments }, timestamp) {
    for (const segment of segments.filter((one) => one.max_timestamp_ms >= timestamp)) {
      const shift = segment.base - safe(segment.file_base_offset)
      const times = this.read(segment, 'timeindex')
      let position = 0
      for (let at = 0; at < times.length && times.readBigInt64BE(at) < timestamp; at += 12) {
        position = lookUp(this.index(segment), times.readInt32BE(at + 8))
      }
      for (const batch of batches(this.read(segment, 'log'), position)) {
        for (const record of records(batch)) {
          const offset = record.offset + shift
          const isThere = offset >= Math.max(start, segment.base) && offset < segment.next
          if (isThere && record.timestamp >= timestamp) return [offset, record.timestamp]
        }
      }
    }
    return null
  }

  index(segment) {
    const data = this.read(segment, 'index')
    return Array.from({ length: data.length / 8 }, (_, at) => [data.readInt32BE(8 * at), data.readInt32BE(8 * at + 4)])
  }

  aborted(segment) { // I6, I7
    const data = this.read(segment, 'txnindex')
    if (data.length % 34) refuse('an entry of a .txnindex is cut')
    const shift = segment.base - safe(segment.file_base_offset)
    return Array.from({ length: data.length / 34 }, (_, number) => {
      const at = 34 * number
      if (data.readInt16BE(at) !== 0) refuse('a .txnindex entry of another version')
      const offset = (place) => safe(data.readBigInt64BE(at + place)) + shift
      return { producerId: data.readBigInt64BE(at + 2), first: offset(10), last: offset(18) }
    })
  }

  // A file of a segment, as many bytes as its row says: O1, I1, R6.
  read(segment, suffix) {
    const bytes = { log: 'log', index: 'index', timeindex: 'time_index', txnindex: 'txn_index' }
    const size = safe(segment[`${bytes[suffix]}_bytes`])
    if (size === 0) return Buffer.alloc(0)
    const isShared = segment.index_position !== null && segment.index_position !== undefined
    const index = isShared ? safe(segment.index_position) : 0
    const starts = { log: safe(segment.position ?? 0n), index, timeindex: index + safe(segment.index_bytes) }
    const file = isShared ? segment.path : segment.path.replace(/log$/, suffix)
    const start = isShared ? starts[suffix] : 0
    const data = fs.readFileSync(path.join(this.directory, file)).subarray(start, start + size)
    return data.length === size ? data : refuse(`${file} is shorter than its row says`)
  }
}

function lookUp(index, relativeOffset) {
  return index.findLast(([offset]) => offset <= relativeOffset)?.[1] ?? 0
}

function nameOffset(segment) {
  const isShared = segment.index_position !== null && segment.index_position !== undefined
  return isShared ? 0 : Number(path.basename(segment.path).slice(0, 20))
}

function isAborted(batch, shift, aborted) {
  if (!batch.isTransactional) return false
  const last = aborted
    .filter((one) => one.producerId === batch.producerId && one.first <= batch.lastOffset + shift)
    .sort((one, other) => one.first - other.first).at(-1)
  return last !== undefined && last.last >= batch.baseOffset + shift
}

function commits(table) {
  const log = path.join(table, '_delta_log')
  const names = fs.existsSync(log) ? fs.readdirSync(log) : []
  return names.filter((name) => /^\d{20}\.json$/.test(name)).map((name) => Number(name.slice(0, 20)))
}

// The Parquet files of a version, and the kinds of their rows: M1, M2, M5, M7.
async function files(table, version) {
  const log = path.join(table, '_delta_log')
  version ??= Math.max(...commits(table))
  const checkpoints = fs.readdirSync(log).filter((name) => name.endsWith('.checkpoint.parquet'))
    .map((name) => Number(name.slice(0, 20))).filter((number) => number <= version)
  const start = Math.max(-1, ...checkpoints)
  const name = (number) => path.join(log, String(number).padStart(20, '0'))
  const actions = start < 0 ? [] : await parquet(`${name(start)}.checkpoint.parquet`)
  for (let number = start + 1; number <= version; number++) {
    const lines = fs.readFileSync(`${name(number)}.json`, 'utf8').split('\n').filter((line) => line)
    if (lines.length === 0) refuse(`commit ${number} is empty`)
    actions.push(...lines.map((line) => JSON.parse(line)))
  }
  const found = new Map()
  for (const action of actions) {
    const other = Object.keys(action).find((name) => (action[name] ?? null) !== null && !ACTIONS.includes(name))
    if (other) refuse(`an action ${other}, which may say anything of the files`) // M6
    const { protocol, remove, add } = action
    if (protocol && (protocol.minReaderVersion > 1 || protocol.readerFeatures?.length)) refuse('a newer table') // M3
    if (remove) found.delete(decodeURIComponent(remove.path))
    if (add) found.set(decodeURIComponent(add.path), add.partitionValues.kind)
  }
  return found
}
