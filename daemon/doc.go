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
//	| connector       |<------------->| server: pollers, a few for all connections  |
//	|   wire codec    |   frames      |   short requests: answered by their reader  |
//	|                 |               |   long ones: jobs, on the reader while a    |
//	|   mappings      |               |   worker is free, else queue -> workers     |
//	|                 |               |   what waits for a disk: a goroutine each   |
//	|    arena (r)  <-----memfd----------- tiering: catalogue, leases, pools, plans |
//	|    slots (r)  <-----memfd----------- slots of the connection                  |
//	|    staging (w) ----memfd-----------> tiering: commit copies and hashes        |
//	|    its own    <-----memfd----------- gpuipc: rotate scatters into its blocks  |
//	|    HBM (rw)   <--chunks, handles---- tiering: copies; server: private chunks  |
//	+-----------------+               |        |   tiering/disk: slab files, index  |
//	                                  |   gpuipc: regions, pages, kernels           |
//	 people, Prometheus  --- http --->| api: admin REST, of a view                  |
//	                                  +---------------------------------------------+
//
// The packages below this one, each importing only those before it:
//
//	settings  what can be set, its defaults and bounds, and where it is read from
//	socket    the socket's path, lock and guard; who connects, who may, when they are gone
//	codes     which code of the wire a failure is, the one place that knows
//	budget    what all clients share, and how much of it one may take
//	queue     whose job is next, and when a long one gives way
//	slots     memory of a connection for results
//	gpu       the accelerators, how each does, and what of it connections have
//	canary    what engines reported, and which profiles are switched off
//	note      what outlives the daemon in small files of the disk tier
//	decided   decisions as people see them, and those of earlier starts
//	usage     how prompts were served, as engines told: sums, the last ones, a history
//	spans     the same as OpenTelemetry spans, for a collector
//	journal   what happened lately, for people who follow
//	events    what routers are told of what is held, as vLLM tells it
//	server    connections, jobs, and what requests do
//	view      what people see: node, catalogue, health, metrics
//
// Here: daemon.go opens, runs and closes them in order, store.go and disk.go do so
// for the store and the disk tier; reload.go reads keys, tokens and certificates again.
//
// # Start and stop
//
// Start: configuration resolved, validated and cut to the machine, socket directory and
// lock, the admin REST, which says what is waited for, device, disk tier (its directory is
// not looked at yet), the GPUs, all at once, store and its arenas, watcher, bind and listen, the disk
// tier's run (waited for until it has opened and what is switched off was read, a moment at
// most), background parts (watcher, the store's run, workers), accept and the guard of the socket's path, ready.
//
// Stop, on the end of Run's context or when a part fails: not ready; listener
// closed and its path removed if it still is ours; accept ended; new requests
// answered unavailable while running ones end, at most DrainTimeout; contexts of
// what is left ended; each connection closed when its last operation has let go
// of memory; workers ended; what is only in memory written to disk, again at most
// DrainTimeout; watcher, the store's run and admin REST ended; store, disk tier,
// GPUs, device, lock. Work that no context ends is waited for once more and then left:
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
//	conn.answering  conn.life  conn.mu  attachment.mu  device attachment's  gpu.mu  slots.mu  queue.mu  server.mu  watcher.mu  poller.mu  canary.mu  usage.mu  tiering's
//
// The queue of events, the own set of the index and the journal are told under any of these,
// and take none. The lock of the journal is the last of all. Of tiering's, the store's comes first, then that of a profile's learnt costs, then
// that of the decisions; the locks of advice and of a session's plans are never held
// with another. Nor is that of the socket, which is held while its path is bound again, nor
// those of an attachment's claims and of the cluster's gate. Of events, fans.mu comes before
// subscriber.mu and this before that of a set of places; that of turns is held alone.
//
// Only conn.answering is held while others are taken. It is the reader's own, held
// while it answers a short request, and waited for when the connection ends. None
// of the others is held across I/O, an operation of the device, a callback or a
// log line.
//
// # Who owns what
//
// The last reader of a connection takes it apart (see server). Its attachment owns
// staging, slots and imported engine memory, and the same on a GPU. What a handle
// names is given back when the client is gone, everything else with the last
// operation. A job is owned by the queue, then by whoever took it out; one that was
// never in the queue by the reader that runs it; one that waits by the goroutine
// that waits. The owner answers it. Descriptors that arrive with a frame are closed
// by the reader unless the device took them over. What is switched off for splicing
// is the canary's; its memory alone writes the note to the disk tier, in the
// background, since that may hang.
package daemon
