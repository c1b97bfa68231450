//go:build !linux

package replay

import "time"

// watch measures elapsed time, including that of other work on the same core.
type watch struct{ began time.Time }

func startWatch() watch { return watch{time.Now()} }

func (w watch) stop() time.Duration { return time.Since(w.began) }
