package advise

import "cmp"

// Config bounds the memory of an Advisor. A zero field takes the default that its comment states.
type Config struct {
	// Bounds of the tree of prompts over all tenants: the number of nodes, and bytes. The defaults
	// are 262144 nodes and 64 MiB. If one bound is negative, no prompt is remembered.
	Nodes int
	Bytes int64
	// Checkpoints is the maximum number of checkpoints advised for a prompt, if the query sets none.
	// The default is 4.
	Checkpoints int
	// SolveEvery is the number of recorded prompts after which the placement of checkpoints is
	// computed again. The default is 10 (Sparse Prefix Caching).
	SolveEvery int
}

// WithDefaults replaces zero fields by their defaults.
func (c Config) WithDefaults() Config {
	return Config{
		Nodes: cmp.Or(c.Nodes, 1<<18), Bytes: cmp.Or(c.Bytes, 64<<20),
		Checkpoints: cmp.Or(c.Checkpoints, 4), SolveEvery: cmp.Or(c.SolveEvery, 10),
	}
}

// Validate calls check for each bound of c, which has its defaults.
func (c *Config) Validate(check func(ok bool, format string, args ...any)) {
	check(c.Nodes < 0 || c.Nodes >= 64, "tree of %d prompts' nodes, want 64 or more", c.Nodes)
	check(c.Bytes < 0 || c.Bytes >= 64<<10, "tree of prompts of %d bytes, want 65536 or more", c.Bytes)
	check(c.Checkpoints > 0 && c.Checkpoints <= MaxPositions && c.SolveEvery > 0,
		"%d checkpoints advised, placements solved every %d prompts", c.Checkpoints, c.SolveEvery)
}
