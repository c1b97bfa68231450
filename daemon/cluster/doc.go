// Package cluster manages the membership of this node. It runs gossip, issues the certificates of
// peers, serves the peers' port and asks every member for changes of its index.
//
//	gossip (UDP and TCP, encrypted)   members, and the addresses of their peers' ports
//	peers' port (TCP, TLS 1.3)        index exchange, and requests for Config.Handler
//
// OnJoin reports a member that is up and usable. OnLeave reports that the member has announced its
// leave, has restarted, or was unreachable for Config.Hold. If a peer is unreachable for a shorter
// time, its index is kept. Nodes that failed or left are listed for another 72 hours. Between join
// and leave, a member has a unique number, and OnDoubt reports when the member stops answering and
// when it answers again.
//
// Nothing here delays a start. Seeds that do not resolve or do not answer are retried for as long
// as the node runs, and so are lost members. A partitioned cluster is therefore whole again at most
// Timing.Rejoin after the network works again.
//
// Files (keyring, certificates) are read again when they change. Unusable content is logged once,
// and the previous content stays in use.
//
// Lock order: memberlist calls back with its own lock held, and the callback takes roster.mu. So no
// function of memberlist is called with roster.mu held. Callbacks of Config are called without
// locks.
package cluster
