// Package offline works on the directory of a disk tier while no daemon has it open: it
// checks, dumps and repairs it, and rebuilds its rows from the extents. Meanwhile it
// holds the directory's lock.
package offline
