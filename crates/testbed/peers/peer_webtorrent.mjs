// A WebTorrent peer for tests: one process, one torrent, one JSON object a line on stdout.
// Arguments: the folder with its node_modules, a torrent or link, a folder for the content, a port, and maybe a node of the distributed hash
// table, HOST:PORT, or `defaults` for all of WebTorrent's own settings. Without that, nothing leaves the machine: without a node there is no
// table, and there is no local discovery, UPnP or NAT-PMP.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import path from 'node:path'

const [folder, source, data, port, node] = process.argv.slice(2)
const entry = createRequire(path.join(folder, 'index.js')).resolve('webtorrent')
const { default: WebTorrent } = await import(pathToFileURL(entry))

const say = (event, fields = {}) => console.log(JSON.stringify({ event, ...fields }))
const fail = error => { say('error', { message: String(error) }); process.exit(1) }
const client = new WebTorrent(node === 'defaults' ? { torrentPort: Number(port) } : {
  dht: node ? { bootstrap: [node] } : false,
  lsd: false,
  natUpnp: false,
  natPmp: false,
  torrentPort: Number(port)
})
client.on('error', fail)
const torrent = client.add(source, { path: data })
torrent.on('warning', warning => say('warning', { message: String(warning) }))
torrent.on('wire', wire => say('connected', { transport: wire.type }))
torrent.on('ready', () => say('ready'))
torrent.on('done', () => say('complete', { downloaded: torrent.downloaded }))
