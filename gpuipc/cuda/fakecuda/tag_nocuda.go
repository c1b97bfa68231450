//go:build nocuda

package fakecuda

// withoutDriver: this binary loads no driver, a fake one neither.
const withoutDriver = true
