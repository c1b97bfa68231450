// Package daemon wires a node together: configuration, the engine socket and its
// connections, the admin surface, and the order in which all of it starts and stops. Only
// it and the two mains know flags, files, environment and other state of the process.
// Segments and checkpoints are defined by tiering, moving memory is done by gpuipc, and
// connector/wire defines the bytes on the socket.
//
// # Map of the system
//
//	 engine process                        spliced
//	+-----------------+   seqpacket   +---------------------------------------------+
//	| connector       |<------------->| server: pollers, a few for all connections  |
//	|   wire codec    |   frames      |   short requests: answered by their reader  |
//	|                 |               |   long ones: jobs, on the reader while a    |
//	|   mappings      |               |   worker is free, else queue -> workers     |
//	|                 |               |   waits for a disk: a goroutine each        |
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
//	settings  the settings, their defaults, bounds and sources
//	socket    the socket's path, lock and guard; access control and liveness of clients
//	codes     the wire code of each error; the only place that knows
//	budget    resources shared by all clients, and the limits of one
//	queue     the order of jobs, and when a long one yields
//	slots     memory of a connection for results
//	gpu       the accelerators, their state, and the connections' memory on them
//	canary    the engines' reports, and switched-off profiles
//	note      state that outlives the daemon, in small files of the disk tier
//	decided   decisions for operators, including those of earlier starts
//	usage     how prompts were served, as engines report: sums, latest ones, a history
//	spans     the same as OpenTelemetry spans, for a collector
//	journal   recent events, for operators who follow them
//	events    KV events for routers, in vLLM's format
//	server    connections, jobs, and the effect of requests
//	view      views for operators: node, catalogue, health, metrics
//
// In this package, daemon.go opens, runs and closes them in order; store.go and disk.go do
// so for the store and the disk tier; reload.go reloads keys, tokens and certificates.
//
// # Start and stop
//
// Start: configuration resolved, validated and cut to the machine; socket directory and
// lock; the admin REST, which reports the part being opened; device; disk tier (its
// directory is not accessed yet); the GPUs, all concurrently; store and its arenas;
// watcher; bind and listen; the disk tier's run (the start waits briefly until it has opened
// and switched-off profiles are read); background parts (watcher, the store's run, workers);
// accept and the guard of the socket's path; ready.
//
// Stop, when Run's context ends or a part fails: not ready; listener closed and its path
// removed if it is still ours; accept ended; new requests answered unavailable while running
// ones finish, for at most DrainTimeout; contexts of the remaining ones ended; each
// connection closed when its last operation has released its memory; workers ended; objects
// that exist only in memory written to disk, again for at most DrainTimeout; watcher, the
// store's run and admin REST ended; store, disk tier, GPUs, device, lock. Work that does not
// react to its context is waited for once more and then abandoned: unmapping its memory
// would fault, so Run returns without closing store and device.
//
// A disk that hangs in the kernel is abandoned in the same way.
//
// A disk that is missing, locked by another process, full or failing changes none of this:
// the check "disk" is degraded and reports the reason, and the daemon serves from memory.
//
// # Locks
//
// A goroutine that holds one of these takes only later ones:
//
//	conn.answering  conn.life  conn.mu  attachment.mu  device attachment's  gpu.mu  slots.mu  queue.mu  server.mu  watcher.mu  poller.mu  canary.mu  usage.mu  tiering's
//
// The queue of events, the node's own set of the index and the journal are called under any
// of these, and take none. The lock of the journal is the last of all. Of tiering's, the
// store's comes first, then that of a profile's learned costs, then that of the decisions.
// The locks of advice and of a session's plans are never held together with another. Neither
// are the locks of the socket (held while its path is bound again), of an attachment's
// claims and of the cluster's gate. Of events, fans.mu comes before
// subscriber.mu, and that before the lock of a set of places; that of turns is held alone.
//
// Only conn.answering is held while others are taken. It belongs to the reader, which holds
// it while it answers a short request; the end of a connection waits for it. None of the
// others is held across I/O, an operation of the device, a callback or a log line.
//
// # Ownership
//
// The last reader of a connection frees it (see server). Its attachment owns staging, slots
// and imported engine memory, and the same on a GPU. Memory shared by handle is released
// when the client is gone, everything else after the last operation. A job is owned by the
// queue, then by the goroutine that took it out; one that was never queued by the reader
// that runs it; one that waits by the goroutine that waits. The owner answers it. The reader
// closes descriptors that arrive with a frame, unless the device took them over. The canary
// owns the switched-off profiles; only its memory writes the note to the disk tier, in the
// background, since that may hang.
package daemon
