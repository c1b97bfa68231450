// Package daemon wires a node together: configuration, the engine socket and its connections, the
// admin surface, and the order in which all parts start and stop. Only this package and the two
// mains know flags, files, environment and other state of the process. Segments and checkpoints are
// defined by tiering, gpuipc moves memory, and connector/wire defines the bytes on the socket.
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
// The packages below this one. Each imports only packages that are listed before it:
//
//	settings  the settings, their defaults, bounds and sources
//	socket    the socket's path, lock and guard; access control and liveness of clients
//	codes     the wire code of each error
//	budget    resources shared by all clients, and the most that one client may use
//	queue     the order of jobs, and when a long job yields
//	slots     memory of a connection for results
//	gpu       the accelerators, their state, and the connections' memory on them
//	note      state that outlives the daemon, in small files of the disk tier
//	canary    the engines' reports, and switched-off profiles
//	decided   decisions for operators, including those of earlier starts
//	share     fair shares of a bounded list among several writers
//	usage     how prompts were served, as engines report: sums, recent requests, a history
//	spans     how prompts were served, as OpenTelemetry spans for a collector
//	journal   recent events, for operators who follow them
//	events    KV events for routers, in vLLM's format
//	parallel  segments of one prompt that several engines compute
//	cluster   membership by gossip, certificates, and the peers' port
//	server    connections, their requests, and the effect of requests
//	view      views for operators: node, catalogue, health, metrics
//
// In this package, daemon.go opens, runs and closes the parts in order. store.go and disk.go do so
// for the store and the disk tier. reload.go reads keys, tokens and certificates, at the start
// and again; check.go tries what a start needs.
//
// # Start and stop
//
// Start: the configuration is resolved, validated with the files that it names, and reduced to what
// fits the machine. Then the parts are opened in this order: socket directory and lock; the admin
// REST, which reports the part being opened; device; disk tier (its directory is not accessed yet);
// the GPUs, all concurrently; store and its arenas; watcher; the socket (bind, listen). Then the
// parts run. First is the disk tier; the start waits briefly until the tier is open and the
// switched-off profiles are read. Then come watcher, the store's run, accept, and the guard of the
// socket's path. Then the node is ready.
//
// Stop begins when Run's context ends or a part fails. The node becomes not ready. The listener is
// closed and its path removed, if that path is still the daemon's own. New requests are answered
// with unavailable. Requests that run may finish for at most DrainTimeout; then their contexts end.
// Each connection closes when its last operation has released its memory, and the workers end.
// Objects that exist only in memory are written to disk or copied to other nodes; writing and
// copying take at most DrainTimeout each. Watcher, the store's run and admin REST end. Last, the
// store, disk tier, GPUs, device and lock are closed. Work that does not react to its context is
// waited for once more and then abandoned, as is a disk that hangs in the kernel. Run then returns
// without closing store and device, since unmapping memory in use would fault.
//
// A disk that is missing, locked by another process, full or failing changes none of this:
// the check "disk" is degraded and reports the reason, and the daemon serves from memory.
//
// # Locks
//
// A goroutine that holds one of these locks takes only locks that are listed after it:
//
//	conn.answering  conn.life  conn.mu  attachment.mu  device attachment's  gpu.mu  slots.mu  queue.mu  server.mu  watcher.mu  poller.mu  canary.mu  usage.mu  tiering's
//
// The queue of events, the node's own set of the index and the journal may be called with any of
// these locks held, and take none of the locks in the list. The lock of the journal is the last of
// all. In tiering, the order is: the store's lock, the lock of a profile's learned costs, the lock
// of the decisions. In events, the order is: fans.mu, subscriber.mu, the lock of a set of places.
// Some locks are never held together with another lock: those of advice, of a session's plans, of
// the socket (held while its path is bound again), of an attachment's claims, of the cluster's
// gate, and of events' turns.
//
// Only conn.answering is held for long: the reader holds it while it answers a short request, and
// the end of a connection waits for it. No other lock is held across I/O, an operation of the
// device, a callback or a log line.
//
// # Ownership
//
// The last reader of a connection frees the connection (see package server). Its attachment owns
// staging, slots and imported engine memory, on the host and on a GPU. Memory shared by handle is
// released when the client is gone, all other memory after the last operation. The owner of a
// request answers it and releases what it holds, also descriptors that arrived with it, unless the
// device took them over. The reader owns a request until it is in flight. The queue owns a queued
// one until a goroutine takes it out; then that goroutine owns it. The goroutine of its continuation
// owns a request that waits. The canary owns the switched-off profiles. Only its Memory writes them into a
// note of the disk tier, in the background, since the disk may hang.
package daemon
