//go:build !linux

package replay

import "time"

// watch measures time, that of others on the same core included.
type watch struct{ began time.Time }

func startWatch() watch { return watch{time.Now()} }

func (w watch) stop() time.Duration { return time.Since(w.began) }
