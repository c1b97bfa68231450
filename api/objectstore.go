package api

// ObjectProbe is the result of testing the object store with an object that is deleted
// afterwards.
type ObjectProbe struct {
	Enabled  bool   `json:"enabled"` // there is an object store; otherwise the other fields are meaningless
	Endpoint string `json:"endpoint"`
	Bucket   string `json:"bucket"`
	Prefix   string `json:"prefix"`
	// Steps are the attempted steps in order: list, write, overwrite (which must be
	// refused), read, range, delete. Steps that a failure made pointless are omitted.
	Steps      []ProbeStep `json:"steps"`
	ClockAhead float64     `json:"clock_ahead_seconds"` // lead of the server's clock over this node's
}

// ProbeStep is one step of a probe.
type ProbeStep struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"` // why the step failed; absent = success
}
