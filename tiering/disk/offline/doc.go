// Package offline checks, dumps and repairs the directory of a disk tier while no daemon
// has it open, and rebuilds its catalogue from the extents. Each function holds the
// directory's lock while it runs.
package offline
