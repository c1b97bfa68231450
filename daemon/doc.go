// Package daemon wires a node together: configuration, the engine socket, the
// connections on it, the admin surface, and the order in which all of it starts
// and stops. Only it and the two mains know flags, files, environment and other
// state of the process. What segments and checkpoints mean is tiering's, how
// memory is moved is gpuipc's, what bytes on the socket mean is connector/wire's.
//
// # Map of the system
//
//	 engine process                        spliced
//	+-----------------+   seqpacket   +---------------------------------------------+
//	| connector       |<------------->| daemon: one reader per connection           |
//	|   wire codec    |   frames      |   short requests: answered by the reader    |
//	|                 |               |   long ones: jobs, on the reader while a    |
//	|   mappings      |               |   place is free, else queue -> workers      |
//	|                 |               |   what waits for a disk: a goroutine each   |
//	|    arena (r)  <-----memfd----------- tiering: catalogue, leases, pools, plans |
//	|    slots (r)  <-----memfd----------- daemon: slots of the connection          |
//	|    staging (w) ----memfd-----------> tiering: commit copies and hashes        |
//	|    its own    <-----memfd----------- gpuipc: rotate scatters into its blocks  |
//	|    HBM (rw)   <--chunks, handles---- tiering: copies · daemon: private chunks |
//	+-----------------+               |        |   tiering/disk: slab files, index  |
//	                                  |   gpuipc: regions, pages, kernels           |
//	 people, Prometheus  --- http --->| api: admin REST (Node and Catalogue: view)  |
//	                                  +---------------------------------------------+
//
// Files here: config, settings, load (where settings come from) · machine,
// socket, peer, watch (the operating system) · server, conn, dispatch, job,
// queue, wait, cancel (a request's way) · attach, lookup, leasing, fill, compute, buffer,
// slots (what requests do) · gpu, attachdevice, devicememory, resident, order, gpumetrics (memory
// of a GPU) · codes (errors to wire codes, the one place) · node, metrics,
// counts (what people see) · disk, daemon (start and stop).
//
// # Start and stop
//
// Start: configuration resolved and validated, device, disk tier (its directory is
// not looked at yet), the GPU, store and its arenas, watcher, socket directory, lock, bind
// and listen, admin listeners, the disk tier's run (waited for until it has opened
// and what is switched off was read, a moment at most), background parts (watcher, the store's run, admin REST,
// workers), accept, ready.
//
// Stop, on the end of Run's context or when a part fails: not ready; listener
// closed and its path removed if it still is ours; accept ended; new requests
// answered unavailable while running ones end, at most DrainTimeout; contexts of
// what is left ended; each connection closed when its last operation has let go
// of memory; workers ended; what is only in memory written to disk, again at most
// DrainTimeout; watcher, the store's run and admin REST ended; store, disk tier,
// GPU, device, lock. Work that no context ends is waited for once more and then left:
// unmapping under it would fault, so Run returns without closing store and device.
//
// A disk that hangs in the kernel is left in the same way.
//
// A disk that is missing, taken, full or failing changes none of this: the check
// "disk" is degraded and says why, and the daemon serves from memory.
//
// # Locks
//
// A goroutine that holds one of these takes only later ones:
//
//	conn.answering  conn.mu  attachment.mu  lent.mu  gpu.mu  slots.mu  queue.mu  server.mu  watcher.mu  canary.mu  tiering's
//
// Of tiering's, the store's comes first, then that of a profile's learnt costs, then
// that of the decisions; the lock of advice is never held with another.
//
// Only conn.answering is held while others are taken. It is the reader's own, held
// while it answers a short request, and waited for when the connection ends. None
// of the others is held across I/O, an operation of the device, a callback or a
// log line.
//
// # Who owns what
//
// The reader of a connection owns the connection: the last one takes it apart.
// What is switched off for splicing is the canary's; canaryMemory alone writes its
// note to the disk tier, in the background, since that may hang.
// The attachment owns staging, slots and imported engine memory; lent, the same on
// a GPU. What a handle names is given back when the client is gone, everything
// else with the last operation. A job is owned
// by the queue, then by whoever took it out; a job that never was in the queue,
// by the reader that runs it; one that has to wait for a disk, by the goroutine
// that waits. The owner answers it. Descriptors that arrive with
// a frame are closed by the reader unless the device took them over.
package daemon
