package pages

// Held is what position-independent caches without shared blocks need for a
// request: a copy of its own, as many blocks as its tokens fill. CacheBlend and
// EPIC differ in what they compute again, not in this.
func (q *Request) Held(blockTokens int) int {
	tokens := q.Output
	for _, p := range q.Pieces {
		tokens += p.Tokens
	}
	return ceil(tokens, blockTokens)
}

// Seam is how many tokens of a held chunk are computed again: what is not shared.
func (r *Rules) Seam(chunkTokens int) int { return r.head(chunkTokens) }

// Alike is N requests that are alike: n chunks of b blocks and p blocks of
// prompt each; D different chunks are resident.
type Alike struct{ Requests, Chunks, ChunkBlocks, PromptBlocks, Distinct int }

// Copied is the blocks of a copy for each request.
func (a Alike) Copied() int { return a.Requests * (a.Chunks*a.ChunkBlocks + a.PromptBlocks) }

// Shared is the blocks of the paper's layout, in which the first block of a chunk
// is each request's own.
func (a Alike) Shared() int {
	return a.Requests*(a.Chunks+a.PromptBlocks) + a.Distinct*(a.ChunkBlocks-1)
}

// Ratio is R = N(n b + p) / (N(n + p) + D(b - 1)), which goes to (n b + p)/(n + p)
// with many requests.
func (a Alike) Ratio() float64 { return float64(a.Copied()) / float64(a.Shared()) }
