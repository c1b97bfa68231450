package events

import (
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering/tier"
)

// recent remembers prompts until engines have stored the checkpoints that they were advised to
// store. One goroutine uses it.
type recent struct {
	bytes   int64
	names   map[recentName]prefix
	prompts []remembered // oldest first
}

// Limits of the remembered prompts. A prompt of 128k tokens takes 512 KiB. Its checkpoints are
// stored within the time of its prefill.
const (
	maxRecentBytes   = 16 << 20
	maxRecentPrompts = 4096
	maxPositions     = 64 // per prompt
)

type recentName struct {
	fingerprint profile.Fingerprint
	tenant      tier.TenantID
	hash        [32]byte
}

type prefix struct {
	tokens []uint32
	prompt uint64 // number of the latest prompt with this prefix
}

type remembered struct {
	number uint64
	bytes  int64
	names  []recentName
}

func newRecent() recent { return recent{names: map[recentName]prefix{}} }

func (r *recent) find(w tier.Want) []uint32 {
	return r.names[recentName{w.Fingerprint, w.Tenant, w.Key}].tokens
}

func (r *recent) remember(f profile.Fingerprint, q *Prompt, hashes []profile.PrefixHash) {
	if len(q.Positions) == 0 {
		return
	}
	number := uint64(1)
	if n := len(r.prompts); n > 0 {
		number = r.prompts[n-1].number + 1
	}
	m := remembered{number: number, bytes: 4*int64(len(q.Tokens)) + 200*int64(len(q.Positions))}
	for i, at := range q.Positions[:min(len(q.Positions), maxPositions)] {
		n := recentName{f, q.Tenant, hashes[i]}
		r.names[n] = prefix{q.Tokens[:at], number}
		m.names = append(m.names, n)
	}
	r.prompts = append(r.prompts, m)
	r.bytes += m.bytes
	for len(r.prompts) > 1 && (r.bytes > maxRecentBytes || len(r.prompts) > maxRecentPrompts) {
		r.forget()
	}
}

func (r *recent) forget() {
	m := r.prompts[0]
	for _, n := range m.names {
		if r.names[n].prompt == m.number { // otherwise a later prompt has this name too
			delete(r.names, n)
		}
	}
	r.bytes -= m.bytes
	r.prompts[0] = remembered{}
	r.prompts = r.prompts[1:]
}
