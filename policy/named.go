package policy

// Named returns the constructor of a policy by its name in settings: lru, gdsf, marconi
// (alpha 0.1) or default. It returns false for any other name.
func Named(name string) (func() Eviction, bool) {
	switch name {
	case "lru":
		return NewLRU, true
	case "gdsf":
		return NewGDSF, true
	case "marconi":
		return func() Eviction { return NewMarconi(MarconiOptions{Alpha: 0.1}) }, true
	case "default":
		return NewDefault, true
	}
	return nil, false
}
