// Package browsercheck tests the dashboard in a real browser: Debian's chromium, headless.
// It is a separate module, so that the main module does not depend on what drives a
// browser.
//
// Most tests connect the dashboard to a test double of a node. It answers the admin REST
// from testdata and can do what a real node does not do on demand: be empty, have 100,000
// segments or hostile names, lack an endpoint, require a token, stop and restart. One test
// runs the real programs. Without chromium all of them skip and say so; `make test-ui` runs
// them.
package browsercheck
