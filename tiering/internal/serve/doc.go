// Package serve answers clients: a Lookup says which objects there are, and a Session leases
// them. A lookup does no I/O and takes no lease. An object that a session wants and that is
// not in memory is brought there by package move; only calls whose names begin with Await
// wait for it.
package serve
