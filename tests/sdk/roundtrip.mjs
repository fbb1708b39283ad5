// The basic round trip with the JavaScript package. Prints the steps that ran, one a line.
// Runs where `node_modules` has the package: imports are looked for beside this file's copy.
import assert from 'node:assert/strict'
import { CommandExitError, Sandbox, SandboxNotFoundError } from 'e2b'

const ran = (step) => console.log(step)

const sandbox = await Sandbox.create({ timeoutMs: 600_000, metadata: { from: 'javascript' } })
assert.equal(await sandbox.isRunning(), true)
ran('create')

const result = await sandbox.commands.run('echo out; echo err >&2')
assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
await assert.rejects(
  sandbox.commands.run('exit 3'),
  (error) => error instanceof CommandExitError && error.exitCode === 3
)
let shown = ''
const command = await sandbox.commands.run('read line; echo got $line', {
  background: true,
  stdin: true,
  onStdout: (text) => (shown += text),
})
await sandbox.commands.sendStdin(command.pid, 'this\n')
await command.wait()
assert.equal(shown, 'got this\n')
ran('run')

await sandbox.files.write('/home/user/state.txt', 'before')
assert.equal(await sandbox.files.read('/home/user/state.txt'), 'before')
const bytes = Uint8Array.from({ length: 256 }, (_, index) => index)
await sandbox.files.write('bytes', bytes.buffer)
assert.deepEqual(await sandbox.files.read('bytes', { format: 'bytes' }), bytes)
const names = (await sandbox.files.list('/home/user')).map((entry) => entry.name)
assert.ok(names.includes('state.txt') && names.includes('bytes'), names)
ran('files')

let told
const written = new Promise((resolve) => (told = resolve))
const watch = await sandbox.files.watchDir('/home/user', (event) => {
  if (event.name === 'watched' && event.type === 'write') told()
})
await sandbox.files.write('watched', '1')
await written
await watch.stop()
ran('watch')

const snapshot = await sandbox.createSnapshot()
await sandbox.files.write('/home/user/state.txt', 'after')
const restored = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 600_000 })
assert.equal(await restored.files.read('/home/user/state.txt'), 'before')
assert.equal(await restored.kill(), true)
const pages = Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId })
const found = []
while (pages.hasNext) found.push(...(await pages.nextItems()))
assert.deepEqual(found.map((item) => item.snapshotId), [snapshot.snapshotId])
assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
assert.equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
ran('snapshot')

assert.equal(await sandbox.pause(), true)
assert.equal(await sandbox.isRunning(), false)
const same = await Sandbox.connect(sandbox.sandboxId)
assert.equal(await same.files.read('/home/user/state.txt'), 'after')
ran('pause and connect')

assert.equal(await same.kill(), true)
assert.equal(await same.kill(), false)
await assert.rejects(Sandbox.connect(sandbox.sandboxId), SandboxNotFoundError)
ran('kill')
