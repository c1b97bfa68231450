// Package browsercheck looks at the dashboard with a real browser: Debian's chromium, without
// a window. It is a module of its own so that what drives a browser stays out of spliced's.
//
// Most tests stand the dashboard before a double of a node, which answers the admin REST out
// of testdata and can do what a real node will not do on demand: be empty, hold 100,000
// segments, have hostile names, lack an endpoint, want a token, die and come back. One test
// runs the real programs. Without chromium all of them skip and say so; `make test-ui` runs
// them.
package browsercheck
