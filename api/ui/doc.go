// Package ui is the dashboard of a node: static files embedded in the program, and their
// response headers.
//
// The pages are plain ES modules over preact, htm and uPlot (see web/vendor): nothing is
// built, nothing is fetched from other sites, and all data comes from the REST API next to
// it, by relative URLs. The package does no I/O and knows no HTTP server; package api
// serves it. A Site is immutable, and may be used concurrently.
package ui
