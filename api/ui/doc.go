// Package ui is the dashboard of a node: static files that are part of the program, and the
// headers that they are answered with.
//
// The pages are plain ES modules over preact, htm and uPlot (see web/vendor): nothing is
// built, nothing is fetched from elsewhere, and what is shown comes from the REST beside it,
// by relative URLs. The package does no I/O and knows no HTTP server; package api serves it.
// A Site is fixed once made, and may be used by any number of goroutines at once.
package ui
