// Package remote stores the reference engine's segments and prefix states in the daemon. It
// implements refengine.Cache and refengine.Prefixes with a connector client, in the way of an
// engine adapter.
//
// Every call is bounded by the client's timeouts. If the daemon refuses an object for lack of
// room, that is not an error. A daemon that is absent, slow or restarted is an error, and the
// engine computes without it.
package remote
