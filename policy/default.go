package policy

// NewDefault is the policy that pools use unless told otherwise.
func NewDefault() Eviction { return NewGDSF() }
