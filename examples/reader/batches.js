// Record batches: docs/format/record-batches.md.
import zlib from 'node:zlib'
import { snappyUncompress } from 'hyparquet'

export class Refused extends Error {}

const refuse = (why) => { throw new Refused(why) }

export function safe(number) { // a 64-bit integer as a number, or none at all
  const found = Number(number)
  return Number.isSafeInteger(found) ? found : refuse(`${number} is beyond what this reader counts`)
}

const CRC_TABLE = new Uint32Array(256).map((_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? byte >>> 1 ^ 0x82f63b78 : byte >>> 1
  return byte
})

function crc32c(bytes) {
  let crc = ~0
  for (const byte of bytes) crc = crc >>> 8 ^ CRC_TABLE[(crc ^ byte) & 255]
  return ~crc >>> 0
}

// The batches of a .log from a position on, each checked (B1, B13).
export function* batches(log, position = 0) {
  while (position < log.length) {
    if (log.length - position < 17) refuse(`a cut header at ${position}`)
    const magic = log[position + 16]
    const end = position + 12 + log.readInt32BE(position + 8)
    if (magic > 2 || end > log.length || end < position + (magic === 2 ? 61 : 26)) refuse(`no batch at ${position}`)
    yield magic === 2 ? batch(log, position, end) : messageSet(log, position, end)
    position = end
  }
}

function batch(log, position, end) {
  if (crc32c(log.subarray(position + 21, end)) !== log.readUInt32BE(position + 17)) refuse(`CRC-32C at ${position}`)
  const baseOffset = safe(log.readBigInt64BE(position))
  const attributes = log.readInt16BE(position + 21)
  return {
    baseOffset,
    lastOffset: baseOffset + log.readInt32BE(position + 23),
    baseTimestamp: safe(log.readBigInt64BE(position + 27)),
    maxTimestamp: safe(log.readBigInt64BE(position + 35)),
    producerId: log.readBigInt64BE(position + 43),
    count: log.readInt32BE(position + 57),
    codec: attributes & 7,
    timestampType: attributes >> 3 & 1,
    isTransactional: (attributes & 0x10) !== 0,
    isControl: (attributes & 0x20) !== 0,
    section: log.subarray(position + 61, end),
  }
}

// The records of a batch, at the offsets of its file.
export function records(of) {
  if (of.messages) return of.messages
  const data = decompress(of.codec, of.section)
  const found = []
  let at = 0
  const varint = () => {
    let number = 0n
    for (let shift = 0n; ; shift += 7n) {
      if (at >= data.length) refuse('a number is cut')
      const byte = data[at++]
      number |= BigInt(byte & 127) << shift
      if (byte < 128) return Number(number >> 1n ^ -(number & 1n))
    }
  }
  const bytes = () => {
    const length = varint()
    if (length < 0) return null
    if (at + length > data.length) refuse('a field is cut')
    return data.subarray(at, at += length)
  }
  for (let number = 0; number < of.count; number++) {
    const length = varint()
    const end = at + length
    at += 1
    const timestamp = of.baseTimestamp + varint()
    const offset = of.baseOffset + varint()
    const record = { offset, timestampType: of.timestampType, key: bytes(), value: bytes(), headers: [] }
    record.timestamp = of.timestampType ? of.maxTimestamp : timestamp
    for (let header = varint(); header > 0; header--) record.headers.push([bytes().toString('utf8'), bytes()])
    if (at !== end) refuse('a record has another length than it says')
    found.push(record)
  }
  return at === data.length ? found : refuse('bytes behind the last record')
}

// An entry of magic 0 or 1, with the messages that it holds.
function messageSet(log, position, end) {
  const outer = message(log, position, end)
  const timestampType = outer.magic ? outer.attributes >> 3 & 1 : -1
  let inside = [outer]
  if (outer.attributes & 7) {
    const data = decompress(outer.attributes & 7, outer.value)
    inside = []
    for (let at = 0; at < data.length; at = inside.at(-1).end) {
      inside.push(message(data, at, at + 12 + data.readInt32BE(at + 8)))
    }
    const shift = outer.magic && outer.offset ? outer.offset - inside.at(-1).offset : 0
    for (const one of inside) {
      one.offset += shift
      if (timestampType === 1) one.timestamp = outer.timestamp
    }
  }
  const messages = inside.map(({ offset, timestamp, key, value }) => (
    { offset, timestamp, timestampType, key, value, headers: [] }))
  return { baseOffset: messages[0].offset, lastOffset: outer.offset, isTransactional: false, isControl: false, messages }
}

