package api

// ObjectProbe is what came of trying the object store, with an object that is deleted
// again.
type ObjectProbe struct {
	Enabled  bool   `json:"enabled"` // there is an object store; otherwise nothing else here means anything
	Endpoint string `json:"endpoint"`
	Bucket   string `json:"bucket"`
	Prefix   string `json:"prefix"`
	// Steps are those that were tried, in order: list, write, overwrite (which has to be
	// refused), read, range, delete. Those that a failure made pointless are left out.
	Steps      []ProbeStep `json:"steps"`
	ClockAhead float64     `json:"clock_ahead_seconds"` // of the server, of this node's clock
}

// ProbeStep is one thing that was tried.
type ProbeStep struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"` // empty = it worked
}
