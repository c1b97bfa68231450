// Package browsercheck tests the dashboard in a real browser: Debian's chromium, headless. It is
// a separate module, so that the main module does not depend on the libraries that drive a
// browser.
//
// Most tests connect the dashboard to a test double of a node. The test double answers the admin
// REST from testdata. It can show states that are hard to produce with a real node: no segments,
// 100,000 segments, hostile names, a missing endpoint, a required token, a stop and a restart.
// One test runs the real programs. Without chromium all tests skip and say so; `make test-ui`
// runs them.
package browsercheck
