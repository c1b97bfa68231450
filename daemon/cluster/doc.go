// Package cluster manages the membership of this node. It runs gossip, gives peers
// certificates, serves the peers' port and asks every member for changes of its index.
//
//	gossip (UDP and TCP, encrypted)   members, and the addresses of their peers' ports
//	peers' port (TCP, TLS 1.3)        index exchange, and requests for Config.Handler
//
// OnJoin reports a member that is up and usable. OnLeave reports that it has announced its
// leave, has restarted, or was unreachable for Config.Hold: a peer that flaps keeps its
// index. Nodes that failed or left are listed for another 72 hours. Between join and leave
// a member has a unique number, and OnDoubt reports when it stops answering and when it
// answers again.
//
// Nothing here delays a start: seeds that do not resolve, or do not answer, are retried for
// as long as the node runs. So are members that were lost, which heals a partition within
// Timing.Rejoin of the network.
//
// Files (keyring, certificates) are read again when they change. Unusable content is logged
// once, and the former content stays in use.
//
// Lock order: memberlist calls back with its own lock held, and roster.mu is taken after it.
// Nothing of memberlist is called with roster.mu held, and no callback of Config with any
// lock.
package cluster
