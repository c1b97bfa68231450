package cost

// ColdShare is the share of a prompt's computation that may be spent on storing
// objects that are not expected again: short and cold prompts cost at most 1 %.
const ColdShare = 0.01

// Candidate is an object that may be admitted.
type Candidate struct {
	Held
	Asked bool // the client named it, such as an application's boundary
	Seen  int  // earlier occurrences of its tokens
	// Returns is the learned share of similar objects that were requested
	// again.
	Returns float64
	// Floor is the density (milliseconds per MiB) of the last evicted object,
	// 0 while the pool has room. Cold objects below it are refused. Seen ones
	// are not, since the pool ranks them itself.
	Floor    float64
	MaxBytes int64 // bound for one object; 0 = none
}

// Admit decides whether to store an object, in this order: it fits; a hit would
// save time; it is expected again (seen, asked for, or similar objects returned
// often enough to pay for the publication) or, if cold, it costs at most
// ColdShare of its computation and has the density of Floor.
//
// Invariant: no object is admitted that is not expected again and whose
// publication takes more than ColdShare of its computation.
func (m *Model) Admit(c Candidate) (ok bool, why Reason) {
	why = m.judge(c)
	return why.Admitted(), why
}

func (m *Model) judge(c Candidate) Reason {
	if c.End <= c.Begin {
		return ReasonShort
	}
	if c.MaxBytes > 0 && c.Bytes > c.MaxBytes {
		return ReasonLarge
	}
	saved := m.Saved(Held{Begin: c.Begin, End: c.End, Bytes: c.Bytes, In: c.In})
	publishing := m.Link(JobPublish).Millis(c.Bytes)
	switch uses := float64(1 + c.Seen); {
	case saved <= 0 && m.longerWouldPay(c.In):
		return ReasonShort
	case saved <= 0:
		return ReasonNoGain
	case c.Seen > 0 && saved*uses > publishing:
		return ReasonSeen
	case c.Asked:
		return ReasonAsked
	case c.Returns*saved > publishing:
		return ReasonReturning
	case c.Seen > 0:
		return ReasonShort
	case publishing > ColdShare*m.Prefill().Marginal(c.Begin, c.End):
		return ReasonCold
	case PerMiB(saved, c.Bytes) < c.Floor:
		return ReasonThin
	}
	return ReasonCheap
}

// longerWouldPay reports whether a token costs more to compute than its rows
// cost to load. Then it is the states that make a hit too expensive.
func (m *Model) longerWouldPay(t Tier) bool {
	j, ok := loadJob(t)
	return ok && m.Prefill().PerToken > m.Link(j).PerByte*float64(m.Shape.KVBytes)
}
