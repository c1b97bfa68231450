// Package remote stores the reference engine's segments and prefix states in the daemon: it
// implements refengine.Cache and refengine.Prefixes over a connector client, as an engine
// adapter would.
//
// Every call is bounded by the client's timeouts. An object that the daemon refuses for
// lack of room is a miss and not an error. A daemon that is absent, slow or restarted is an
// error, and the engine computes without it.
package remote
