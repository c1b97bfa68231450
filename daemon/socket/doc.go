// Package socket opens the engine socket. It chooses the socket's path, takes over a path that no
// process serves, and holds the lock of the path. It reports who connects, who may connect, and
// when clients end. The caller accepts connections.
package socket
