// Package remote lets the reference engine keep its segments and prefix states
// in the daemon: it implements refengine.Cache and refengine.Prefixes over a
// connector client, the way an engine adapter would.
//
// Every call is bounded by the client's time-outs. What the daemon refuses for
// want of room is not held, which is no error; a daemon that is away, late or
// restarted is one, and the engine computes without it.
package remote
