package cost

// ColdShare is the largest share of an object's computation that storing it may cost if the
// object is not expected again. So short and cold prompts cost at most 1 % more.
const ColdShare = 0.01

// Candidate is an object that may be admitted.
type Candidate struct {
	Held
	Asked bool // the client named the object, for example as a boundary of the application
	Seen  int  // earlier occurrences of the object's tokens
	// Returns is the learned share of similar objects that were requested again, from 0 to
	// 1.
	Returns float64
	// Floor is the density (saved milliseconds per MiB) of the last evicted object; 0 while
	// the pool has room. Objects that were not seen before are refused below this density.
	// Objects that were seen before are not refused for their density, since the pool ranks
	// them itself.
	Floor    float64
	MaxBytes int64 // most bytes of one object; 0 = no limit
}

// Admit decides whether to store an object. The object must fit, and a hit must save time.
// An object is admitted if it is expected again: it was seen, it was asked for, or similar
// objects returned often enough to pay for the publication. Any other object is cold. It is
// admitted if publishing it costs at most ColdShare of its computation and its density is
// at least Floor.
//
// Invariant: an object that is not expected again is refused if its publication takes more
// than ColdShare of its computation.
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

// longerWouldPay reports whether a token costs more to compute than its rows cost to load.
// Then a hit on this object is too expensive only because of the states, and a longer
// object would pay.
func (m *Model) longerWouldPay(t Tier) bool {
	j, ok := loadJob(t)
	return ok && m.Prefill().PerToken > m.Link(j).PerByte*float64(m.Shape.KVBytes)
}
