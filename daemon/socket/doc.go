// Package socket opens the engine socket. It chooses the path, takes over a path that no
// process serves, holds the lock that makes the path ours, and reports who connects, who
// may, and when clients end. The caller accepts connections.
package socket
