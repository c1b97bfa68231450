//go:build !nocuda

package fakecuda

const withoutDriver = false
