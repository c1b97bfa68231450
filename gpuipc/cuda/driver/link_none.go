//go:build !linux || (!amd64 && !arm64) || nocuda

package driver

import "errors"

// Built reports whether this binary can load a driver.
const Built = false

var errNotBuilt = errors.New("this binary was built without CUDA (tag nocuda)")

func open(string) (uintptr, error) { return 0, errNotBuilt }

func symbol(uintptr, string) (uintptr, error) { return 0, errNotBuilt }

// call is never reached: without open there is no API.
func call(uintptr, ...uintptr) Result { return NotInitialized }

func (*symbols) bind() {}
