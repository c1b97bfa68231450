package pages

// Held returns the blocks of a request in position-independent caches without shared
// blocks: its own copy fills as many blocks as its tokens need. CacheBlend and EPIC differ
// in what they recompute, not in this.
func (q *Request) Held(blockTokens int) int {
	tokens := q.Output
	for _, p := range q.Pieces {
		tokens += p.Tokens
	}
	return ceil(tokens, blockTokens)
}

// Seam returns the recomputed tokens of a cached chunk: the part that is not shared.
func (r *Rules) Seam(chunkTokens int) int { return r.head(chunkTokens) }

// Alike describes N requests of the same shape: n chunks of b blocks and p blocks of prompt
// each; D different chunks are resident.
type Alike struct{ Requests, Chunks, ChunkBlocks, PromptBlocks, Distinct int }

// Copied returns the blocks if each request has a copy.
func (a Alike) Copied() int { return a.Requests * (a.Chunks*a.ChunkBlocks + a.PromptBlocks) }

// Shared returns the blocks of the paper's layout, in which each request has its own first
// block of a chunk.
func (a Alike) Shared() int {
	return a.Requests*(a.Chunks+a.PromptBlocks) + a.Distinct*(a.ChunkBlocks-1)
}

// Ratio returns R = N(n b + p) / (N(n + p) + D(b - 1)), which approaches (n b + p)/(n + p)
// with many requests.
func (a Alike) Ratio() float64 { return float64(a.Copied()) / float64(a.Shared()) }
