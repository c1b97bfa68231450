// Package socket opens the engine socket: it chooses where, takes over a path
// that nobody serves, holds the lock that makes the path ours, and says who
// connects, who may, and when they are gone. It leaves accepting to its caller.
package socket
