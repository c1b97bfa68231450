package pages

// Held returns the number of blocks that a request takes in a position-independent cache that
// shares no blocks: each request has its own copy of all its tokens. CacheBlend and EPIC are
// such caches; they differ in what they recompute, not in the memory that they take.
func (q *Request) Held(blockTokens int) int {
	tokens := q.Output
	for _, p := range q.Pieces {
		tokens += p.Tokens
	}
	return ceil(tokens, blockTokens)
}

// Seam returns the number of tokens of a cached chunk that are recomputed and not shared.
func (r *Rules) Seam(chunkTokens int) int { return r.head(chunkTokens) }

// Alike describes N = Requests requests of the same shape. Each has n = Chunks chunks of b =
// ChunkBlocks blocks, and p = PromptBlocks blocks of prompt. D = Distinct different chunks are
// resident.
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
