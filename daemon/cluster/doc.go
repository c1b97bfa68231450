// Package cluster knows which daemons work together. It runs a node's membership by
// gossip, gives peers certificates, serves the peers' port and asks every member what
// has changed in its index.
//
//	gossip (UDP and TCP, encrypted)   who is there, where its peers' port is
//	peers' port (TCP, TLS 1.3)        index exchange, and whatever Config.Handler answers
//
// A member is told of by OnJoin when it is there and can be worked with, and by OnLeave
// when it has announced that it leaves, when it has restarted, or when it has been out of
// reach for Config.Hold: a peer that flaps keeps its index. Nodes that failed or left are
// listed for 72 hours more. Between the two it has a
// number that no other member has, and OnDoubt says when it does not answer, and when it
// does again.
//
// Nothing here stands in the way of a start: seeds that resolve to nothing, or that
// nobody answers at, are tried again for as long as the node runs. So are members that
// were lost, which heals a cut within Timing.Rejoin of the network.
//
// Files (keyring, certificates) are read again when they change. What cannot be used is
// said once and the former content stays in use.
//
// Lock order: memberlist calls back with its own lock held, and roster.mu is taken below
// it. Nothing of memberlist is called with roster.mu held, and no callback of Config with
// any lock.
package cluster
