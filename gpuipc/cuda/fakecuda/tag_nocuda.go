//go:build nocuda

package fakecuda

// withoutDriver means that this binary loads no driver, and so no fake one either.
const withoutDriver = true