function message(data, position, end) {
  if (zlib.crc32(data.subarray(position + 16, end)) !== data.readUInt32BE(position + 12)) refuse(`CRC-32 at ${position}`)
  const magic = data[position + 16]
  let at = position + (magic ? 26 : 18)
  const field = () => {
    const length = data.readInt32BE(at)
    at += 4
    return length < 0 ? null : data.subarray(at, at += length)
  }
  const offset = safe(data.readBigInt64BE(position))
  const timestamp = magic ? safe(data.readBigInt64BE(position + 18)) : -1
  return { offset, magic, attributes: data[position + 17], timestamp, key: field(), value: field(), end }
}

// Compression

function decompress(codec, data) {
  const most = Math.min(Math.max(256 << 20, 1100 * data.length), 2 ** 31 - 1)
  const options = { maxOutputLength: most }
  try {
    switch (codec) {
      case 0: return data
      case 1: return zlib.gunzipSync(data, options)
      case 2: return snappy(data, most)
      case 3: return lz4(data, most)
      case 4: return Buffer.concat([...zstdFrames(data)].map((frame) => zlib.zstdDecompressSync(frame, options)))
    }
  } catch (error) {
    refuse(`codec ${codec}: ${error.message}`)
  }
  return refuse(`unknown codec ${codec}`)
}

// Node opens one frame: where each ends, the headers of its blocks say (RFC 8878).
function* zstdFrames(data) {
  for (let start = 0; start < data.length;) {
    if (data.readUInt32LE(start) !== 0xfd2fb528) refuse('no zstd frame')
    const descriptor = data[start + 4]
    const single = descriptor >> 5 & 1
    const sizeBytes = [single, 2, 4, 8][descriptor >> 6]
    let at = start + 5 + (single ? 0 : 1) + [0, 1, 2, 4][descriptor & 3] + sizeBytes
    for (let last = false; !last;) {
      const header = data.readUIntLE(at, 3)
      last = (header & 1) === 1
      at += 3 + ((header >> 1 & 3) === 1 ? 1 : header >> 3)
    }
    at += descriptor & 4 ? 4 : 0
    if (at > data.length) refuse('a zstd frame is cut')
    yield data.subarray(start, start = at)
  }
}

function snappy(data, most) {
  if (data.toString('latin1', 0, 8) !== '\x82SNAPPY\0') return rawSnappy(data, most)
  const parts = []
  for (let at = 16; at < data.length;) {
    const length = data.readInt32BE(at)
    parts.push(rawSnappy(data.subarray(at + 4, at += 4 + length), most))
  }
  return Buffer.concat(parts)
}

function rawSnappy(data, most) {
  let size = 0
  for (let at = 0, shift = 0; ; at++, shift += 7) {
    size += (data[at] & 127) * 2 ** shift
    if (data[at] < 128) break
  }
  if (size > most) refuse('a snappy block is too large')
  const out = Buffer.alloc(size)
  snappyUncompress(data, out)
  return out
}

function lz4(data, most) {
  if (data.readUInt32LE(0) !== 0x184d2204) refuse('no LZ4 frame')
  const flags = data[4]
  let at = 7 + (flags & 0x08 ? 8 : 0) + (flags & 0x01 ? 4 : 0)
  let out = Buffer.alloc(Math.max(65536, 4 * data.length))
  let size = 0
  const room = (more) => {
    if (size + more > most) refuse('an LZ4 frame is too large')
    if (size + more > out.length) out = Buffer.concat([out, Buffer.alloc(Math.max(out.length, more))])
  }
  const block = (bytes) => {
    let position = 0
    const long = (length) => {
      if (length === 15) for (let byte = 255; byte === 255; length += byte) byte = bytes[position++]
      return length
    }
    while (position < bytes.length) {
      const token = bytes[position++]
      const literals = long(token >> 4)
      room(literals)
      size += bytes.copy(out, size, position, position += literals)
      if (position >= bytes.length) return
      const distance = bytes.readUInt16LE(position)
      position += 2
      const length = long(token & 15) + 4
      if (distance === 0 || distance > size) refuse('an LZ4 match begins before the data')
      room(length)
      for (let left = length; left > 0; left--, size++) out[size] = out[size - distance]
    }
  }
  for (;;) {
    const header = data.readUInt32LE(at)
    if (header === 0) return out.subarray(0, size)
    const bytes = data.subarray(at + 4, at += 4 + (header & 0x7fffffff))
    if (header >>> 31) {
      room(bytes.length)
      size += bytes.copy(out, size)
    } else block(bytes)
    at += flags & 0x10 ? 4 : 0
  }
}
